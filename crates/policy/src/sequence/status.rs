//! The reasons why each slot and each sequence in the backlog waits.

use crate::ids::{InstanceId, RequestKey};
use crate::lane_pool::LanePool;
use crate::sequence::{Placement, Sequence, SequenceBatcher, SequenceIndex, Slot};
use crate::status::{
    RequestWaitReason, SchedulerStatus, SequenceBatcherStatus, SequenceSlotStatus,
    SequenceSlotWaitReason, WaitingSequenceStatus,
};

impl SequenceBatcher {
    /// Returns the status of all slots and the backlog. The cost is O(instances + reported rows).
    /// Not intended for the hot path.
    pub(crate) fn status(&self, lanes: &LanePool) -> SequenceBatcherStatus {
        let occupied = self.slots.sequences().take(SchedulerStatus::ROWS_MAX);
        let describe = |(slot, index)| self.slot_status(index, self.get(index), slot, lanes);
        let backlog = self.backlog.iter().take(SchedulerStatus::ROWS_MAX).map(|index| {
            WaitingSequenceStatus {
                sequence: self.get(index).key,
                waiting: self.get(index).queue.len,
                fails_at: self.backlog.failure_time(index),
            }
        });
        SequenceBatcherStatus {
            slots: occupied.map(describe).collect(),
            taken_slots: self.slots.taken_count(),
            free_slots: self.slots.free_count(),
            backlog: backlog.collect(),
            backlogged: self.backlog.len(),
        }
    }

    /// Returns the reason why a queued request waits.
    pub(crate) fn wait_of(&self, key: RequestKey, lanes: &LanePool) -> RequestWaitReason {
        let request = self.requests.find(key).map(|found| self.requests.get(found));
        let Some(request) = request else { return RequestWaitReason::Lane };
        let Some(sequence) = request.sequence.map(|index| self.get(index)) else {
            return RequestWaitReason::Lane;
        };
        match sequence.placement {
            Placement::Backlog(_) => RequestWaitReason::Slot,
            Placement::Slot(_) if request.previous.is_some() || sequence.executing.is_some() => {
                RequestWaitReason::Predecessor
            }
            Placement::Slot(slot) => match self.batch_wait(slot.instance, lanes) {
                SequenceSlotWaitReason::BatchDelay { .. } => RequestWaitReason::BatchDelay,
                SequenceSlotWaitReason::Permit => RequestWaitReason::Permit,
                SequenceSlotWaitReason::Hold => RequestWaitReason::Hold,
                SequenceSlotWaitReason::Request { .. }
                | SequenceSlotWaitReason::Execution
                | SequenceSlotWaitReason::Lane => RequestWaitReason::Lane,
            },
        }
    }

    fn slot_status(
        &self,
        index: SequenceIndex,
        sequence: &Sequence,
        slot: Slot,
        lanes: &LanePool,
    ) -> SequenceSlotStatus {
        let waits_for = if sequence.executing.is_some() {
            SequenceSlotWaitReason::Execution
        } else if sequence.queue.len == 0 {
            SequenceSlotWaitReason::Request { idle_at: self.idle.of(index) }
        } else {
            self.batch_wait(slot.instance, lanes)
        };
        SequenceSlotStatus {
            instance: slot.instance,
            slot: slot.number,
            sequence: sequence.key,
            waiting: sequence.queue.len,
            waits_for,
        }
    }

    fn batch_wait(&self, instance: InstanceId, lanes: &LanePool) -> SequenceSlotWaitReason {
        let waiting = self.lanes.get(&instance).and_then(|lane| lane.waiting);
        match waiting {
            _ if self.hold.is_some() => SequenceSlotWaitReason::Hold,
            Some(wait) if lanes.is_free(instance) => {
                SequenceSlotWaitReason::BatchDelay { until: wait.until }
            }
            _ if lanes.awaits_permit(instance) => SequenceSlotWaitReason::Permit,
            Some(_) | None => SequenceSlotWaitReason::Lane,
        }
    }
}
