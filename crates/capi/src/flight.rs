//! Where a request is: with its caller, or on its way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use galatea_infer::{CancelToken, Status};

/// What any thread may ask of a request while the server has it.
#[derive(Default)]
pub(crate) struct Flight {
    away: Arc<AtomicBool>,
    /// None before the first time that the request was handed over.
    cancel: Mutex<Option<CancelToken>>,
}

/// The request is on its way as long as this lives.
pub(crate) struct Away(Arc<AtomicBool>);

impl Drop for Away {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Flight {
    /// Begins: a request that is used again is a new one, which nobody has cancelled.
    /// `None` if it is on its way already.
    pub(crate) fn begin(&self) -> Option<(Away, CancelToken)> {
        if self.away.swap(true, Ordering::AcqRel) {
            return None;
        }
        let token = CancelToken::new();
        *self.token() = Some(token.clone());
        Some((Away(self.away.clone()), token))
    }

    /// What cancels the request, and knows whether somebody did.
    ///
    /// # Errors
    ///
    /// `Internal`, as in the original, if the request was never handed over: there is
    /// nothing to cancel, and what a caller wanted must not be lost without a word.
    pub(crate) fn cancel(&self) -> Result<CancelToken, Status> {
        self.token().clone().ok_or_else(|| {
            Status::internal(
                "a request can neither be cancelled nor asked whether it was before \
                 TRITONSERVER_ServerInferAsync has taken it",
            )
        })
    }

    fn token(&self) -> MutexGuard<'_, Option<CancelToken>> {
        self.cancel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
