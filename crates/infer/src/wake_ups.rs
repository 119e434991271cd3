//! Waking whoever waits for answers, once for a whole batch.

use std::task::Waker;

use smallvec::SmallVec;

/// Whom to wake when every answer of a batch is given: they are woken when
/// this is dropped, each once.
///
/// A thread that is woken for the first answer may take the core from the
/// thread that gives the others, and would find one answer each time.
#[derive(Debug, Default)]
pub struct WakeUps {
    wakers: SmallVec<[Waker; 2]>,
}

impl WakeUps {
    /// Has `waker` woken with the others.
    pub fn add(&mut self, waker: Waker) {
        if !self.wakers.iter().any(|other| other.will_wake(&waker)) {
            self.wakers.push(waker);
        }
    }
}

impl Drop for WakeUps {
    fn drop(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_woken_once_and_at_the_end() {
        let counts: [Arc<Count>; 3] = Default::default();
        let mut wakes = WakeUps::default();
        for _ in 0..8 {
            for count in &counts {
                wakes.add(Waker::from(count.clone()));
            }
        }
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken(), [0, 0, 0]);
        drop(wakes);
        assert_eq!(woken(), [1, 1, 1]);
    }
}
