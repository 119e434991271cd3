//! The owner of a request: its caller or the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use galatea_infer::{CancelToken, Status};
use galatea_stdx::Lock;

/// The state of a request that any thread may ask for while the server has it.
#[derive(Default)]
pub(crate) struct Ownership {
    is_with_server: Arc<AtomicBool>,
    /// `None` before the request was handed over for the first time.
    cancel: Lock<Option<CancelToken>>,
}

/// The request belongs to the server as long as this lives.
pub(crate) struct ServerOwnership(Arc<AtomicBool>);

impl Drop for ServerOwnership {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Ownership {
    /// Hands the request over. Each time it gets a new cancellation token. `None` if the
    /// server has it already.
    pub(crate) fn hand_over(&self) -> Option<(ServerOwnership, CancelToken)> {
        if self.is_with_server.swap(true, Ordering::AcqRel) {
            return None;
        }
        let token = CancelToken::new();
        *self.cancel.lock("set the token") = Some(token.clone());
        Some((ServerOwnership(self.is_with_server.clone()), token))
    }

    /// The token that cancels the request and knows whether it was cancelled.
    ///
    /// # Errors
    ///
    /// `Internal`, as in Triton, if the request was never handed over: there is nothing
    /// to cancel, and the call must not be ignored silently.
    pub(crate) fn cancel_token(&self) -> Result<CancelToken, Status> {
        self.cancel.lock("read the token").clone().ok_or_else(|| {
            Status::internal(
                "a request can neither be cancelled nor asked whether it was before \
                 TRITONSERVER_ServerInferAsync has taken it",
            )
        })
    }
}
