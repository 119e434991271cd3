//! Sequences that wait for a slot, first come, first served, and the times at which they fail.

use std::collections::{BTreeMap, BTreeSet};

use crate::sequence::index::SequenceIndex;
use crate::time::Time;

#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    waiting: BTreeMap<u64, SequenceIndex>,
    failures: BTreeSet<(Time, SequenceIndex)>,
    failure_of: BTreeMap<SequenceIndex, Time>,
    arrivals: u64,
}

impl Backlog {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the sequence that has waited longest.
    pub(super) fn first(&self) -> Option<SequenceIndex> {
        self.waiting.first_key_value().map(|(_, index)| *index)
    }

    /// Adds the sequence behind all others and returns its number.
    pub(super) fn push(&mut self, index: SequenceIndex) -> u64 {
        let number = self.arrivals;
        self.arrivals += 1;
        self.waiting.insert(number, index);
        number
    }

    /// Removes the sequence that has waited longest.
    pub(super) fn pop(&mut self) -> Option<SequenceIndex> {
        let (_, index) = self.waiting.pop_first()?;
        self.set_failure(index, None);
        Some(index)
    }

    pub(super) fn remove(&mut self, number: u64, index: SequenceIndex) {
        let removed = self.waiting.remove(&number);
        assert_eq!(removed, Some(index), "a sequence keeps its number");
        self.set_failure(index, None);
    }

    /// Sets the time at which the sequence fails; `None` means never.
    pub(super) fn set_failure(&mut self, index: SequenceIndex, deadline: Option<Time>) {
        if let Some(earlier) = self.failure_of.remove(&index) {
            self.failures.remove(&(earlier, index));
        }
        if let Some(deadline) = deadline {
            self.failure_of.insert(index, deadline);
            self.failures.insert((deadline, index));
        }
    }

    /// Makes the sequence fail at the deadline, unless it fails earlier.
    pub(super) fn fail_no_later_than(&mut self, index: SequenceIndex, deadline: Time) {
        if self.failure_time(index).is_none_or(|earlier| deadline < earlier) {
            self.set_failure(index, Some(deadline));
        }
    }

    /// Returns the time at which the sequence fails; `None` means never.
    pub(super) fn failure_time(&self, index: SequenceIndex) -> Option<Time> {
        self.failure_of.get(&index).copied()
    }

    pub(super) fn next_failure(&self) -> Option<Time> {
        self.failures.first().map(|(deadline, _)| *deadline)
    }

    /// Returns the next sequence whose deadline has passed. It stays in the backlog.
    pub(super) fn pop_failed(&mut self, now: Time) -> Option<SequenceIndex> {
        let (deadline, index) = *self.failures.first()?;
        if deadline > now {
            return None;
        }
        self.set_failure(index, None);
        Some(index)
    }

    /// Returns all waiting sequences in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = SequenceIndex> {
        self.waiting.values().copied()
    }
}
