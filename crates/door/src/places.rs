//! Places for connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts the places of one limit and how many of them are taken.
pub(crate) struct SlotCount {
    max: usize,
    taken: AtomicUsize,
}

impl SlotCount {
    pub(crate) const fn new(max: usize) -> Self {
        Self { max, taken: AtomicUsize::new(0) }
    }

    /// The number of taken places.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for SlotCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.taken(), self.max)
    }
}

/// The places of one connection, one of each kind. They are returned only once.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSlots {
    counts: Vec<Arc<SlotCount>>,
    is_released: AtomicBool,
}

impl ConnectionSlots {
    /// Takes a place if one is free. Returns true on success.
    pub(crate) fn take_slot(&mut self, count: &Arc<SlotCount>) -> bool {
        let (ordering, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let one_more = |taken: usize| (taken < count.max).then(|| taken.saturating_add(1));
        let has_place = count.taken.fetch_update(ordering, failure, one_more).is_ok();
        if has_place {
            self.counts.push(count.clone());
        }
        has_place
    }

    /// Returns the places.
    pub(crate) fn release(&self) {
        if !self.is_released.swap(true, Ordering::AcqRel) {
            for count in &self.counts {
                count.taken.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

impl Drop for ConnectionSlots {
    fn drop(&mut self) {
        self.release();
    }
}
