//! The requests of all sequences, queued or executing, and the order of each sequence's queue.
//!
//! The low half of a request's key is its index in a table. The driver keeps these indices dense,
//! so the table is as small as the driver's slab, and a lookup takes constant time.

use crate::ids::{RequestKey, ShapeClassId};
use crate::sequence::index::SequenceIndex;
use crate::time::Time;

/// A request's index in the table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct RequestIndex(u32);

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) key: RequestKey,
    pub(super) shape_class: ShapeClassId,
    /// The time at which the request arrived or was rescheduled.
    pub(super) waits_since: Time,
    /// The time at which the request fails if its sequence is waiting for a slot.
    pub(super) fails_at: Option<Time>,
    pub(super) start: bool,
    pub(super) end: bool,
    /// The request's sequence, or `None` if it ended before the execution did.
    pub(super) sequence: Option<SequenceIndex>,
    pub(super) state: RequestState,
    pub(super) previous: Option<RequestIndex>,
    pub(super) next: Option<RequestIndex>,
}

/// Queued → Executing → Queued when rescheduled. Executing → Cancelled. A request can be deleted in
/// any state.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RequestState {
    Queued,
    Executing,
    /// The request is executing and won't be rescheduled.
    Cancelled,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    table: Vec<Option<Request>>,
}

/// Returns the low half of a key, which is its index in the driver's slab.
pub(super) fn slab_index(key: u64) -> u32 {
    (key & 0xffff_ffff) as u32
}

impl RequestIndex {
    fn of(key: RequestKey) -> Self {
        RequestIndex(slab_index(key.0))
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

impl Requests {
    pub(super) fn insert(&mut self, request: Request) -> RequestIndex {
        let index = RequestIndex::of(request.key);
        if self.table.len() <= index.index() {
            self.table.resize(index.index() + 1, None);
        }
        let entry = &mut self.table[index.index()];
        assert!(entry.is_none(), "{:?} is queued already", request.key);
        *entry = Some(request);
        index
    }

    pub(super) fn find(&self, key: RequestKey) -> Option<RequestIndex> {
        let index = RequestIndex::of(key);
        let found = self.table.get(index.index())?.as_ref()?;
        (found.key == key).then_some(index)
    }

    pub(super) fn get(&self, index: RequestIndex) -> &Request {
        self.table[index.index()].as_ref().expect("the request is known")
    }

    pub(super) fn get_mut(&mut self, index: RequestIndex) -> &mut Request {
        self.table[index.index()].as_mut().expect("the request is known")
    }

    pub(super) fn remove(&mut self, index: RequestIndex) -> Request {
        self.table[index.index()].take().expect("the request is known")
    }
}

/// The queued requests of one sequence, linked through the table.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct SequenceQueue {
    pub(super) first: Option<RequestIndex>,
    pub(super) last: Option<RequestIndex>,
    pub(super) len: usize,
}

impl SequenceQueue {
    pub(super) fn push_back(&mut self, requests: &mut Requests, index: RequestIndex) {
        requests.get_mut(index).previous = self.last;
        match self.last {
            Some(last) => requests.get_mut(last).next = Some(index),
            None => self.first = Some(index),
        }
        self.last = Some(index);
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, requests: &mut Requests, index: RequestIndex) {
        requests.get_mut(index).next = self.first;
        match self.first {
            Some(first) => requests.get_mut(first).previous = Some(index),
            None => self.last = Some(index),
        }
        self.first = Some(index);
        self.len += 1;
    }

    pub(super) fn pop_front(&mut self, requests: &mut Requests) -> Option<RequestIndex> {
        let index = self.first?;
        self.first = requests.get_mut(index).next.take();
        match self.first {
            Some(first) => requests.get_mut(first).previous = None,
            None => self.last = None,
        }
        self.len -= 1;
        Some(index)
    }

    /// Removes and returns the requests from `index` on, in order.
    pub(super) fn split_off(
        &mut self,
        requests: &mut Requests,
        index: RequestIndex,
    ) -> Vec<RequestIndex> {
        self.last = requests.get_mut(index).previous.take();
        match self.last {
            Some(last) => requests.get_mut(last).next = None,
            None => self.first = None,
        }
        let mut removed = Vec::new();
        let mut next = Some(index);
        while let Some(index) = next {
            removed.push(index);
            let request = requests.get_mut(index);
            request.previous = None;
            next = request.next.take();
        }
        self.len -= removed.len();
        removed
    }

    /// Returns the requests in order.
    pub(super) fn iter<'a>(
        &self,
        requests: &'a Requests,
    ) -> impl Iterator<Item = RequestIndex> + use<'a> {
        std::iter::successors(self.first, |index| requests.get(*index).next)
    }
}
