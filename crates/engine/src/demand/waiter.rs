//! A request, or a client's load, that waits for its model.

use std::sync::Arc;

use galatea_infer::{CancelToken, Deadline, Status};
use galatea_policy::{ModelId, RequestOrigin};

use crate::handle::ModelHandle;

/// Continues a request with its model, or refuses it.
pub(crate) type FoundHook = Box<dyn FnOnce(Result<Arc<ModelHandle>, Status>) + Send>;

/// The purpose of a wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A request uses the model.
    Request,
    /// A client loads the model explicitly.
    ClientLoad,
}

/// A request that waits for its model. Dropping it refuses the request.
pub(crate) struct Waiter {
    /// The model's name, as in the request.
    pub(crate) name: String,
    pub(crate) version: Option<i64>,
    pub(super) model: ModelId,
    pub(super) deadline: Deadline,
    pub(super) cancel: CancelToken,
    pub(super) origin: RequestOrigin,
    pub(super) purpose: Purpose,
    found: Option<FoundHook>,
}

impl Waiter {
    /// Creates the wait of a request. `found` is called once, on any thread.
    pub(crate) fn request(
        name: &str,
        version: Option<i64>,
        origin: RequestOrigin,
        found: FoundHook,
    ) -> Self {
        Self {
            name: name.to_owned(),
            version,
            model: name.into(),
            deadline: Deadline::None,
            cancel: CancelToken::default(),
            origin,
            purpose: Purpose::Request,
            found: Some(found),
        }
    }

    /// Creates the wait of a client that loads a model.
    pub(super) fn client_load(name: &str, origin: RequestOrigin, found: FoundHook) -> Self {
        let mut waiter = Self::request(name, None, origin, found);
        waiter.purpose = Purpose::ClientLoad;
        waiter
    }

    /// Ends the wait at a deadline, or when the token is cancelled.
    #[must_use]
    pub(crate) fn until(mut self, deadline: Deadline, cancel: CancelToken) -> Self {
        (self.deadline, self.cancel) = (deadline, cancel);
        self
    }

    /// Ends the wait with an error.
    pub(crate) fn refuse(self, status: Status) {
        self.finish(Err(status));
    }

    pub(super) fn finish(mut self, result: Result<Arc<ModelHandle>, Status>) {
        if let Some(found) = self.found.take() {
            found(result);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(found) = self.found.take() {
            found(Err(stopping()));
        }
    }
}

/// The error for requests that arrive or wait while the server stops.
pub(super) fn stopping() -> Status {
    Status::unavailable("Server is stopping: no new requests are accepted")
}
