//! The order of service: by levels, in each by deadlines, and then by arrival.
//!
//! A request without a deadline is behind those of its level that have one. While the instances
//! are never idle it would wait for ever, so after [`PASSED_OVER_MAX`] batches the next one is of
//! such requests alone. The share of the others stays the larger one by far, whatever arrives.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use crate::queue::SlabIndex;
use crate::time::Time;
use crate::tuned::PASSED_OVER_MAX;

/// A place in the order of service.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct QueuePlace {
    pub(super) level: u64,
    /// [`Time::MAX`] is none.
    pub(super) deadline: Time,
    pub(super) arrival: u64,
}

/// The waiting requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceOrder {
    by_place: BTreeMap<QueuePlace, SlabIndex>,
    /// Those that have a deadline, by it alone, whatever their levels.
    by_deadline: BTreeMap<(Time, u64), SlabIndex>,
    /// The latest batches in a row that passed over the requests of their level without a
    /// deadline.
    passed_over: u32,
}

impl ServiceOrder {
    pub(super) fn insert(&mut self, place: QueuePlace, index: SlabIndex) {
        self.by_place.insert(place, index);
        if place.deadline != Time::MAX {
            self.by_deadline.insert((place.deadline, place.arrival), index);
        }
    }

    pub(super) fn remove(&mut self, place: QueuePlace) {
        self.by_place.remove(&place).expect("its place is in the order");
        self.by_deadline.remove(&(place.deadline, place.arrival));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// The earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<(Time, SlabIndex)> {
        self.by_deadline.first_key_value().map(|((deadline, _), index)| (*deadline, *index))
    }

    /// The requests of a part, in the order of service.
    pub(super) fn range<R: RangeBounds<QueuePlace>>(
        &self,
        part: R,
    ) -> impl Iterator<Item = (QueuePlace, SlabIndex)> + use<'_, R> {
        self.by_place.range(part).map(|(place, index)| (*place, *index))
    }

    /// The request with which the next batch begins.
    pub(super) fn first(&self) -> Option<(QueuePlace, SlabIndex)> {
        let first = self.range(..).next()?;
        let is_long = self.passed_over >= PASSED_OVER_MAX;
        let patient = if is_long { self.without_deadline(first.0.level) } else { None };
        Some(patient.unwrap_or(first))
    }

    /// Returns true if the request with which the next batch begins was passed over for long.
    pub(super) fn has_turn(&self, first: QueuePlace) -> bool {
        first.deadline == Time::MAX && self.passed_over >= PASSED_OVER_MAX
    }

    /// These requests, at least one, leave as a batch. They are not removed yet.
    pub(super) fn count_batch(&mut self, batch: &[(QueuePlace, SlabIndex)]) {
        if batch.iter().any(|(place, _)| place.deadline == Time::MAX) {
            self.passed_over = 0;
        } else if self.without_deadline(batch[0].0.level).is_some() {
            self.passed_over = self.passed_over.saturating_add(1);
        }
    }

    /// Returns true if any request has no deadline.
    pub(super) fn has_without_deadline(&self) -> bool {
        self.by_place.len() != self.by_deadline.len()
    }

    /// The oldest request of a level that has no deadline.
    fn without_deadline(&self, level: u64) -> Option<(QueuePlace, SlabIndex)> {
        if !self.has_without_deadline() {
            return None;
        }
        let from = QueuePlace { level, deadline: Time::MAX, arrival: 0 };
        self.range(from..).next().filter(|(place, _)| place.level == level)
    }
}
