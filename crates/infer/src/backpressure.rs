//! Flow control of responses: lets a backend know that its responses pile up.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::CancelToken;

/// Called once when congestion ends.
pub type ResumeHook = Box<dyn FnOnce() + Send>;

/// A point where responses may pile up: before a slow ensemble step or a slow client.
///
/// Any sending thread may call these methods, so neither may block.
pub trait CongestionPoint: Send + Sync {
    /// Returns true if the sender of responses should pause.
    fn is_congested(&self) -> bool;

    /// Keeps `hook` and runs it once when the congestion ends, on the thread that ends it. Returns
    /// the hook if there is no congestion.
    ///
    /// A point dropped while congested runs its hooks.
    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook>;
}

/// Lets a backend check whether the receiver of its responses is congested. Backends that send many
/// responses should check it.
///
/// If a backend ignores congestion, no responses are lost, but they accumulate in memory. The
/// default value never reports congestion and doesn't allocate.
#[derive(Clone, Default)]
pub struct Backpressure {
    points: Vec<Arc<dyn CongestionPoint>>,
}

/// The interval at which a waiting thread checks whether its request has been cancelled.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum time that a thread waits. As in Triton, the thread then sends anyway, so that models
/// that wait for each other in a cycle make progress again.
const WAIT_MAX: Duration = Duration::from_secs(300);

impl Backpressure {
    /// Adds a point where responses may pile up.
    #[must_use]
    pub fn with_congestion_point(mut self, point: Arc<dyn CongestionPoint>) -> Self {
        self.points.push(point);
        self
    }

    /// Returns true if the sender of responses should pause.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.points.iter().any(|point| point.is_congested())
    }

    /// Runs `resume` once no point is congested, or immediately if none is. Intended for backends
    /// that have other work to do in the meantime.
    pub fn when_free(self, resume: impl FnOnce() + Send + 'static) {
        let Some(point) = self.points.iter().find(|point| point.is_congested()).cloned() else {
            return resume();
        };
        // Another point may be congested by the time this one is free.
        let check_again: ResumeHook = Box::new(move || self.when_free(resume));
        if let Some(hook) = point.when_free(check_again) {
            hook();
        }
    }

    /// Blocks until no point is congested, the request is cancelled, or `WAIT_MAX` has passed.
    /// Backends with their own thread call this before they compute the next response.
    pub fn wait_until_relieved(&self, cancel: &CancelToken) {
        if !self.is_congested() {
            return;
        }
        let (sender, receiver) = channel();
        self.clone().when_free(move || {
            // If the wait ended early, the receiver has been dropped.
            let _ = sender.send(());
        });
        let deadline = Instant::now() + WAIT_MAX;
        while !cancel.is_cancelled() && Instant::now() < deadline {
            match receiver.recv_timeout(CANCEL_CHECK_INTERVAL) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl fmt::Debug for Backpressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backpressure({} points, congested: {})", self.points.len(), self.is_congested())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Receiver;

    use galatea_stdx::testing::wait_until;

    use super::*;

    /// A congestion point that a test fills and empties.
    #[derive(Default)]
    struct Buffer(Mutex<(bool, Vec<ResumeHook>)>);

    impl CongestionPoint for Buffer {
        fn is_congested(&self) -> bool {
            self.0.lock().unwrap().0
        }

        fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
            let mut buffer = self.0.lock().unwrap();
            if !buffer.0 {
                return Some(hook);
            }
            buffer.1.push(hook);
            None
        }
    }

    impl Buffer {
        fn fill(&self) {
            self.0.lock().unwrap().0 = true;
        }

        fn empty(&self) {
            let hooks = {
                let mut buffer = self.0.lock().unwrap();
                buffer.0 = false;
                std::mem::take(&mut buffer.1)
            };
            hooks.into_iter().for_each(|hook| hook());
        }
    }

    fn backpressure_of_two() -> (Backpressure, [Arc<Buffer>; 2]) {
        let points: [Arc<Buffer>; 2] = Default::default();
        let backpressure = Backpressure::default()
            .with_congestion_point(points[0].clone())
            .with_congestion_point(points[1].clone());
        (backpressure, points)
    }

    fn resumption(backpressure: &Backpressure) -> Receiver<()> {
        let (sender, receiver) = channel();
        backpressure.clone().when_free(move || sender.send(()).unwrap());
        receiver
    }

    #[test]
    fn resuming_waits_until_no_point_is_congested() {
        let (backpressure, [first, second]) = backpressure_of_two();
        assert!(!backpressure.is_congested());
        resumption(&backpressure).try_recv().unwrap();
        first.fill();
        second.fill();
        assert!(backpressure.is_congested());
        let resumed = resumption(&backpressure);
        first.empty();
        assert!(resumed.try_recv().is_err(), "the second is full");
        first.fill();
        second.empty();
        assert!(resumed.try_recv().is_err(), "the first is full again");
        first.empty();
        resumed.try_recv().unwrap();
        assert!(resumed.try_recv().is_err(), "once is enough");
    }

    #[test]
    fn a_waiting_thread_resumes_when_the_point_is_free_or_the_request_cancelled() {
        let (backpressure, [point, _]) = backpressure_of_two();
        backpressure.wait_until_relieved(&CancelToken::new());
        point.fill();
        let waiting = backpressure.clone();
        let thread = std::thread::spawn(move || waiting.wait_until_relieved(&CancelToken::new()));
        wait_until("the thread waits", || !point.0.lock().unwrap().1.is_empty());
        assert!(!thread.is_finished());
        point.empty();
        thread.join().unwrap();
        point.fill();
        let cancelled = CancelToken::new();
        cancelled.cancel();
        backpressure.wait_until_relieved(&cancelled);
    }
}
