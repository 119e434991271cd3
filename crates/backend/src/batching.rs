//! Custom batching: a model's own rule for which requests share a batch.

use galatea_infer::{InferenceRequest, Status};

/// Decides for each request whether it joins the batch that is open.
///
/// The calls come in this order: `open`, `include` for each candidate in the order
/// of service, `close`; and so on with the next batch. A request may be shown again
/// in a later batch. The first one of a batch runs in it whatever is said of it.
///
/// A rule is asked while the model's queue is locked: requests that arrive wait for
/// it, so it had better not wait for anything.
pub trait BatchRule: Send {
    /// A batch opens.
    ///
    /// # Errors
    ///
    /// Why this batch goes without the rule.
    fn open(&mut self) -> Result<(), Status>;

    /// Whether this queued request, of `batch_size` elements, may join.
    ///
    /// # Errors
    ///
    /// Why that can't be said.
    fn include(&mut self, request: &InferenceRequest, batch_size: u32) -> Result<bool, Status>;

    /// The batch has closed.
    ///
    /// # Errors
    ///
    /// What went wrong with that.
    fn close(&mut self) -> Result<(), Status>;
}
