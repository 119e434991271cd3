//! Copies that begin before a thread waits for them.
//!
//! Models are loaded by few threads, but a store answers many requests at a time. So the files
//! of small models that are about to be loaded are copied while these wait for a thread. Large
//! ones gain nothing from it: their parts are read side by side anyway.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use galatea_stdx::Lock;

use super::{CopiesUnderWay, Download};

/// The maximum number of bytes of a repository in a bucket that are copied before a thread
/// waits for them.
///
/// They are on the disk for nothing if the models are not loaded after all. With more bytes
/// the network is the limit, not the number of answers that are waited for.
pub(super) const BUCKET_AHEAD_BYTES_MAX: u64 = 256 << 20;

/// A copy that can begin before a thread waits for it.
pub(super) trait BeginsEarly: fmt::Debug + Send + Sync {
    /// Begins if that is worth it and there is room for its bytes. Returns whether there is
    /// nothing left to begin.
    fn begin_early(&self, reserve: &dyn Fn(u64) -> Option<Reservation>) -> bool;
}

/// The copies of one repository that begin early. They have at most
/// `BUCKET_AHEAD_BYTES_MAX` that no thread waits for yet; others begin when there is room.
#[derive(Clone, Debug, Default)]
pub(super) struct AheadQueue(Arc<Lock<AheadState>>);

#[derive(Debug, Default)]
struct AheadState {
    /// Models that are gone by the time that it is their turn are left out.
    waiting: VecDeque<Weak<dyn BeginsEarly>>,
    /// The bytes of copies that began early, until a thread has taken them.
    byte_size: u64,
}

impl AheadQueue {
    /// Copies a model's files early if there is room, now or later.
    pub(super) fn add(&self, copy: Weak<dyn BeginsEarly>) {
        self.0.lock("queue a copy").waiting.push_back(copy);
        self.go_on();
    }

    /// Begins what there is room for.
    pub(super) fn go_on(&self) {
        loop {
            let next = self.0.lock("take a copy from the queue").waiting.pop_front();
            let Some(next) = next else { return };
            // No copy is dropped under the lock: it takes the lock then.
            let Some(copy) = next.upgrade() else { continue };
            if !copy.begin_early(&|byte_size| self.reserve(byte_size)) {
                self.0.lock("put a copy back").waiting.push_front(next);
                return;
            }
        }
    }

    fn reserve(&self, byte_size: u64) -> Option<Reservation> {
        let mut state = self.0.lock("reserve room for a copy");
        let sum = state.byte_size.saturating_add(byte_size);
        if sum > BUCKET_AHEAD_BYTES_MAX {
            return None;
        }
        state.byte_size = sum;
        Some(Reservation { queue: self.clone(), byte_size })
    }
}

/// The room of one copy, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    queue: AheadQueue,
    byte_size: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock("give back the room of a copy");
        state.byte_size = state.byte_size.saturating_sub(self.byte_size);
    }
}

/// The beginning of a model's copy: before a thread waited for it, or not.
#[derive(Debug, Default)]
pub(super) enum EarlyCopy {
    #[default]
    NotBegun,
    Begun(BegunCopy),
    /// A thread has copied the files, or does so.
    Over,
}

/// A copy that is under way.
pub(super) struct BegunCopy {
    pub(super) downloads: Vec<Download>,
    pub(super) under_way: CopiesUnderWay,
    pub(super) _reservation: Reservation,
}

impl fmt::Debug for BegunCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BegunCopy").field("downloads", &self.downloads).finish_non_exhaustive()
    }
}
