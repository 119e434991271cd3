//! A request's wait for a model that is loaded on demand.

use std::sync::Arc;

use galatea_infer::{CancelToken, Deadline, Status};

use crate::ServedModel;

/// Receives the model that a request has waited for, or the reason why the request is refused.
pub type ModelFoundHook = Box<dyn FnOnce(Result<Arc<dyn ServedModel>, Status>) + Send>;

/// A request that waits until its model is loaded.
///
/// The request itself stays where it is, with its memory charges; this value tells its owner when
/// to continue.
pub struct ModelWait {
    /// The model's name.
    pub name: String,
    /// The version; `None` means the newest one.
    pub version: Option<i64>,
    /// The time by which the client needs the response. The wait ends then.
    pub deadline: Deadline,
    /// Cancelled when the client has disconnected, which ends the wait.
    pub cancel: CancelToken,
    /// Called once, on any thread, possibly before [`ServerControl::wait_for_model`](crate::ServerControl::wait_for_model) returns.
    pub found: ModelFoundHook,
}
