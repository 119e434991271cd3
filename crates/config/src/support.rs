//! The optional features of the server.

/// The optional features that this server supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// Numbers of the GPUs that models may use; empty on a CPU-only server.
    pub gpus: Vec<i32>,
    /// Whether the model's backend uses the secondary devices of its instances.
    pub secondary_devices: bool,
}

impl Support {
    /// Whether models may use a GPU.
    #[must_use]
    pub const fn gpus_available(&self) -> bool {
        !self.gpus.is_empty()
    }
}
