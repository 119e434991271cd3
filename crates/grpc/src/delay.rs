//! Delays that environment variables of Triton's own tests request.

use std::time::Duration;

use galatea_infer::CancelToken;

/// Delays of steps of calls, all zero outside tests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TestDelays {
    /// The delay before the response to a call other than inference is sent.
    pub control_response: Duration,
    /// The delay before the response to a unary inference is made, on the thread that makes it.
    pub call_response: Duration,
    /// The delay before each response on a stream is made, on the thread that makes it.
    pub stream_response: Duration,
    /// The delay before a unary inference is begun. One that is cancelled in the meantime is not
    /// begun.
    pub call_start: Duration,
    /// The delay before a request of a stream is begun, on the thread of its connection.
    pub stream_request: Duration,
    /// The delay before a request is told that its client has disconnected.
    pub cancellation: Duration,
    /// The delay before the end of a unary inference whose client has disconnected, on the thread
    /// that ends it.
    pub cancelled_end: Duration,
}

impl TestDelays {
    /// The token for the request of a call that `cancel` cancels.
    pub(crate) fn told(&self, cancel: CancelToken) -> CancelToken {
        let delay = self.cancellation;
        if delay.is_zero() {
            return cancel;
        }
        let (told, later) = (CancelToken::new(), tokio::runtime::Handle::current());
        let of_request = told.clone();
        cancel.on_cancel(move || {
            later.spawn(async move {
                tokio::time::sleep(delay).await;
                of_request.cancel();
            });
        });
        told
    }
}

/// A delay on the thread that makes a response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delay(pub(crate) Duration);

impl Delay {
    /// Waits, if there is a delay.
    pub(crate) fn wait(self) {
        if !self.0.is_zero() {
            std::thread::sleep(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_told_later_that_its_client_has_left() {
        let delays = TestDelays { cancellation: Duration::from_millis(1), ..Default::default() };
        let cancel = CancelToken::new();
        let told = delays.told(cancel.clone());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        told.on_cancel(move || sender.send(()).unwrap());
        cancel.cancel();
        assert!(!told.is_cancelled());
        receiver.await.unwrap();
        assert!(told.is_cancelled());

        let same = TestDelays::default().told(cancel);
        assert!(same.is_cancelled());
    }
}
