//! Where waiting requests are kept: slots that are reused, so that a queue of
//! steady length allocates nothing.

use super::deadlines::Place;
use crate::ids::{BatchKey, RequestKey};
use crate::time::Time;

/// A slot of the slab.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlotId(u32);

impl Place for SlotId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl SlotId {
    #[cfg(test)]
    pub(super) fn for_test(index: u32) -> SlotId {
        SlotId(index)
    }
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) key: RequestKey,
    pub(crate) rows: u32,
    pub(crate) batch_key: BatchKey,
    pub(crate) enqueued: Time,
    /// Its effective level.
    pub(super) level: u64,
    pub(super) lane: WaitingLane,
    pub(super) previous: Option<SlotId>,
    pub(super) next: Option<SlotId>,
}

/// Which of its level's two lists a request is in. It moves once at most.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum WaitingLane {
    /// It has time left, or no limit.
    InTime,
    /// Its time is up and it was moved back.
    Delayed,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    slots: Vec<Option<Waiting>>,
    vacant: Vec<SlotId>,
}

impl Slab {
    pub(super) fn insert(&mut self, waiting: Waiting) -> SlotId {
        if let Some(slot) = self.vacant.pop() {
            assert!(self.slots[slot.index()].is_none(), "a vacant slot is empty");
            self.slots[slot.index()] = Some(waiting);
            return slot;
        }
        let slot = SlotId(u32::try_from(self.slots.len()).expect("fewer than 2^32 requests wait"));
        self.slots.push(Some(waiting));
        slot
    }

    pub(super) fn remove(&mut self, slot: SlotId) -> Waiting {
        let waiting = self.slots[slot.index()].take().expect("the slot is in use");
        self.vacant.push(slot);
        waiting
    }

    pub(super) fn get(&self, slot: SlotId) -> &Waiting {
        self.slots[slot.index()].as_ref().expect("the slot is in use")
    }

    pub(super) fn get_mut(&mut self, slot: SlotId) -> &mut Waiting {
        self.slots[slot.index()].as_mut().expect("the slot is in use")
    }
}
