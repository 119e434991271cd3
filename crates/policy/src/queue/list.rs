//! First in, first out, with removal from the middle in constant time: a list
//! linked through the slab. A cancelled request leaves no gap behind.

use super::slab::{Slab, SlotId};

#[derive(Clone, Debug, Default)]
pub(super) struct List {
    head: Option<SlotId>,
    tail: Option<SlotId>,
    len: usize,
}

impl List {
    pub(super) fn head(&self) -> Option<SlotId> {
        self.head
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push_back(&mut self, slab: &mut Slab, slot: SlotId) {
        let waiting = slab.get_mut(slot);
        assert!(waiting.previous.is_none() && waiting.next.is_none(), "it is in one list only");
        waiting.previous = self.tail;
        match self.tail {
            Some(tail) => slab.get_mut(tail).next = Some(slot),
            None => self.head = Some(slot),
        }
        self.tail = Some(slot);
        self.len += 1;
    }

    pub(super) fn unlink(&mut self, slab: &mut Slab, slot: SlotId) {
        let waiting = slab.get_mut(slot);
        let (previous, next) = (waiting.previous.take(), waiting.next.take());
        match previous {
            Some(previous) => slab.get_mut(previous).next = next,
            None => {
                assert_eq!(self.head, Some(slot), "the first of a list is its head");
                self.head = next;
            }
        }
        match next {
            Some(next) => slab.get_mut(next).previous = previous,
            None => {
                assert_eq!(self.tail, Some(slot), "the last of a list is its tail");
                self.tail = previous;
            }
        }
        self.len -= 1;
    }
}
