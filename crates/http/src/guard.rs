//! Errors that any endpoint may return.

use galatea_door::{Panicked, catch_panic};
use galatea_infer::Status;

/// The status of a server that is shutting down.
pub(crate) fn exiting() -> Status {
    Status::unavailable("Server exiting")
}

/// Runs `work` for one request and turns a panic into the request's error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_panic(work).unwrap_or_else(|Panicked| Err(failed()))
}

/// The status of a request whose handling panicked.
pub(crate) fn failed() -> Status {
    Status::internal("the server failed while it handled the request")
}
