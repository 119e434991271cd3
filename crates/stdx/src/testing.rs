//! Waiting in the tests of all crates.
//!
//! A test that sleeps for a fixed time fails on a busy machine. Tests therefore wait until a
//! condition holds, and fail after a time that no machine needs.

use std::future::poll_fn;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

/// The time that a test waits before it fails. On a busy machine threads may wait for seconds.
pub const LONG: Duration = Duration::from_secs(120);

/// The number of polls between which a waiting test only yields. It sleeps between later polls, so
/// that it leaves the processor to the threads for which it waits.
const YIELDS: u32 = 1_000;

/// The sleep between two polls.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until `condition` returns true. Returns false if it still doesn't after [`LONG`].
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut polls: u32 = 0;
    while !condition() {
        if start.elapsed() > LONG {
            return false;
        }
        polls = polls.saturating_add(1);
        if polls < YIELDS {
            // sleep: the interval of all polls
            thread::yield_now();
        } else {
            // sleep: the interval of all polls
            thread::sleep(PAUSE);
        }
    }
    true
}

/// Waits until `condition` returns true.
///
/// # Panics
///
/// Panics if the condition doesn't hold after [`LONG`].
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(eventually(condition), "gave up waiting until {what}");
}

/// Waits in a task until `condition` returns true. Other tasks of its thread run in the meantime.
///
/// # Panics
///
/// Panics if the condition doesn't hold after [`LONG`].
pub async fn wait_in_task(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    poll_fn(|context| {
        if condition() {
            return Poll::Ready(());
        }
        assert!(start.elapsed() < LONG, "gave up waiting until {what}");
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_condition_is_polled_until_it_holds() {
        let polls = AtomicU32::new(0);
        let holds_at = |count| polls.fetch_add(1, Ordering::Relaxed) + 1 == count;
        wait_until("it holds", || holds_at(YIELDS + 2));
        assert_eq!(polls.load(Ordering::Relaxed), YIELDS + 2);
    }

    #[test]
    fn a_task_polls_once_each_time_it_runs() {
        let polls = AtomicU32::new(0);
        let holds_at = |count| polls.fetch_add(1, Ordering::Relaxed) + 1 == count;
        let mut waiting = pin!(wait_in_task("it holds", || holds_at(3)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }
}
