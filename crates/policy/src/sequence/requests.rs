//! The requests of all sequences, queued or in execution, and the order in
//! which a sequence's requests wait.
//!
//! Requests stand in a table by the low half of their key, which the driver
//! keeps dense, so that each is found in constant time.

use crate::ids::{BatchKey, RequestKey};
use crate::sequence::SequenceIndex;
use crate::time::Time;

/// A request's place in the table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct RequestIndex(u32);

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) key: RequestKey,
    pub(super) batch_key: BatchKey,
    /// When it arrived, or was rescheduled.
    pub(super) waits_since: Time,
    /// When it fails if its sequence still waits for a slot.
    pub(super) fails_at: Option<Time>,
    pub(super) start: bool,
    pub(super) end: bool,
    /// None once its sequence has ended before its execution did.
    pub(super) sequence: Option<SequenceIndex>,
    pub(super) state: RequestState,
    pub(super) previous: Option<RequestIndex>,
    pub(super) next: Option<RequestIndex>,
}

/// Queued → Executing, and back when it is rescheduled.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RequestState {
    Queued,
    Executing,
    /// In execution, and not to run again.
    Cancelled,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    table: Vec<Option<Request>>,
}

/// The low half of a key.
pub(super) fn low_half(key: u64) -> u32 {
    (key & 0xffff_ffff) as u32
}

impl RequestIndex {
    fn of(key: RequestKey) -> Self {
        RequestIndex(low_half(key.0))
    }

    fn place(self) -> usize {
        self.0 as usize
    }
}

impl Requests {
    pub(super) fn insert(&mut self, request: Request) -> RequestIndex {
        let index = RequestIndex::of(request.key);
        if self.table.len() <= index.place() {
            self.table.resize(index.place() + 1, None);
        }
        let place = &mut self.table[index.place()];
        assert!(place.is_none(), "{:?} is queued already", request.key);
        *place = Some(request);
        index
    }

    pub(super) fn find(&self, key: RequestKey) -> Option<RequestIndex> {
        let index = RequestIndex::of(key);
        let found = self.table.get(index.place())?.as_ref()?;
        (found.key == key).then_some(index)
    }

    pub(super) fn get(&self, index: RequestIndex) -> &Request {
        self.table[index.place()].as_ref().expect("the request is known")
    }

    pub(super) fn get_mut(&mut self, index: RequestIndex) -> &mut Request {
        self.table[index.place()].as_mut().expect("the request is known")
    }

    pub(super) fn remove(&mut self, index: RequestIndex) -> Request {
        self.table[index.place()].take().expect("the request is known")
    }
}

/// The requests of one sequence that wait, linked through the table.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct List {
    pub(super) first: Option<RequestIndex>,
    pub(super) last: Option<RequestIndex>,
    pub(super) len: usize,
}

impl List {
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

    /// Cuts the list before `index`; what comes from there on is returned in
    /// order.
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
        let mut cut = Vec::new();
        let mut next = Some(index);
        while let Some(index) = next {
            cut.push(index);
            let request = requests.get_mut(index);
            request.previous = None;
            next = request.next.take();
        }
        self.len -= cut.len();
        cut
    }

    /// The requests in order.
    pub(super) fn iter<'a>(
        &self,
        requests: &'a Requests,
    ) -> impl Iterator<Item = RequestIndex> + use<'a> {
        std::iter::successors(self.first, |index| requests.get(*index).next)
    }
}
