//! What clients send and nobody wants: read and forgotten before they are answered, because
//! a client that is still sending would find the connection closed and not see the answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::body::{DiscardLimits, RequestBody};
use crate::head::Head;
use crate::respond::Reply;

/// If more than this is missing of a body that nobody wants, the answer waits for it.
const MISSING_BYTES_MAX: u64 = 16 << 10;

/// How many frames of such a body are read and thrown away.
const FRAMES_MAX: u32 = 1 << 20;

/// How long a client is waited for while it sends.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The same while the door stops.
const STOPPING_MAX: Duration = Duration::from_millis(500);

/// Reads what nobody wants, within bounds, and until the door has stopped for a while.
#[derive(Debug)]
pub(crate) struct Unwanted {
    limits: DiscardLimits,
    stopping: AtomicBool,
    /// Told once `stopping` is set.
    stopped: Notify,
}

impl Unwanted {
    /// Reads so much of a body, as long as its client isn't silent for so long.
    pub(crate) const fn new(bytes_max: u64, silence_max: Duration) -> Self {
        let limits =
            DiscardLimits { bytes_max, frames_max: FRAMES_MAX, silence_max, time_max: TIME_MAX };
        Self { limits, stopping: AtomicBool::new(false), stopped: Notify::const_new() }
    }

    /// The door begins to stop.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stopped.notify_waiters();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until the door begins to stop.
    pub(crate) async fn stopped(&self) {
        let mut told = std::pin::pin!(self.stopped.notified());
        told.as_mut().enable();
        if !self.is_stopping() {
            told.await;
        }
    }

    /// Reads what was left of the body of a request with this answer, if that is so much
    /// that the client would not see it.
    pub(crate) async fn discard_rest<B: RequestBody>(
        &self,
        head: &Head<'_>,
        reply: &Reply,
        body: &mut B,
    ) {
        // A client that asks first has not sent anything, and of a body that was
        // refused enough was read.
        let is_sent = !head.expects && !reply.closes;
        if is_sent && body.missing_min() > MISSING_BYTES_MAX {
            self.discard(body).await;
        }
    }

    /// Lets a client finish what it is sending, as far as that is reasonable.
    pub(crate) async fn discard<B: RequestBody>(&self, body: &mut B) {
        let stopped = async {
            self.stopped().await;
            tokio::time::sleep(STOPPING_MAX).await;
        };
        tokio::select! {
            () = body.discard(self.limits) => {}
            () = stopped => {}
        }
    }
}
