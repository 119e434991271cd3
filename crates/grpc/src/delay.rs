//! Artificial delays that Triton's own tests request through environment variables.

use std::time::Duration;

use galatea_infer::CancelToken;

/// Delays of individual call steps, all zero outside tests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TestDelays {
    /// The delay before a response to a call other than inference is sent.
    pub control_response: Duration,
    /// The delay before the response to a unary inference is created, on the thread that creates
    /// it.
    pub call_response: Duration,
    /// The delay before each stream response is created, on the thread that creates it.
    pub stream_response: Duration,
    /// The delay before a unary inference begins. An inference that is cancelled in the meantime
    /// doesn't begin.
    pub call_start: Duration,
    /// The delay before a stream request begins, on the thread of its connection.
    pub stream_request: Duration,
    /// The delay before a request is notified that its client has disconnected.
    pub cancellation: Duration,
    /// The delay before the end of a unary inference whose client has disconnected, on the thread
    /// that ends it.
    pub cancelled_end: Duration,
}

impl TestDelays {
    /// Returns the token for a call's request, which `cancel` cancels after the delay.
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

/// A delay on the thread that creates a response.
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
