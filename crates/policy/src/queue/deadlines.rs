//! The next deadline, and every deadline removable: a binary heap that knows
//! where each slot's entry is. Nothing stale stays in it, so its size is that
//! of the queue however long the timeouts are.

use crate::time::Time;

/// What has a deadline: something with a small number of its own.
pub(crate) trait Place: Copy + Ord + std::fmt::Debug {
    /// Its number.
    fn index(self) -> usize;
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry<P> {
    deadline: Time,
    arrival: u64,
    slot: P,
}

#[derive(Clone, Debug)]
pub(crate) struct Deadlines<P> {
    heap: Vec<Entry<P>>,
    /// For each slot, where its entry is.
    positions: Vec<Option<usize>>,
}

impl<P> Default for Deadlines<P> {
    fn default() -> Self {
        Deadlines { heap: Vec::new(), positions: Vec::new() }
    }
}

impl<P: Place> Deadlines<P> {
    pub(crate) fn insert(&mut self, deadline: Time, arrival: u64, slot: P) {
        if self.positions.len() <= slot.index() {
            self.positions.resize(slot.index() + 1, None);
        }
        assert!(self.positions[slot.index()].is_none(), "a slot has one deadline");
        self.heap.push(Entry { deadline, arrival, slot });
        self.positions[slot.index()] = Some(self.heap.len() - 1);
        self.sift_up(self.heap.len() - 1);
    }

    /// Forgets the slot's deadline, if it has one here.
    pub(crate) fn remove(&mut self, slot: P) {
        let Some(position) = self.positions.get_mut(slot.index()).and_then(Option::take) else {
            return;
        };
        let removed = self.heap.swap_remove(position);
        assert_eq!(removed.slot, slot, "positions follow their entries");
        if position < self.heap.len() {
            self.positions[self.heap[position].slot.index()] = Some(position);
            self.sift_up(position);
            self.sift_down(position);
        }
    }

    /// The slot's deadline, if it has one here.
    pub(crate) fn of(&self, slot: P) -> Option<Time> {
        let position = self.positions.get(slot.index()).copied().flatten()?;
        Some(self.heap[position].deadline)
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|entry| entry.deadline)
    }

    /// Takes out the earliest deadline that has come; ties in order of arrival.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<P> {
        let first = *self.heap.first()?;
        if first.deadline > now {
            return None;
        }
        self.remove(first.slot);
        Some(first.slot)
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent] <= self.heap[position] {
                return;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.heap.len() && self.heap[right] < self.heap[left] {
                right
            } else {
                left
            };
            if self.heap[position] <= self.heap[child] {
                return;
            }
            self.swap(position, child);
            position = child;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.positions[self.heap[one].slot.index()] = Some(one);
        self.positions[self.heap[other].slot.index()] = Some(other);
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::SlotId;
    use super::*;

    #[test]
    fn pops_by_deadline_then_arrival_whatever_was_removed() {
        // A fixed scramble of 64 deadlines with many ties; every third is removed.
        let mut deadlines = Deadlines::default();
        let mut expected = Vec::new();
        for index in 0..64_u32 {
            let deadline = Time(u64::from(index * 37 % 16));
            // Slots against the order of arrival: they must not break ties.
            deadlines.insert(deadline, u64::from(index), SlotId::for_test(63 - index));
            if index % 3 != 0 {
                expected.push((deadline, index));
            }
        }
        for index in (0..64).step_by(3) {
            deadlines.remove(SlotId::for_test(63 - index));
        }
        expected.sort_unstable();
        for (deadline, index) in expected {
            assert_eq!(deadlines.next(), Some(deadline));
            assert_eq!(deadlines.pop_due(deadline), Some(SlotId::for_test(63 - index)));
        }
        assert_eq!(deadlines.next(), None);
    }

    /// The last entry takes the place of the one removed, below a later deadline.
    #[test]
    fn a_removal_may_lift_an_entry() {
        let mut deadlines = Deadlines::default();
        for (index, deadline) in [0, 10, 1, 11, 12, 2, 3].into_iter().enumerate() {
            let slot = SlotId::for_test(u32::try_from(index).unwrap());
            deadlines.insert(Time(deadline), 0, slot);
        }
        deadlines.remove(SlotId::for_test(3));
        for (deadline, index) in [(20, 7), (21, 8), (22, 9)] {
            deadlines.insert(Time(deadline), 0, SlotId::for_test(index));
        }
        let due = std::iter::from_fn(|| {
            let next = deadlines.next()?;
            deadlines.pop_due(next);
            Some(next.0)
        });
        assert_eq!(due.collect::<Vec<_>>(), [0, 1, 2, 3, 10, 12, 20, 21, 22]);
    }

    #[test]
    fn a_deadline_is_due_when_its_time_has_come_and_not_before() {
        let mut deadlines = Deadlines::default();
        deadlines.insert(Time(10), 0, SlotId::for_test(0));
        assert_eq!(deadlines.pop_due(Time(9)), None);
        assert_eq!(deadlines.pop_due(Time(10)), Some(SlotId::for_test(0)));
        assert_eq!(deadlines.pop_due(Time(10)), None);
    }
}
