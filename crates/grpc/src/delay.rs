//! Delays that Triton's own tests ask for by environment variables.

use std::time::Duration;

/// Delays of responses, all zero outside of tests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TestDelays {
    /// Before the response to a call that is no inference is sent.
    pub control_response: Duration,
    /// Before the response to a unary inference is made, on the thread that makes it.
    pub call_response: Duration,
    /// The same before each response on a stream.
    pub stream_response: Duration,
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
