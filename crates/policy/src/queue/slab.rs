//! Storage for waiting requests. Entries are reused, so a queue of steady length doesn't allocate.

use super::deadlines::DenseIndex;
use crate::ids::{RequestKey, ShapeClassId};
use crate::time::Time;
use crate::units::Rows;

/// The index of a slab entry.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SlabIndex(u32);

impl DenseIndex for SlabIndex {
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl SlabIndex {
    #[cfg(test)]
    pub(super) fn for_test(index: u32) -> SlabIndex {
        SlabIndex(index)
    }
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct QueuedRequest {
    pub(crate) key: RequestKey,
    pub(crate) rows: Rows,
    pub(crate) shape_class: ShapeClassId,
    pub(crate) enqueued: Time,
    /// The effective priority level.
    pub(super) level: u64,
    pub(super) list: LevelList,
    pub(super) previous: Option<SlabIndex>,
    pub(super) next: Option<SlabIndex>,
}

/// InTime → Delayed. Identifies which of its level's two lists contains a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum LevelList {
    /// The request has time left or no limit.
    InTime,
    /// The request's timeout expired, and it was moved back.
    Delayed,
}

/// The queued requests of all levels, by index.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestSlab {
    slots: Vec<Option<QueuedRequest>>,
    vacant: Vec<SlabIndex>,
}

impl RequestSlab {
    pub(super) fn insert(&mut self, waiting: QueuedRequest) -> SlabIndex {
        if let Some(index) = self.vacant.pop() {
            assert!(self.slots[index.index()].is_none(), "a vacant entry is empty");
            self.slots[index.index()] = Some(waiting);
            return index;
        }
        let index =
            SlabIndex(u32::try_from(self.slots.len()).expect("fewer than 2^32 requests wait"));
        self.slots.push(Some(waiting));
        index
    }

    pub(super) fn remove(&mut self, index: SlabIndex) -> QueuedRequest {
        let waiting = self.slots[index.index()].take().expect("the index is in use");
        self.vacant.push(index);
        waiting
    }

    pub(super) fn get(&self, index: SlabIndex) -> &QueuedRequest {
        self.slots[index.index()].as_ref().expect("the index is in use")
    }

    pub(super) fn get_mut(&mut self, index: SlabIndex) -> &mut QueuedRequest {
        self.slots[index.index()].as_mut().expect("the index is in use")
    }
}
