//! Queries of the ledger. Each one searches the entire ledger, which is simple rather than fast.

use galatea_policy::{
    InstanceId, RequestKey, RequestRelease, SchedulerEvent, SequenceKey, SequencePosition,
    ShapeClassId, Time,
};

use super::ledger::{
    ClosingState, Eligibility, LaneRecord, Ledger, LedgerPlacement, Sequence, WaitingRequest,
};
use crate::dynamic_rules::{BatchContext, QueuedRequest};

/// A sequence with a next request that could execute now.
pub(crate) struct ReadySequence<'ledger> {
    pub(crate) slot: usize,
    pub(crate) sequence: &'ledger Sequence,
    pub(crate) request: &'ledger WaitingRequest,
}

impl QueuedRequest for ReadySequence<'_> {
    fn key(&self) -> RequestKey {
        self.request.key
    }

    fn rows(&self) -> u64 {
        1
    }

    fn shape_class(&self) -> ShapeClassId {
        self.request.shape_class
    }

    /// Returns the time at which the sequence became eligible, for the oldest strategy.
    fn since(&self) -> Time {
        self.eligibility().since
    }
}

impl ReadySequence<'_> {
    /// Returns the time at which the sequence became eligible, and its position in that order.
    pub(crate) fn eligibility(&self) -> Eligibility {
        self.sequence.eligible.expect("a ready sequence is eligible")
    }
}

impl Ledger {
    /// Returns true if a correct driver can send this event at that time.
    pub(crate) fn allows(&self, now: Time, event: &SchedulerEvent) -> bool {
        match event {
            SchedulerEvent::Enqueue(info) => {
                self.is_new(info.key)
                    && info.sequence.is_none_or(|mark| self.accepts(now.max(self.now), mark))
            }
            SchedulerEvent::Released { key, release: RequestRelease::Done } => {
                self.executing.contains_key(key)
            }
            SchedulerEvent::Released { key, release: RequestRelease::Reschedule } => {
                self.rules.iterative && self.executing.contains_key(key)
            }
            SchedulerEvent::LaneFree(id) => self.lanes.get(id).is_some_and(|lane| lane.busy),
            SchedulerEvent::AddInstance(id) => !self.lanes.contains_key(id),
            SchedulerEvent::RemoveInstance(id) => self.lanes.contains_key(id),
            // Only the harness sends this event.
            SchedulerEvent::PermitGranted(_) | SchedulerEvent::PermitDelayed(_) => false,
            SchedulerEvent::Cancel(_) | SchedulerEvent::Drain | SchedulerEvent::Tick => true,
        }
    }

    /// Returns true if no waiting or executing request has the same index in the driver's slab.
    fn is_new(&self, request: RequestKey) -> bool {
        let queues = self.sequences.values().flat_map(|sequence| &sequence.queue);
        let mut used = queues.map(|request| request.key).chain(self.executing.keys().copied());
        used.all(|other| slab_index(other.0) != slab_index(request.0))
    }

    /// Returns true if the sequence accepts requests, or if it is new and has an unused index in
    /// the driver's slab.
    fn accepts(&self, now: Time, mark: SequencePosition) -> bool {
        match self.sequences.get(&mark.sequence) {
            Some(sequence) => {
                sequence.closing == ClosingState::Open
                    && !self.rules.iterative
                    && self.ends_at(sequence).is_none_or(|end| end > now)
            }
            None => {
                let index = slab_index(mark.sequence.0);
                self.sequences.keys().all(|other| slab_index(other.0) != index)
            }
        }
    }

    /// Returns the time from which the sequence no longer accepts or reschedules requests, if no
    /// event arrives earlier.
    pub(crate) fn ends_at(&self, sequence: &Sequence) -> Option<Time> {
        match sequence.placement {
            LedgerPlacement::Refused => None,
            LedgerPlacement::Backlog => {
                sequence.queue.iter().filter_map(|request| request.expires).min()
            }
            LedgerPlacement::Slot { .. } if self.may_expire(sequence) => {
                self.rules.idle_at(sequence.arrived_at, sequence.slot_since)
            }
            LedgerPlacement::Slot { .. } => None,
        }
    }

    fn may_expire(&self, sequence: &Sequence) -> bool {
        let is_iterative = self.rules.iterative && !sequence.is_expired;
        is_iterative || (!self.rules.iterative && sequence.closing == ClosingState::Open)
    }

    /// Returns true if the sequence has a slot and its idle time is over.
    pub(crate) fn is_idle(&self, sequence: &Sequence) -> bool {
        matches!(sequence.placement, LedgerPlacement::Slot { .. }) && self.is_overdue(sequence)
    }

    pub(crate) fn is_overdue(&self, sequence: &Sequence) -> bool {
        self.ends_at(sequence).is_some_and(|end| end <= self.now)
    }

    /// Returns true if none of the sequence's requests will execute any more, so that it must end.
    pub(crate) fn is_finished(&self, sequence: &Sequence) -> bool {
        let may_run_again = self.rules.iterative && sequence.executing.is_some();
        sequence.closing == ClosingState::Closed && sequence.queue.is_empty() && !may_run_again
    }

    /// Returns true if no request is queued or executing and no lane has a batch.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queued() == 0
            && self.executing.is_empty()
            && self.lanes.values().all(|lane| !lane.busy)
    }

    pub(crate) fn queued(&self) -> usize {
        self.sequences.values().map(|sequence| sequence.queue.len()).sum()
    }

    fn queued_in_backlog(&self) -> usize {
        self.backlog.iter().map(|key| self.sequences[key].queue.len()).sum()
    }

    /// Releases the test hook if enough requests are waiting.
    pub(crate) fn release_hold(&mut self) {
        if !self.held {
            return;
        }
        let backlogged = self.queued_in_backlog();
        let in_slots = self.queued() - backlogged;
        if in_slots >= self.rules.hold_in_slots && backlogged >= self.rules.hold_in_backlog {
            self.held = false;
        }
    }

    /// Returns the ready sequences of an instance, by slot.
    pub(crate) fn ready(&self, lane: &LaneRecord) -> Vec<ReadySequence<'_>> {
        let ready = |(slot, occupant): (usize, &Option<SequenceKey>)| {
            let sequence = &self.sequences[occupant.as_ref()?];
            let is_free = sequence.executing.is_none();
            let request = sequence.queue.front().filter(|_| is_free)?;
            Some(ReadySequence { slot, sequence, request })
        };
        lane.slots.iter().enumerate().filter_map(ready).collect()
    }

    pub(crate) fn sequence_of(&self, request: RequestKey) -> Option<SequenceKey> {
        let holds =
            |sequence: &Sequence| sequence.queue.iter().any(|waiting| waiting.key == request);
        let (key, _) = self.sequences.iter().find(|(_, sequence)| holds(sequence))?;
        Some(*key)
    }

    pub(crate) fn context(&self) -> BatchContext {
        BatchContext { now: self.now, draining: self.draining }
    }

    /// Returns the instances that could execute a batch now.
    pub(crate) fn free_lanes(&self) -> impl Iterator<Item = (InstanceId, &LaneRecord)> {
        let lanes = self.lanes.iter().filter(|(_, lane)| !lane.busy && !self.held);
        lanes.map(|(id, lane)| (*id, lane))
    }
}

/// Returns the index in the driver's slab.
fn slab_index(key: u64) -> u64 {
    key & u64::from(u32::MAX)
}
