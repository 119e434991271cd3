//! The reasons why each slot and each sequence in the backlog waits.

use crate::ids::{InstanceId, RequestKey};
use crate::lane_pool::LanePool;
use crate::sequence::{Placement, Sequence, SequenceBatcher, SequenceIndex, Slot};
use crate::status::{
    RequestWait, SchedulerStatus, SequencesStatus, SlotStatus, SlotWaitReason,
    WaitingSequenceStatus,
};

impl SequenceBatcher {
    /// Returns the status of all slots and the backlog. The cost is O(instances + reported rows).
    /// Not for the hot path.
    pub(crate) fn status(&self, lanes: &LanePool) -> SequencesStatus {
        let occupied = self.slots.sequences().take(SchedulerStatus::ROWS_MAX);
        let describe = |(slot, index)| self.slot_status(index, self.get(index), slot, lanes);
        let backlog = self.backlog.iter().take(SchedulerStatus::ROWS_MAX).map(|index| {
            WaitingSequenceStatus {
                sequence: self.get(index).key,
                waiting: self.get(index).queue.len,
                fails_at: self.backlog.failure_time(index),
            }
        });
        SequencesStatus {
            slots: occupied.map(describe).collect(),
            taken_slots: self.slots.taken_count(),
            free_slots: self.slots.free_count(),
            backlog: backlog.collect(),
            backlogged: self.backlog.len(),
        }
    }

    /// The reason why a queued request waits.
    pub(crate) fn wait_of(&self, key: RequestKey, lanes: &LanePool) -> RequestWait {
        let request = self.requests.find(key).map(|found| self.requests.get(found));
        let Some(request) = request else { return RequestWait::Lane };
        let Some(sequence) = request.sequence.map(|index| self.get(index)) else {
            return RequestWait::Lane;
        };
        match sequence.placement {
            Placement::Backlog(_) => RequestWait::Slot,
            Placement::Slot(_) if request.previous.is_some() || sequence.executing.is_some() => {
                RequestWait::Predecessor
            }
            Placement::Slot(slot) => match self.batch_wait(slot.instance, lanes) {
                SlotWaitReason::BatchDelay { .. } => RequestWait::BatchDelay,
                SlotWaitReason::Permit => RequestWait::Permit,
                SlotWaitReason::Hold => RequestWait::Hold,
                SlotWaitReason::Request { .. }
                | SlotWaitReason::Execution
                | SlotWaitReason::Lane => RequestWait::Lane,
            },
        }
    }

    fn slot_status(
        &self,
        index: SequenceIndex,
        sequence: &Sequence,
        slot: Slot,
        lanes: &LanePool,
    ) -> SlotStatus {
        let waits_for = if sequence.executing.is_some() {
            SlotWaitReason::Execution
        } else if sequence.queue.len == 0 {
            SlotWaitReason::Request { idle_at: self.idle.of(index) }
        } else {
            self.batch_wait(slot.instance, lanes)
        };
        SlotStatus {
            instance: slot.instance,
            slot: slot.number,
            sequence: sequence.key,
            waiting: sequence.queue.len,
            waits_for,
        }
    }

    fn batch_wait(&self, instance: InstanceId, lanes: &LanePool) -> SlotWaitReason {
        let waiting = self.lanes.get(&instance).and_then(|lane| lane.waiting);
        match waiting {
            _ if self.hold.is_some() => SlotWaitReason::Hold,
            Some(wait) if lanes.is_free(instance) => {
                SlotWaitReason::BatchDelay { until: wait.until }
            }
            _ if lanes.awaits_permit(instance) => SlotWaitReason::Permit,
            Some(_) | None => SlotWaitReason::Lane,
        }
    }
}
