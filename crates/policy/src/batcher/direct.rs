//! The batcher for the direct strategy, in which each slot of the instance is a row of the batch.
//!
//! A batch covers rows 0 through the row of the highest ready slot. Slots without a request become
//! padding rows. Ready requests may have different shape classes. In that case the batch takes the
//! class of the longest-waiting request, so that no slot starves, and the rows of the other classes
//! become padding too.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::CloseReason;
use crate::batcher::decision::{BatchDecision, Intake};
use crate::ids::ShapeClassId;
use crate::time::Time;

/// Forms batches for one instance. `R` identifies a request.
#[derive(Clone, Debug)]
pub(crate) struct DirectBatcher<R> {
    max_queue_delay_ns: u64,
    minimum_ready_slots: u32,
    ready: BTreeMap<u32, ReadyRequest<R>>,
    /// The ready slots by waiting time, longest first.
    by_age: BTreeSet<(Time, u32)>,
}

/// The ready request of a slot.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ReadyRequest<R> {
    pub(crate) request: R,
    pub(crate) waits_since: Time,
    pub(crate) shape_class: ShapeClassId,
}

impl<R: Copy> DirectBatcher<R> {
    pub(crate) fn new(max_queue_delay_ns: u64, minimum_ready_slots: u32) -> Self {
        DirectBatcher {
            max_queue_delay_ns,
            minimum_ready_slots,
            ready: BTreeMap::new(),
            by_age: BTreeSet::new(),
        }
    }

    /// Adds a request to a slot that has none.
    pub(crate) fn insert(&mut self, slot: u32, ready: ReadyRequest<R>) {
        self.by_age.insert((ready.waits_since, slot));
        let previous = self.ready.insert(slot, ready);
        assert!(previous.is_none(), "slot {slot} is ready already");
    }

    /// Removes a slot's request.
    pub(crate) fn remove(&mut self, slot: u32) {
        let ready = self.ready.remove(&slot).expect("the slot is ready");
        self.by_age.remove(&(ready.waits_since, slot));
    }

    /// Decides whether to dispatch a batch now or to wait.
    pub(crate) fn decide(&self, now: Time, intake: Intake) -> BatchDecision {
        let Some((oldest, _)) = self.by_age.first() else { return BatchDecision::Empty };
        let requests = self.ready.len();
        let rows = u32::try_from(requests).expect("slots are numbered by u32");
        let is_over = now.saturating_since(*oldest) >= self.max_queue_delay_ns;
        let reason = match intake {
            _ if self.max_queue_delay_ns == 0 => Some(CloseReason::InstanceIdle),
            _ if rows >= self.minimum_ready_slots => Some(CloseReason::ReadySlots),
            _ if is_over => Some(CloseReason::Delay),
            Intake::Closed => Some(CloseReason::Unloading),
            Intake::Open => None,
        };
        if let Some(reason) = reason {
            return BatchDecision::Close { requests, rows, reason };
        }
        BatchDecision::Wait {
            until: oldest.deadline_after(self.max_queue_delay_ns),
            rows,
            next_preferred: self.minimum_ready_slots,
        }
    }

    /// Removes and returns the next batch: one request per row, `None` for padding.
    pub(crate) fn take_batch(&mut self) -> Vec<Option<R>> {
        let (_, oldest) = self.by_age.first().expect("a slot is ready");
        let shape_class = self.ready[oldest].shape_class;
        let (highest, _) = self.ready.last_key_value().expect("a slot is ready");
        let rows = *highest as usize + 1;
        let mut batch = vec![None; rows];
        self.ready.retain(|slot, ready| {
            let runs = ready.shape_class == shape_class;
            if runs {
                batch[*slot as usize] = Some(ready.request);
                self.by_age.remove(&(ready.waits_since, *slot));
            }
            !runs
        });
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batcher(delay: u64, minimum: u32, ready: &[(u32, u64, u32)]) -> DirectBatcher<u32> {
        let mut batcher = DirectBatcher::new(delay, minimum);
        for &(slot, waits_since, shape_class) in ready {
            let waits_since = Time(waits_since);
            let shape_class = ShapeClassId(shape_class);
            batcher.insert(slot, ReadyRequest { request: slot + 100, waits_since, shape_class });
        }
        batcher
    }

    #[test]
    fn a_batch_covers_the_rows_up_to_the_highest_ready_slot() {
        let mut batcher = batcher(0, 0, &[(1, 5, 0), (3, 4, 0)]);
        let close =
            BatchDecision::Close { requests: 2, rows: 2, reason: CloseReason::InstanceIdle };
        assert_eq!(batcher.decide(Time(9), Intake::Open), close);
        assert_eq!(batcher.take_batch(), [None, Some(101), None, Some(103)]);
        assert_eq!(batcher.decide(Time(9), Intake::Open), BatchDecision::Empty);
    }

    #[test]
    fn the_longest_waiting_request_chooses_the_shape_class() {
        let mut batcher = batcher(0, 0, &[(0, 5, 1), (1, 4, 2), (2, 6, 1), (3, 7, 2)]);
        assert_eq!(batcher.take_batch(), [None, Some(101), None, Some(103)]);
        assert_eq!(batcher.take_batch(), [Some(100), None, Some(102)]);
    }

    #[test]
    fn a_batch_waits_for_ready_slots_until_the_delay_is_over() {
        let decision = |minimum, now, intake| {
            batcher(10, minimum, &[(0, 5, 0), (2, 7, 0)]).decide(Time(now), intake)
        };
        let close = |reason| BatchDecision::Close { requests: 2, rows: 2, reason };
        let wait = BatchDecision::Wait { until: Some(Time(15)), rows: 2, next_preferred: 3 };
        assert_eq!(decision(3, 14, Intake::Open), wait);
        assert_eq!(decision(3, 15, Intake::Open), close(CloseReason::Delay));
        assert_eq!(decision(3, 14, Intake::Closed), close(CloseReason::Unloading));
        assert_eq!(decision(2, 7, Intake::Open), close(CloseReason::ReadySlots));
        assert_eq!(decision(0, 7, Intake::Open), close(CloseReason::ReadySlots));
    }
}
