//! Custom batching: model-specific rules for which requests share a batch.

use galatea_infer::{InferenceRequest, Status};

/// Decides for each request whether it joins the open batch. Triton calls it a custom
/// batching strategy.
///
/// The calls come in this order: `open`, `include` for each candidate in the order of service,
/// `close`; then again for the next batch. A request may be a candidate for several batches. The
/// first request of a batch is part of it even if the rule refuses it.
///
/// The engine calls a rule while the model's queue is locked and new requests wait for the lock, so
/// it should not block.
pub trait BatchRule: Send {
    /// Opens a batch.
    ///
    /// # Errors
    ///
    /// The reason why the batch is formed without the rule.
    fn open(&mut self) -> Result<(), Status>;

    /// Returns true if this queued request, which has `batch_size` elements, may join.
    ///
    /// # Errors
    ///
    /// The reason why the rule can't decide.
    fn include(&mut self, request: &InferenceRequest, batch_size: u32) -> Result<bool, Status>;

    /// Closes the batch.
    ///
    /// # Errors
    ///
    /// The rule's failure.
    fn close(&mut self) -> Result<(), Status>;
}
