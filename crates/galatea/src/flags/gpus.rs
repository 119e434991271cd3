//! The settings of GPUs from the command line.

use std::collections::BTreeMap;

use galatea_devices::PoolSizes;

/// Triton's minimum in its builds for GPUs.
const MIN_COMPUTE_CAPABILITY: f64 = 7.5;

/// The settings of GPUs from the command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GpuSettings {
    /// GPUs that can compute less are left alone, if the flag was given.
    pub(crate) min_compute_capability: Option<f64>,
    /// The memory that is allocated at the start.
    pub(crate) pools: PoolSizes,
    /// The bytes of addresses that are reserved on GPUs for states of sequences that grow.
    pub(crate) growing_bytes: BTreeMap<i32, u64>,
    /// The part of a GPU's memory above which no model is loaded onto it.
    pub(crate) load_limits: BTreeMap<i32, f64>,
    /// True if GPUs use each other's memory.
    pub(crate) peer_access: bool,
    /// The remarks that hold only without GPUs.
    pub(crate) notes_without: Vec<String>,
}

impl GpuSettings {
    /// The compute capability below which GPUs are left alone.
    pub(crate) fn minimum(&self) -> f64 {
        self.min_compute_capability.unwrap_or(MIN_COMPUTE_CAPABILITY)
    }

    /// The same as the log and backends see it. A server that was told nothing of GPUs and has
    /// none shows the value `without` them.
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
            peer_access: true,
            notes_without: Vec::new(),
        }
    }
}
