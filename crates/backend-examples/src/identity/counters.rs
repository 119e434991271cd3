//! The counters of the bytes that models receive.

use std::sync::Arc;

use galatea_infer::Status;

/// Makes the counter of each version of a model.
pub trait InputCounters: Send + Sync {
    /// Returns the counter of this version of the model. It is shown until its last owner drops it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if another metric has its name.
    fn counter(&self, model: &str, version: i64) -> Result<Arc<dyn InputCounter>, Status>;
}

/// The counter of a version.
pub trait InputCounter: Send + Sync {
    /// Adds the size of an input.
    fn add(&self, bytes: usize);
}
