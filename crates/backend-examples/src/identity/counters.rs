//! Counters of the bytes that models receive.

use std::sync::Arc;

use galatea_infer::Status;

/// Creates the counter for each version of a model.
pub trait InputByteCounterFactory: Send + Sync {
    /// Returns the counter for this version of the model. The counter is published until its last
    /// owner drops it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if another metric has the counter's name.
    fn counter(&self, model: &str, version: i64) -> Result<Arc<dyn InputByteCounter>, Status>;
}

/// A counter for one model version.
pub trait InputByteCounter: Send + Sync {
    /// Adds the size of an input.
    fn add(&self, bytes: usize);
}
