//! The externally visible state of sequences, derived only from events and decisions: live
//! sequences, their slots, the backlog and executing requests.
//!
//! A slot becomes free when the scheduler reports `SequenceEnded`. Free slots are assigned to the
//! backlog once all sequences that end together have ended: after the deadlines of a step, after
//! its event, and after each batch. The scheduler may therefore choose the order in which a step
//! ends several sequences, but no other order.

use std::collections::VecDeque;

use galatea_policy::{
    FailReason, InstanceId, RequestInfo, RequestKey, RequestRelease, SequenceKey, SequencePosition,
    ShapeClassId, Time,
};

use super::rules::{Rules, later};
use super::sorted_map::SortedMap;
use crate::setup::SchedulerSetup;

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) rules: Rules,
    /// Sequences from their first request to their end.
    pub(crate) sequences: SortedMap<SequenceKey, Sequence>,
    /// The waiting sequences, in order.
    pub(crate) backlog: VecDeque<SequenceKey>,
    pub(crate) lanes: SortedMap<InstanceId, LaneRecord>,
    /// Requests from dispatch to release, which may come after the end of their sequence.
    pub(crate) executing: SortedMap<RequestKey, Execution>,
    /// The request that must be refused on arrival, with the reason.
    pub(crate) refused: Option<(RequestKey, FailReason)>,
    pub(crate) held: bool,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    pub(crate) now: Time,
    /// The counter for everything that needs an order: arrivals, eligibilities and incarnations.
    pub(crate) count: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// The number that distinguishes successive sequences with the same key.
    pub(crate) incarnation: u64,
    pub(crate) placement: LedgerPlacement,
    /// Waiting requests, in order.
    pub(crate) queue: VecDeque<WaitingRequest>,
    pub(crate) executing: Option<RequestKey>,
    /// The time at which the sequence's next request became eligible, and its position in that
    /// order.
    pub(crate) eligible: Option<Eligibility>,
    /// The latest arrival or rescheduling of a request.
    pub(crate) arrived_at: Time,
    /// The time at which the sequence got its slot.
    pub(crate) slot_since: Time,
    pub(crate) closing: ClosingState,
    /// True if the idle time of an iterative sequence is over, so that its request isn't
    /// rescheduled.
    pub(crate) is_expired: bool,
    /// True if the sequence's request was cancelled while executing. It fails when it is
    /// rescheduled.
    pub(crate) cancelled_in_execution: bool,
}

/// Refused, or Backlog → Slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum LedgerPlacement {
    /// The sequence was refused with its first request.
    Refused,
    Backlog,
    Slot {
        instance: InstanceId,
        slot: usize,
    },
}

/// Open → Due → Closed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ClosingState {
    /// The sequence accepts further requests.
    Open,
    /// The sequence must be closed in this step.
    Due,
    Closed,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Eligibility {
    pub(crate) order: u64,
    pub(crate) since: Time,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) key: RequestKey,
    pub(crate) shape_class: ShapeClassId,
    /// The time at which the request arrived or was rescheduled.
    pub(crate) waits_since: Time,
    pub(crate) start: bool,
    pub(crate) end: bool,
    /// The time at which the request's sequence fails if it is in the backlog.
    pub(crate) expires: Option<Time>,
    /// The reason why the request must fail in this step, if it must.
    pub(crate) due_failure: Option<FailReason>,
}

/// An executing request.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    /// The incarnation of the request's sequence.
    pub(crate) incarnation: u64,
    /// The request as it was while waiting, because it may be rescheduled.
    pub(crate) request: WaitingRequest,
}

#[derive(Clone, Debug)]
pub(crate) struct LaneRecord {
    pub(crate) busy: bool,
    /// The time at which the lane became busy or free.
    pub(crate) since: Time,
    pub(crate) removing: bool,
    pub(crate) slots: Vec<Option<SequenceKey>>,
}

impl LaneRecord {
    pub(crate) fn is_vacant(&self) -> bool {
        !self.busy && self.slots.iter().all(Option::is_none)
    }
}

impl Sequence {
    fn new(incarnation: u64, placement: LedgerPlacement, now: Time) -> Self {
        Sequence {
            incarnation,
            placement,
            queue: VecDeque::new(),
            executing: None,
            eligible: None,
            arrived_at: now,
            slot_since: now,
            closing: ClosingState::Open,
            is_expired: false,
            cancelled_in_execution: false,
        }
    }

    /// Requires the sequence to be closed in this step.
    pub(crate) fn must_close(&mut self) {
        if self.closing == ClosingState::Open {
            self.closing = ClosingState::Due;
        }
    }
}

impl Ledger {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        let rules = Rules::new(setup);
        Ledger {
            held: rules.hold_in_slots > 0 || rules.hold_in_backlog > 0,
            rules,
            sequences: SortedMap::default(),
            backlog: VecDeque::new(),
            lanes: SortedMap::default(),
            executing: SortedMap::default(),
            refused: None,
            draining: false,
            drained: false,
            now: Time(0),
            count: 0,
        }
    }

    pub(crate) fn next_count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Handles an arriving request: it joins its sequence, begins one, or is refused.
    pub(crate) fn arrive(&mut self, info: &RequestInfo) {
        let Some(mark) = info.sequence else {
            self.refused = Some((info.key, FailReason::NoSequence));
            return;
        };
        self.refused = self.refusal(mark).map(|reason| (info.key, reason));
        if !self.sequences.contains_key(&mark.sequence) {
            self.begin(mark);
        }
        if self.refused.is_some() {
            return;
        }
        let (now, iterative) = (self.now, self.rules.iterative);
        let sequence = self.sequences.get_mut(&mark.sequence).expect("it has begun");
        assert_eq!(sequence.closing, ClosingState::Open, "the driver forgets closed sequences");
        sequence.queue.push_back(WaitingRequest {
            key: info.key,
            shape_class: info.shape_class,
            waits_since: now,
            start: mark.start,
            end: mark.end,
            expires: later(now, info.timeout_ns),
            due_failure: None,
        });
        sequence.arrived_at = now;
        if mark.end || iterative {
            sequence.must_close();
        }
        self.update_eligibility(mark.sequence);
    }

    /// Returns the reason why a request is refused, or `None` if it isn't. An unloading model
    /// refuses all requests.
    fn refusal(&self, mark: SequencePosition) -> Option<FailReason> {
        let is_known = self.sequences.contains_key(&mark.sequence);
        if self.draining {
            Some(FailReason::Draining)
        } else if !is_known && !mark.start {
            Some(FailReason::MissingStart)
        } else {
            None
        }
    }

    /// Begins a sequence. A refused sequence also ends immediately.
    fn begin(&mut self, mark: SequencePosition) {
        let (incarnation, now) = (self.next_count(), self.now);
        let mut sequence = Sequence::new(incarnation, LedgerPlacement::Backlog, now);
        if self.refused.is_some() {
            sequence.placement = LedgerPlacement::Refused;
            sequence.must_close();
        } else {
            self.backlog.push_back(mark.sequence);
        }
        self.sequences.insert(mark.sequence, sequence);
        self.fill_slots();
    }

    /// Assigns free slots to the backlog: the lowest slot first and, among equal slots, the lowest
    /// instance first.
    pub(crate) fn fill_slots(&mut self) {
        while !self.backlog.is_empty() {
            let Some((slot, instance)) = self.best_free_slot() else { return };
            let sequence = self.backlog.pop_front().expect("it is not empty");
            self.lanes.get_mut(&instance).expect("it has the slot").slots[slot] = Some(sequence);
            let assigned = self.sequences.get_mut(&sequence).expect("it waited");
            assigned.placement = LedgerPlacement::Slot { instance, slot };
            assigned.slot_since = self.now;
            self.update_eligibility(sequence);
        }
    }

    fn best_free_slot(&self) -> Option<(usize, InstanceId)> {
        let staying = self.lanes.iter().filter(|(_, lane)| !lane.removing);
        let first_free = |(id, lane): (&InstanceId, &LaneRecord)| {
            Some((lane.slots.iter().position(Option::is_none)?, *id))
        };
        staying.filter_map(first_free).min()
    }

    /// Updates whether the next request is eligible. A newly eligible request goes behind all
    /// others.
    pub(crate) fn update_eligibility(&mut self, key: SequenceKey) {
        let order = self.next_count();
        let eligible = Eligibility { order, since: self.now };
        let sequence = self.sequences.get_mut(&key).expect("it exists");
        let has_slot = matches!(sequence.placement, LedgerPlacement::Slot { .. });
        if !has_slot || sequence.queue.is_empty() || sequence.executing.is_some() {
            sequence.eligible = None;
        } else if sequence.eligible.is_none() {
            sequence.eligible = Some(eligible);
        }
    }

    /// Cancels a request together with the later ones of its sequence.
    pub(crate) fn cancel(&mut self, request: RequestKey) {
        let iterative = self.rules.iterative;
        for sequence in self.sequences.values_mut() {
            if iterative && sequence.executing == Some(request) {
                sequence.cancelled_in_execution = true;
            }
            let position = sequence.queue.iter().position(|waiting| waiting.key == request);
            let Some(position) = position else { continue };
            for request in sequence.queue.range_mut(position..) {
                request.due_failure = Some(FailReason::Cancelled);
            }
            sequence.must_close();
        }
    }

    /// Records that the backend has released a request.
    pub(crate) fn release(&mut self, request: RequestKey, release: RequestRelease) {
        let Execution { incarnation, request } =
            self.executing.remove(&request).expect("it is in execution");
        let is_its_own =
            |(_, sequence): &(&SequenceKey, &mut Sequence)| sequence.incarnation == incarnation;
        let Some((key, sequence)) = self.sequences.iter_mut().find(is_its_own) else { return };
        let key = *key;
        sequence.executing = None;
        match release {
            RequestRelease::Done => {}
            RequestRelease::Reschedule => {
                sequence.arrived_at = self.now;
                let due_failure = if sequence.cancelled_in_execution {
                    Some(FailReason::Cancelled)
                } else {
                    sequence.is_expired.then_some(FailReason::RescheduledTooLate)
                };
                let again =
                    WaitingRequest { start: false, due_failure, waits_since: self.now, ..request };
                sequence.queue.push_front(again);
            }
        }
        self.update_eligibility(key);
    }

    /// Marks the iterative sequences whose idle time is over. The effect shows when they are
    /// rescheduled.
    pub(crate) fn expire(&mut self) {
        if !self.rules.iterative {
            return;
        }
        let overdue = self.sequences.iter().filter(|(_, sequence)| self.is_idle(sequence));
        let overdue: Vec<SequenceKey> = overdue.map(|(key, _)| *key).collect();
        for key in overdue {
            self.sequences.get_mut(&key).expect("it is live").is_expired = true;
        }
    }

    /// Ends a sequence and frees its slot.
    pub(crate) fn end(&mut self, key: SequenceKey) {
        let Some(sequence) = self.sequences.remove(&key) else { return };
        match sequence.placement {
            LedgerPlacement::Refused => {}
            LedgerPlacement::Backlog => self.backlog.retain(|waiting| *waiting != key),
            LedgerPlacement::Slot { instance, slot } => {
                self.lanes.get_mut(&instance).expect("it had the slot").slots[slot] = None;
            }
        }
    }
}
