//! Early copies: copies that begin before any thread waits for them.
//!
//! Few threads load models, but a store can serve many requests concurrently. The files of small
//! models that are about to be loaded are therefore copied while the models wait for a thread.
//! Large models gain nothing from this, because their parts are read in parallel anyway.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use galatea_stdx::Lock;

use super::{InFlightDownloads, ObjectDownload};

/// The maximum number of bytes in a bucket repository that are copied before a thread waits for
/// them.
///
/// These bytes waste disk space if the models are not loaded after all. Beyond this size, the
/// bottleneck is the network, not the number of requests in flight.
pub(super) const BUCKET_AHEAD_BYTES_MAX: u64 = 256 << 20;

/// A copy that can begin before a thread waits for it.
pub(super) trait EarlyStart: fmt::Debug + Send + Sync {
    /// Begins the copy if it is worthwhile and its bytes fit within the limit. Returns true if
    /// nothing is left to begin.
    fn begin_early(&self, reserve: &dyn Fn(u64) -> Option<Reservation>) -> bool;
}

/// The early copies of one repository. At most `BUCKET_AHEAD_BYTES_MAX` of their bytes are not yet
/// awaited by a thread; more copies begin once bytes are released.
#[derive(Clone, Debug, Default)]
pub(super) struct AheadQueue(Arc<Lock<AheadState>>);

#[derive(Debug, Default)]
struct AheadState {
    /// The copies that wait for others to release bytes. Models that are dropped before their turn
    /// are skipped.
    waiting: VecDeque<Weak<dyn EarlyStart>>,
    /// The bytes of early copies that no thread has taken over yet.
    byte_size: u64,
}

impl AheadQueue {
    /// Copies a model's files early, as soon as they fit within the limit.
    pub(super) fn add(&self, copy: Weak<dyn EarlyStart>) {
        self.0.lock("queue a copy").waiting.push_back(copy);
        self.go_on();
    }

    /// Begins as many copies as fit within the limit.
    pub(super) fn go_on(&self) {
        loop {
            let next = self.0.lock("take a copy from the queue").waiting.pop_front();
            let Some(next) = next else { return };
            // Dropping a copy takes this lock, so no copy may be dropped while the lock is held.
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

/// The bytes reserved for one copy, released on drop.
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

/// The state of a model's early copy.
#[derive(Debug, Default)]
pub(super) enum EarlyCopy {
    #[default]
    NotBegun,
    Begun(BegunCopy),
    /// A thread has copied the files, or is doing so.
    Over,
}

/// A copy in progress.
pub(super) struct BegunCopy {
    pub(super) downloads: Vec<ObjectDownload>,
    pub(super) under_way: InFlightDownloads,
    pub(super) _reservation: Reservation,
}

impl fmt::Debug for BegunCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BegunCopy").field("downloads", &self.downloads).finish_non_exhaustive()
    }
}
