//! Custom batching: model-specific rules that decide which requests share a batch.

use galatea_infer::{InferenceRequest, Status};

/// Decides whether each request joins the open batch. Triton calls this a custom batching strategy.
///
/// The calls occur in this order: `open`, `include` for each candidate in queue order, `close`. The
/// sequence then repeats for the next batch. A request may be a candidate for several batches. The
/// first request of a batch is part of it even if the rule rejects it.
///
/// The engine calls a rule while the model's queue is locked and new requests are waiting for the
/// lock, so a rule should not block.
pub trait CustomBatchStrategy: Send {
    /// Opens a batch.
    ///
    /// # Errors
    ///
    /// The reason why the batch is formed without the rule.
    fn open(&mut self) -> Result<(), Status>;

    /// Returns true if this queued request, which has `batch_size` elements, may join the batch.
    ///
    /// # Errors
    ///
    /// The reason why the rule can't decide.
    fn include(&mut self, request: &InferenceRequest, batch_size: u32) -> Result<bool, Status>;

    /// Closes the batch.
    ///
    /// # Errors
    ///
    /// The reason why the rule failed.
    fn close(&mut self) -> Result<(), Status>;
}
