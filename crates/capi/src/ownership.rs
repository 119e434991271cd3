//! Ownership of a request, which belongs to its caller or to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use galatea_infer::{CancelToken, Status};
use galatea_stdx::Lock;

/// The state of a request that any thread may query while the server has the request.
#[derive(Default)]
pub(crate) struct Ownership {
    is_with_server: Arc<AtomicBool>,
    /// `None` until the request is handed over for the first time.
    cancel: Lock<Option<CancelToken>>,
}

/// Proof that the server owns a request, for as long as the value exists.
pub(crate) struct ServerOwnership(Arc<AtomicBool>);

impl Drop for ServerOwnership {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Ownership {
    /// Hands the request over, with a new cancellation token each time. Returns `None` if the
    /// server already has the request.
    pub(crate) fn hand_over(&self) -> Option<(ServerOwnership, CancelToken)> {
        if self.is_with_server.swap(true, Ordering::AcqRel) {
            return None;
        }
        let token = CancelToken::new();
        *self.cancel.lock("set the token") = Some(token.clone());
        Some((ServerOwnership(self.is_with_server.clone()), token))
    }

    /// The token that cancels the request and reports whether it has been cancelled.
    ///
    /// # Errors
    ///
    /// `Internal`, as in Triton, if the request was never handed over: there is nothing to cancel,
    /// and the call must not be ignored silently.
    pub(crate) fn cancel_token(&self) -> Result<CancelToken, Status> {
        self.cancel.lock("read the token").clone().ok_or_else(|| {
            Status::internal(
                "a request can neither be cancelled nor asked whether it was before \
                 TRITONSERVER_ServerInferAsync has taken it",
            )
        })
    }
}
