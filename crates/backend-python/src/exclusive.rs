//! A value that one thread at a time may use, for as long as it takes.

use std::time::{Duration, Instant};

use galatea_stdx::{Condvar, Lock};

/// A value of which one thread at a time may make use. That may block, so it is no lock.
#[derive(Debug)]
pub(crate) struct Exclusive<T> {
    slot: Lock<Slot<T>>,
    ended: Condvar,
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    /// How many threads wait for it. Waking none costs a system call as well.
    waiting: u32,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        let slot = Slot { value: Some(value), waiting: 0 };
        Self { slot: Lock::new(slot), ended: Condvar::default() }
    }

    /// Waits until no thread uses the value, and takes it; `None` if the time is over before.
    pub(crate) fn take(&self, patience: Duration) -> Option<T> {
        let mut slot = self.slot.lock("take a value");
        if let Some(value) = slot.value.take() {
            return Some(value);
        }
        let deadline = Instant::now().checked_add(patience);
        slot.waiting = slot.waiting.saturating_add(1);
        let taken = loop {
            let now = Instant::now();
            let left = deadline.map_or(patience, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                break None;
            }
            slot = self.ended.wait_timeout(slot, left);
            if let Some(value) = slot.value.take() {
                break Some(value);
            }
        };
        slot.waiting = slot.waiting.saturating_sub(1);
        taken
    }

    /// Gives the value back.
    pub(crate) fn give_back(&self, value: T) {
        let mut slot = self.slot.lock("give a value back");
        slot.value = Some(value);
        let is_awaited = slot.waiting > 0;
        drop(slot);
        if is_awaited {
            self.ended.notify_one();
        }
    }
}
