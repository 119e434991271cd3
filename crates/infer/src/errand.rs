//! Work of another thread, done on the way.
//!
//! Handing a request to a model's thread and its answer back costs two threads a
//! sleep and a wake-up: more than a small model takes to execute. A thread that
//! brings such a request may as well execute it, if it has nothing else at hand.
//! Whoever runs a thread says so by giving it an *allowance* each time it has come to
//! the end of its own work; other threads have none and never run errands.
//!
//! As with turns, this is a matter of one thread, and so is its state.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Duration;

thread_local! {
    static ALLOWANCE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// From now until it is called again, this thread may give so much time to errands.
/// The last one may take longer than is left.
pub fn allow(time: Duration) {
    // A thread that ends runs no errands any more.
    let _ended = ALLOWANCE.try_with(|allowance| allowance.set(time));
}

/// A thread's errand. Until it is over there are no others, because what is executed
/// may lead to more that could be, and so on.
#[derive(Debug)]
#[must_use = "an errand is over when this is dropped"]
pub struct Errand {
    left: Duration,
    /// It belongs to its thread.
    here: PhantomData<*const ()>,
}

impl Errand {
    /// Begins an errand; `None` if this thread has no time for one.
    pub fn begin() -> Option<Self> {
        let left = suspend();
        (!left.is_zero()).then_some(Self { left, here: PhantomData })
    }

    /// Takes `time` off the allowance.
    pub fn charge(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        allow(self.left);
    }
}

/// Takes the allowance away.
pub(crate) fn suspend() -> Duration {
    ALLOWANCE.try_with(|allowance| allowance.replace(Duration::ZERO)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn;

    const LONG: Duration = Duration::from_secs(3600);

    /// Runs on a thread of its own, because an allowance outlasts a test.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_thread_has_no_time_unless_it_is_allowed() {
        on_a_thread(|| {
            assert!(Errand::begin().is_none());
            allow(LONG);
            assert!(Errand::begin().is_some());
            assert!(Errand::begin().is_some());
            allow(Duration::ZERO);
            assert!(Errand::begin().is_none());
        });
    }

    #[test]
    fn errands_use_the_time_up() {
        on_a_thread(|| {
            allow(Duration::from_nanos(2));
            for time in [1, 0, 5] {
                Errand::begin().unwrap().charge(Duration::from_nanos(time));
            }
            assert!(Errand::begin().is_none());
            allow(LONG);
            assert!(Errand::begin().is_some());
        });
    }

    #[test]
    fn there_is_one_errand_at_a_time() {
        on_a_thread(|| {
            allow(LONG);
            let errand = Errand::begin();
            assert!(errand.is_some());
            assert!(Errand::begin().is_none());
            drop(errand);
            assert!(Errand::begin().is_some());
        });
    }

    #[test]
    fn foreign_code_brings_no_errands() {
        on_a_thread(|| {
            allow(LONG);
            assert!(turn::outside(Errand::begin).is_none());
            assert!(Errand::begin().is_some());
        });
    }
}
