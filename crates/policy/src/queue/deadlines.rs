//! A binary heap of deadlines that tracks the position of each entry.
//!
//! An entry is removed together with its item, so the heap is as large as the queue, regardless of
//! the timeouts.

use crate::time::Time;

/// An item that indexes a table. Items are numbered densely from 0.
pub(crate) trait DenseIndex: Copy + Ord + std::fmt::Debug {
    /// Returns the item's number.
    fn index(self) -> usize;
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct DeadlineEntry<P> {
    deadline: Time,
    arrival: u64,
    item: P,
}

#[derive(Clone, Debug)]
pub(crate) struct Deadlines<P> {
    heap: Vec<DeadlineEntry<P>>,
    /// The heap position of each item's entry.
    positions: Vec<Option<usize>>,
}

impl<P> Default for Deadlines<P> {
    fn default() -> Self {
        Deadlines { heap: Vec::new(), positions: Vec::new() }
    }
}

impl<P: DenseIndex> Deadlines<P> {
    pub(crate) fn insert(&mut self, deadline: Time, arrival: u64, item: P) {
        if self.positions.len() <= item.index() {
            self.positions.resize(item.index() + 1, None);
        }
        assert!(self.positions[item.index()].is_none(), "an item has one deadline");
        self.heap.push(DeadlineEntry { deadline, arrival, item });
        self.positions[item.index()] = Some(self.heap.len() - 1);
        self.sift_up(self.heap.len() - 1);
    }

    /// Removes the item's deadline, if it has one.
    pub(crate) fn remove(&mut self, item: P) {
        let Some(position) = self.positions.get_mut(item.index()).and_then(Option::take) else {
            return;
        };
        let removed = self.heap.swap_remove(position);
        assert_eq!(removed.item, item, "positions follow their entries");
        if position < self.heap.len() {
            self.positions[self.heap[position].item.index()] = Some(position);
            self.sift_up(position);
            self.sift_down(position);
        }
    }

    /// Returns the item's deadline, if it has one.
    pub(crate) fn of(&self, item: P) -> Option<Time> {
        let position = self.positions.get(item.index()).copied().flatten()?;
        Some(self.heap[position].deadline)
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|entry| entry.deadline)
    }

    /// Removes the earliest deadline that has passed; ties are broken by arrival order.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<P> {
        let first = *self.heap.first()?;
        if first.deadline > now {
            return None;
        }
        self.remove(first.item);
        Some(first.item)
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
        self.positions[self.heap[one].item.index()] = Some(one);
        self.positions[self.heap[other].item.index()] = Some(other);
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::SlabIndex;
    use super::*;

    #[test]
    fn deadlines_are_popped_by_time_then_arrival_after_removals() {
        // Uses 64 deadlines in a fixed scrambled order with many ties and removes every third one.
        let mut deadlines = Deadlines::default();
        let mut expected = Vec::new();
        for index in 0..64_u32 {
            let deadline = Time(u64::from(index * 37 % 16));
            // The item order is the reverse of the arrival order and must not break ties.
            deadlines.insert(deadline, u64::from(index), SlabIndex::for_test(63 - index));
            if index % 3 != 0 {
                expected.push((deadline, index));
            }
        }
        for index in (0..64).step_by(3) {
            deadlines.remove(SlabIndex::for_test(63 - index));
        }
        expected.sort_unstable();
        for (deadline, index) in expected {
            assert_eq!(deadlines.next(), Some(deadline));
            assert_eq!(deadlines.pop_due(deadline), Some(SlabIndex::for_test(63 - index)));
        }
        assert_eq!(deadlines.next(), None);
    }

    /// The last entry replaces the removed one, beneath a later deadline.
    #[test]
    fn a_removal_may_move_an_entry_up() {
        let mut deadlines = Deadlines::default();
        for (index, deadline) in [0, 10, 1, 11, 12, 2, 3].into_iter().enumerate() {
            let slot = SlabIndex::for_test(u32::try_from(index).unwrap());
            deadlines.insert(Time(deadline), 0, slot);
        }
        deadlines.remove(SlabIndex::for_test(3));
        for (deadline, index) in [(20, 7), (21, 8), (22, 9)] {
            deadlines.insert(Time(deadline), 0, SlabIndex::for_test(index));
        }
        let due = std::iter::from_fn(|| {
            let next = deadlines.next()?;
            deadlines.pop_due(next);
            Some(next.0)
        });
        assert_eq!(due.collect::<Vec<_>>(), [0, 1, 2, 3, 10, 12, 20, 21, 22]);
    }

    #[test]
    fn a_deadline_is_due_at_its_time_and_not_before() {
        let mut deadlines = Deadlines::default();
        deadlines.insert(Time(10), 0, SlabIndex::for_test(0));
        assert_eq!(deadlines.pop_due(Time(9)), None);
        assert_eq!(deadlines.pop_due(Time(10)), Some(SlabIndex::for_test(0)));
        assert_eq!(deadlines.pop_due(Time(10)), None);
    }
}
