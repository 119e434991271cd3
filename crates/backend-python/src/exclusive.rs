//! A value that one thread at a time may use, for as long as it takes.

use std::time::{Duration, Instant};

use galatea_stdx::{Condvar, Lock};

/// A value of which one thread at a time may make use. That may block, so it is no lock.
#[derive(Debug)]
pub(crate) struct Exclusive<T> {
    value: Lock<Option<T>>,
    ended: Condvar,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Lock::new(Some(value)), ended: Condvar::default() }
    }

    /// Waits until no thread uses the value, and runs `with` on it; `None` if the time is over
    /// before.
    pub(crate) fn within<R>(
        &self,
        patience: Duration,
        with: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let mut value = self.begin(patience)?;
        let result = with(&mut value);
        *self.value.lock("give a value back") = Some(value);
        self.ended.notify_one();
        Some(result)
    }

    fn begin(&self, patience: Duration) -> Option<T> {
        let deadline = Instant::now().checked_add(patience);
        let mut slot = self.value.lock("take a value");
        loop {
            if let Some(value) = slot.take() {
                return Some(value);
            }
            let now = Instant::now();
            let left = deadline.map_or(patience, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return None;
            }
            slot = self.ended.wait_timeout(slot, left);
        }
    }
}
