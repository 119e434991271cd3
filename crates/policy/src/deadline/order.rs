//! The service order: by level, then by deadline, then by arrival.
//!
//! Within a level, requests without a deadline follow those that have one. If the instances are
//! never idle, they would wait forever, so after [`PASSED_OVER_MAX`] batches the next batch
//! contains only such requests. Requests with deadlines still get by far the larger share,
//! regardless of the load.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use crate::queue::SlabIndex;
use crate::time::Time;
use crate::tuned::PASSED_OVER_MAX;

/// A place in the service order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct QueuePlace {
    pub(super) level: u64,
    /// [`Time::MAX`] means no deadline.
    pub(super) deadline: Time,
    pub(super) arrival: u64,
}

/// The waiting requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceOrder {
    by_place: BTreeMap<QueuePlace, SlabIndex>,
    /// The requests that have a deadline, ordered only by deadline, across all levels.
    by_deadline: BTreeMap<(Time, u64), SlabIndex>,
    /// The number of consecutive batches that passed over the requests without a deadline at their
    /// level.
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

    /// Returns the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<(Time, SlabIndex)> {
        self.by_deadline.first_key_value().map(|((deadline, _), index)| (*deadline, *index))
    }

    /// Returns the requests in a part of the order, in service order.
    pub(super) fn range<R: RangeBounds<QueuePlace>>(
        &self,
        part: R,
    ) -> impl Iterator<Item = (QueuePlace, SlabIndex)> + use<'_, R> {
        self.by_place.range(part).map(|(place, index)| (*place, *index))
    }

    /// Returns the request that the next batch begins with.
    pub(super) fn first(&self) -> Option<(QueuePlace, SlabIndex)> {
        let first = self.range(..).next()?;
        let is_long = self.passed_over >= PASSED_OVER_MAX;
        let patient = if is_long { self.without_deadline(first.0.level) } else { None };
        Some(patient.unwrap_or(first))
    }

    /// Returns true if the request that the next batch begins with has been passed over for long
    /// enough.
    pub(super) fn has_turn(&self, first: QueuePlace) -> bool {
        first.deadline == Time::MAX && self.passed_over >= PASSED_OVER_MAX
    }

    /// Records that these requests, at least one, leave as a batch. They aren't removed yet.
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

    /// Returns the oldest request without a deadline at a level.
    fn without_deadline(&self, level: u64) -> Option<(QueuePlace, SlabIndex)> {
        if !self.has_without_deadline() {
            return None;
        }
        let from = QueuePlace { level, deadline: Time::MAX, arrival: 0 };
        self.range(from..).next().filter(|(place, _)| place.level == level)
    }
}
