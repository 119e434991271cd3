//! What each slot and each sequence of the backlog waits for.

use crate::ids::InstanceId;
use crate::lanes::Lanes;
use crate::sequence::{Position, Sequence, SequenceBatcher, SequenceIndex, Slot};
use crate::status::{BacklogStatus, SequencesStatus, SlotStatus, SlotWait};

impl SequenceBatcher {
    /// Not for the hot path: costs O(live sequences).
    pub(crate) fn status(&self, lanes: &Lanes) -> SequencesStatus {
        let live = (0..).map(SequenceIndex).zip(&self.sequences);
        let live = live.filter_map(|(index, one)| one.as_ref().map(|one| (index, one)));
        let seated = live.filter_map(|(index, sequence)| match sequence.position {
            Position::Slot(slot) => Some(self.slot_status(index, sequence, slot, lanes)),
            Position::Backlog(_) => None,
        });
        let mut slots: Vec<SlotStatus> = seated.collect();
        slots.sort_unstable_by_key(|slot| (slot.instance, slot.slot));
        let backlog = self.backlog.iter().map(|index| BacklogStatus {
            sequence: self.get(index).key,
            waiting: self.get(index).queue.len,
            fails_at: self.backlog.failure_of(index),
        });
        SequencesStatus { slots, free_slots: self.slots.free_count(), backlog: backlog.collect() }
    }

    fn slot_status(
        &self,
        index: SequenceIndex,
        sequence: &Sequence,
        slot: Slot,
        lanes: &Lanes,
    ) -> SlotStatus {
        let waits_for = if sequence.executing.is_some() {
            SlotWait::Execution
        } else if sequence.queue.len == 0 {
            SlotWait::Request { idle_at: self.idle.of(index) }
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

    fn batch_wait(&self, instance: InstanceId, lanes: &Lanes) -> SlotWait {
        let waits = self.lanes.get(&instance).and_then(|lane| lane.waits);
        match waits {
            _ if self.hold.is_some() => SlotWait::Hold,
            Some(wait) if lanes.is_free(instance) => SlotWait::BatchDelay { until: wait.until },
            _ if lanes.awaits_permit(instance) => SlotWait::Permit,
            Some(_) | None => SlotWait::Lane,
        }
    }
}
