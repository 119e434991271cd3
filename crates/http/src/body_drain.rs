//! Reads the body of a refused request to its end, within limits.
//!
//! The body is read and discarded before the response is sent. Otherwise, a client that is still
//! sending would find the connection closed and miss the response.

use std::time::Duration;

use crate::http_response::HttpResponse;
use crate::request_body::{DrainLimits, RequestBody};
use crate::request_head::RequestHead;

/// The maximum total time spent reading the body of a refused request.
const REFUSED_BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// The maximum number of frames that are read from a refused body.
const FRAMES_MAX: u32 = 1 << 20;

/// Drains the bodies of refused requests.
#[derive(Debug)]
pub(crate) struct BodyDrain {
    limits: DrainLimits,
}

impl BodyDrain {
    /// Creates a drain that reads at most `bytes_max` of a body, until its client is silent for
    /// longer than `silence_max`.
    pub(crate) const fn new(bytes_max: u64, silence_max: Duration) -> Self {
        let limits = DrainLimits {
            bytes_max,
            frames_max: FRAMES_MAX,
            silence_max,
            time_max: REFUSED_BODY_TIME_MAX,
        };
        Self { limits }
    }

    /// Returns true if the rest of the body must be drained before `response` is sent.
    pub(crate) fn is_needed<B: RequestBody>(
        head: &RequestHead<'_>,
        response: &HttpResponse,
        body: &B,
    ) -> bool {
        // A client that expects an interim response has not sent the body, and a response that
        // closes the connection was created after draining.
        let is_sent = !head.expects_continue && !response.closes;
        is_sent && !body.is_whole()
    }

    /// Reads until the client has finished sending or a limit is reached.
    pub(crate) async fn drain<B: RequestBody>(&self, body: &mut B) {
        body.drain(self.limits).await;
    }
}
