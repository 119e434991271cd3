//! Optional server features.

use std::collections::BTreeMap;
use std::fmt;

use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::{ModelConfig, ModelInstanceGroup};

/// The optional features that this server supports.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SupportedFeatures {
    /// The numbers of the GPUs that models may use; empty on a CPU-only server.
    pub gpus: Vec<i32>,
    /// The compute capability of each of these GPUs, by GPU number.
    pub compute_capabilities: BTreeMap<i32, ComputeCapability>,
    /// The minimum compute capability, which messages mention. GPUs below it are not used.
    pub min_compute_capability: f64,
    /// The reason why the model's backend can't use the available GPUs, if so. In that case `gpus`
    /// is empty.
    pub gpus_refused: Option<String>,
    /// True if the model's backend gets the whole configuration and may use any setting.
    pub whole_configuration: bool,
}

/// The compute capability of a GPU.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeCapability {
    /// The major version, such as the 8 in 8.6.
    pub major: u32,
    /// The minor version, such as the 6 in 8.6.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    /// Formats the capability as in `cc_model_filenames`: `8.6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Default for SupportedFeatures {
    fn default() -> Self {
        Self {
            gpus: Vec::new(),
            compute_capabilities: BTreeMap::new(),
            // Triton's default.
            min_compute_capability: 6.0,
            gpus_refused: None,
            whole_configuration: false,
        }
    }
}

impl SupportedFeatures {
    /// Withholds the GPUs from a backend that can't use them.
    pub fn withhold_gpus(&mut self, reason: &str) {
        if self.gpus_available() {
            self.gpus.clear();
            self.compute_capabilities.clear();
            self.gpus_refused = Some(String::from(reason));
        }
    }

    /// Resolves a group's kind. A group without a kind is on GPUs if there are any and all that it
    /// lists are available.
    pub(crate) fn resolved_kind(&self, group: &ModelInstanceGroup) -> Kind {
        match group.kind() {
            Kind::Auto if self.are_usable(&group.gpus) => Kind::Gpu,
            Kind::Auto => Kind::Cpu,
            kind @ (Kind::Gpu | Kind::Cpu | Kind::Model) => kind,
        }
    }

    /// Returns true if there are GPUs and all of these are among them.
    pub(crate) fn are_usable(&self, gpus: &[i32]) -> bool {
        self.gpus_available() && gpus.iter().all(|gpu| self.gpus.contains(gpu))
    }

    /// The subset of these GPUs that models may use.
    pub(crate) fn usable(&self, gpus: &[i32]) -> impl Iterator<Item = i32> {
        gpus.iter().copied().filter(|gpu| self.gpus.contains(gpu))
    }

    /// The model files for GPUs that have a separate file in `cc_model_filenames`.
    pub(crate) fn filenames_on_gpus(&self, message: &ModelConfig) -> BTreeMap<u32, String> {
        let files = self.compute_capabilities.iter().filter_map(|(gpu, capability)| {
            let file = message.cc_model_filenames.get(&capability.to_string())?;
            Some((u32::try_from(*gpu).ok()?, file.clone()))
        });
        files.collect()
    }

    /// Returns true if models may use a GPU.
    #[must_use]
    pub const fn gpus_available(&self) -> bool {
        !self.gpus.is_empty()
    }
}
