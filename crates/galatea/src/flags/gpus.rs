//! The GPU settings from the command line.

use std::collections::BTreeMap;

use galatea_devices::PoolSizes;

use crate::memory::ModelMemoryLimit;

/// The minimum compute capability in Triton's GPU builds.
const MIN_COMPUTE_CAPABILITY: f64 = 7.5;

/// The GPU settings from the command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GpuSettings {
    /// The value of the flag, if it is set; GPUs with a lower compute capability are not used.
    pub(crate) min_compute_capability: Option<f64>,
    /// The memory that is allocated at startup.
    pub(crate) pools: PoolSizes,
    /// The number of bytes of GPU address space reserved for growing sequence states.
    pub(crate) growing_bytes: BTreeMap<i32, u64>,
    /// The fraction of a GPU's memory above which no model is loaded onto it.
    pub(crate) load_limits: BTreeMap<i32, f64>,
    /// The memory of models that are loaded on demand, by GPU.
    pub(crate) model_memory: BTreeMap<u16, ModelMemoryLimit>,
    /// True if GPUs access each other's memory.
    pub(crate) peer_access: bool,
    /// The notes that apply only without GPUs.
    pub(crate) notes_without: Vec<String>,
}

impl GpuSettings {
    /// The compute capability below which GPUs are not used.
    pub(crate) fn minimum(&self) -> f64 {
        self.min_compute_capability.unwrap_or(MIN_COMPUTE_CAPABILITY)
    }

    /// The minimum that the log and backends see. Without the flag and without GPUs, it is
    /// `without`.
    pub(crate) fn shown_minimum(&self, has_gpus: bool, without: f64) -> f64 {
        let is_shown = has_gpus || self.min_compute_capability.is_some();
        if is_shown { self.minimum() } else { without }
    }
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            min_compute_capability: None,
            pools: PoolSizes::default(),
            growing_bytes: BTreeMap::new(),
            load_limits: BTreeMap::new(),
            model_memory: BTreeMap::new(),
            peer_access: true,
            notes_without: Vec::new(),
        }
    }
}
