//! A first-in, first-out list that is linked through the slab and supports constant-time removal
//! from the middle.

use super::slab::{RequestSlab, SlabIndex};

#[derive(Clone, Debug, Default)]
pub(super) struct QueueList {
    head: Option<SlabIndex>,
    tail: Option<SlabIndex>,
    len: usize,
}

impl QueueList {
    pub(super) fn head(&self) -> Option<SlabIndex> {
        self.head
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push_back(&mut self, slab: &mut RequestSlab, index: SlabIndex) {
        let waiting = slab.get_mut(index);
        assert!(waiting.previous.is_none() && waiting.next.is_none(), "a request is in one list");
        waiting.previous = self.tail;
        match self.tail {
            Some(tail) => slab.get_mut(tail).next = Some(index),
            None => self.head = Some(index),
        }
        self.tail = Some(index);
        self.len += 1;
    }

    pub(super) fn unlink(&mut self, slab: &mut RequestSlab, index: SlabIndex) {
        let waiting = slab.get_mut(index);
        let (previous, next) = (waiting.previous.take(), waiting.next.take());
        match previous {
            Some(previous) => slab.get_mut(previous).next = next,
            None => {
                assert_eq!(self.head, Some(index), "the first of a list is its head");
                self.head = next;
            }
        }
        match next {
            Some(next) => slab.get_mut(next).previous = previous,
            None => {
                assert_eq!(self.tail, Some(index), "the last of a list is its tail");
                self.tail = previous;
            }
        }
        self.len -= 1;
    }
}
