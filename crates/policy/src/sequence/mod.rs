//! Stage one with a sequence batcher: each sequence gets a slot of an instance and keeps it. Its
//! requests run there in order, one at a time.
//!
//! A sequence begins with a request whose key is unknown. The sequence gets a free slot or waits
//! for one in the backlog, first come, first served. It remains open until a request with END
//! arrives, its idle time is over, one of its requests is cancelled, it has waited too long for a
//! slot, or the model unloads. A closed sequence accepts no requests. Once its last request has
//! been dispatched, the sequence ends, and its slot goes to the backlog in the same step.
//!
//! The idle time counts from the arrival of the last request, even in the backlog, and regardless
//! of waiting or executing requests. A sequence that gets its slot after that time has
//! [`SLOT_GRACE_NS`] left, during which its client can continue. This matches Triton, where a
//! thread polls for idle sequences.
//!
//! The first request of a sequence with a slot is eligible while none of the sequence's requests is
//! executing. A batcher forms batches from an instance's eligible requests: by slot for the direct
//! strategy, and dynamically for the oldest strategy.
//!
//! An iterative sequence is a single request that becomes eligible again until its backend has
//! finished it; then the sequence ends. Its idle time counts from the last time the request was
//! queued. If the request is rescheduled after that, it fails.
//!
//! # Keys
//!
//! A key isn't a correlation ID: a client may reuse an ID for a new sequence while requests of the
//! previous one are still queued. The driver maps an ID to a key only until the sequence closes,
//! but the key remains in use until the sequence ends. The driver therefore steps due deadlines
//! before it looks up an ID (see [`SchedulerEvent::Enqueue`](crate::SchedulerEvent::Enqueue)).
//!
//! A request is known until its backend releases it, which may happen before or after the end of
//! its batch and on any thread. Only the release makes the next request of the sequence eligible.
//! The last request of a sequence may still be executing after the sequence has ended, which is
//! safe because no other request uses the state that it leaves behind.
//!
//! # Bounds
//!
//! The number of sequences in slots is bounded by the configuration. As in Triton, the backlog and
//! a sequence's waiting requests are only bounded by the doors' limits on open requests. Every step
//! costs O(log n) in live sequences, and forming a batch costs O(slots of the instance).

mod backlog;
mod index;
mod lane;
mod requests;
mod slots;
mod status;
mod transitions;

use std::collections::{BTreeMap, BTreeSet};

use self::backlog::Backlog;
use self::index::SequenceIndex;
use self::lane::{BatchWait, SequenceLane};
use self::requests::{RequestIndex, RequestState, Requests, SequenceQueue, slab_index};
use self::slots::{Slot, Slots};
use crate::batcher::{BatchDecision, Intake};
use crate::event::{FailReason, RequestRelease, SchedulerAction, SchedulerActions};
use crate::ids::{InstanceId, RequestInfo, RequestKey, SequenceKey, SequencePosition};
use crate::lane_pool::{Assignment, LanePool, Removal};
use crate::queue::{Deadlines, DenseIndex};
use crate::scheduler_state::SchedulerState;
use crate::spec::{SchedulingSpec, SequenceBatcherSpec, SequenceStrategy};
use crate::time::Time;

/// The minimum idle time left to a sequence when it gets its slot, unless its entire idle time is
/// shorter. Triton checks at this interval whether idle sequences have left the backlog.
const SLOT_GRACE_NS: u64 = 50_000_000;

/// Assigns sequences to instance slots and batches their requests.
#[derive(Clone, Debug)]
pub(crate) struct SequenceBatcher {
    strategy: SequenceStrategy,
    max_batch_size: u32,
    max_sequence_idle_ns: u64,
    iterative: bool,
    /// Live sequences, indexed by the low half of their keys.
    sequences: Vec<Option<Sequence>>,
    requests: Requests,
    slots: Slots,
    lanes: BTreeMap<InstanceId, SequenceLane>,
    /// Instances to be removed once their sequences have ended.
    removing: BTreeSet<InstanceId>,
    backlog: Backlog,
    /// The times at which sequences with slots become idle for too long.
    idle: Deadlines<SequenceIndex>,
    /// Instances whose batches must be decided again.
    dirty: BTreeSet<InstanceId>,
    /// The times at which batches waiting to grow are dispatched as they are.
    wakeups: BTreeSet<(Time, InstanceId)>,
    counts: RequestCounts,
    hold: Option<SequenceHold>,
    /// The arrival counter, which breaks ties between deadlines.
    arrivals: u64,
}

#[derive(Clone, Debug)]
struct Sequence {
    key: SequenceKey,
    queue: SequenceQueue,
    executing: Option<RequestIndex>,
    placement: Placement,
    state: SequenceState,
    /// The latest arrival time of a request.
    arrived_at: Time,
}

/// The place of a sequence. It may move from the backlog to a slot, but never back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Placement {
    /// The sequence waits for a slot, with this number in the backlog.
    Backlog(u64),
    Slot(Slot),
}

/// Open → Closed → Expired.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum SequenceState {
    /// Requests may join the sequence.
    Open,
    Closed,
    /// The sequence is iterative, and its request can no longer be rescheduled.
    Expired,
}

/// Request counts.
#[derive(Copy, Clone, Debug, Default)]
struct RequestCounts {
    queued_in_slots: usize,
    queued_in_backlog: usize,
    executing: usize,
}

/// For tests: the numbers of waiting requests required before the first dispatch.
#[derive(Copy, Clone, Debug)]
struct SequenceHold {
    in_slots: u32,
    in_backlog: u32,
}

impl SequenceBatcher {
    pub(crate) fn new(spec: &SchedulingSpec, sequence: &SequenceBatcherSpec) -> Self {
        let rows = spec.max_batch_size.max(1);
        let capacity = match sequence.strategy {
            SequenceStrategy::Oldest { max_candidate_sequences, .. }
                if max_candidate_sequences > 0 =>
            {
                max_candidate_sequences
            }
            SequenceStrategy::Oldest { .. } | SequenceStrategy::Direct { .. } => rows,
        };
        let hold = SequenceHold {
            in_slots: spec.hold_until_queued,
            in_backlog: spec.hold_until_backlogged,
        };
        SequenceBatcher {
            strategy: sequence.strategy.clone(),
            max_batch_size: rows,
            max_sequence_idle_ns: sequence.max_sequence_idle_ns,
            iterative: sequence.iterative,
            sequences: Vec::new(),
            requests: Requests::default(),
            slots: Slots::new(capacity),
            lanes: BTreeMap::new(),
            removing: BTreeSet::new(),
            backlog: Backlog::default(),
            idle: Deadlines::default(),
            dirty: BTreeSet::new(),
            wakeups: BTreeSet::new(),
            counts: RequestCounts::default(),
            hold: (hold.in_slots > 0 || hold.in_backlog > 0).then_some(hold),
            arrivals: 0,
        }
    }

    /// Returns the number of waiting requests.
    pub(crate) fn queued(&self) -> usize {
        self.counts.queued_in_slots + self.counts.queued_in_backlog
    }

    /// Returns true if no request is queued or executing.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queued() == 0 && self.counts.executing == 0
    }

    /// Returns the time of the next step if no event arrives earlier.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let alarm = self.wakeups.first().map(|(time, _)| *time);
        [self.backlog.next_failure(), self.idle.next(), alarm].into_iter().flatten().min()
    }

    /// Ends sequences that were idle or waited for too long, and marks batches whose delay is over.
    /// Called before each event.
    pub(crate) fn apply_deadlines(&mut self, now: Time, out: &mut SchedulerActions) {
        while let Some(index) = self.backlog.pop_failed(now) {
            let queued = self.take_queue(index);
            self.fail_all(&queued, FailReason::SequenceTimeoutExpired, out);
            self.close_sequence(index, out);
            self.end_sequence(index, out);
        }
        while let Some(index) = self.idle.pop_due(now) {
            if self.iterative {
                self.get_mut(index).state = SequenceState::Expired;
            } else {
                self.close_sequence(index, out);
                self.end_if_finished(index, out);
            }
        }
        while let Some((_, instance)) = self.wakeups.first().filter(|(time, _)| *time <= now) {
            self.mark_dirty(*instance);
        }
        self.fill_slots(now);
    }

    pub(crate) fn enqueue(
        &mut self,
        request: RequestInfo,
        now: Time,
        state: SchedulerState,
        out: &mut SchedulerActions,
    ) {
        let Some(position) = request.sequence else {
            out.push(SchedulerAction::Fail { key: request.key, reason: FailReason::NoSequence });
            return;
        };
        let index = SequenceIndex(slab_index(position.sequence.0));
        let is_known = self.find(index).is_some_and(|known| known.key == position.sequence);
        if let Some(reason) = refusal(position, is_known, state) {
            out.push(SchedulerAction::Fail { key: request.key, reason });
            if !is_known {
                out.push(SchedulerAction::SequenceClosed(position.sequence));
                out.push(SchedulerAction::SequenceEnded(position.sequence));
            }
            return;
        }
        if !is_known {
            self.begin_sequence(index, position.sequence, now);
        }
        assert_eq!(
            self.get(index).state,
            SequenceState::Open,
            "{:?} is closed: a new sequence needs a new key",
            position.sequence
        );
        self.append(index, &request, position, now);
        if position.end || self.iterative {
            self.close_sequence(index, out);
        }
    }

    /// Cancels a request: it fails together with all later requests of its sequence, which depend
    /// on it.
    pub(crate) fn cancel(&mut self, key: RequestKey, now: Time, out: &mut SchedulerActions) {
        let Some(request) = self.requests.find(key) else { return };
        match self.requests.get(request).state {
            RequestState::Queued => self.cancel_from(request, now, out),
            RequestState::Executing if self.iterative => {
                self.requests.get_mut(request).state = RequestState::Cancelled;
            }
            RequestState::Executing | RequestState::Cancelled => {}
        }
    }

    /// Records that the backend has released a request.
    pub(crate) fn release(
        &mut self,
        key: RequestKey,
        release: RequestRelease,
        now: Time,
        out: &mut SchedulerActions,
    ) {
        let request = self.requests.find(key).unwrap_or_else(|| panic!("{key:?} is not known"));
        let state = self.requests.get(request).state;
        assert_ne!(state, RequestState::Queued, "{key:?} was released without being executed");
        assert!(release == RequestRelease::Done || self.iterative, "{key:?} is not iterative");
        self.counts.executing -= 1;
        let Some(index) = self.requests.get(request).sequence else {
            self.requests.remove(request);
            return;
        };
        let sequence = self.get_mut(index);
        sequence.executing = None;
        let is_too_late = sequence.state == SequenceState::Expired;
        if (release, state) == (RequestRelease::Reschedule, RequestState::Executing) && !is_too_late
        {
            self.requeue(index, request, now);
            return;
        }
        self.requests.remove(request);
        if release == RequestRelease::Reschedule {
            let is_cancelled = state == RequestState::Cancelled;
            let reason =
                if is_cancelled { FailReason::Cancelled } else { FailReason::RescheduledTooLate };
            out.push(SchedulerAction::Fail { key, reason });
        }
        self.add_eligible(index, now);
        self.end_if_finished(index, out);
        self.fill_slots(now);
    }

    pub(crate) fn add_instance(&mut self, instance: InstanceId, now: Time) {
        self.slots.add(instance);
        let lane = SequenceLane::new(&self.strategy, self.max_batch_size);
        self.lanes.insert(instance, lane);
        self.fill_slots(now);
    }

    /// Stops assigning sequences to the instance, which is removed when its last sequence has
    /// ended. The removal is complete if the batcher doesn't know the instance.
    pub(crate) fn remove_instance(&mut self, instance: InstanceId) -> Removal {
        if !self.lanes.contains_key(&instance) {
            return Removal::Complete;
        }
        self.slots.close_instance(instance);
        self.removing.insert(instance);
        Removal::Pending
    }

    /// Marks the instance's batch to be decided again.
    pub(crate) fn mark_dirty(&mut self, instance: InstanceId) {
        if let Some(lane) = self.lanes.get_mut(&instance) {
            if let Some(BatchWait { until: Some(until) }) = lane.waiting.take() {
                self.wakeups.remove(&(until, instance));
            }
            self.dirty.insert(instance);
        }
    }

    /// Closes all sequences, because no more requests arrive. Sequences without requests end, so
    /// that their slots go to the backlog. Held requests and batches waiting to grow are
    /// dispatched.
    pub(crate) fn drain(&mut self, now: Time, out: &mut SchedulerActions) {
        for index in (0..).map(SequenceIndex).take(self.sequences.len()) {
            if self.find(index).is_some_and(|known| known.state == SequenceState::Open) {
                self.close_sequence(index, out);
                self.end_if_finished(index, out);
            }
        }
        self.fill_slots(now);
        self.hold = None;
        self.mark_all_dirty();
    }

    fn mark_all_dirty(&mut self) {
        let instances: Vec<InstanceId> = self.lanes.keys().copied().collect();
        for instance in instances {
            self.mark_dirty(instance);
        }
    }

    /// Closes the batches of free instances, and therefore as late as possible.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        intake: Intake,
        lanes: &mut LanePool,
        out: &mut SchedulerActions,
    ) {
        self.update_hold();
        if self.hold.is_some() {
            return;
        }
        while let Some(instance) = self.dirty.pop_first() {
            let Some(lane) = self.lanes.get_mut(&instance) else { continue };
            if !lanes.is_free(instance) {
                continue;
            }
            match lane.decide(now, intake) {
                BatchDecision::Empty => lanes.withdraw(instance, out),
                BatchDecision::Wait { until, .. } => {
                    self.wakeups.extend(until.map(|until| (until, instance)));
                    lanes.withdraw(instance, out);
                }
                BatchDecision::Close { requests, reason, .. } => {
                    if lanes.assign_to(instance, now, out) == Assignment::AwaitsPermit {
                        continue;
                    }
                    let rows = lane.take_batch(requests, &self.requests);
                    self.execute(instance, &rows, reason, now, out);
                }
            }
        }
    }

    /// Removes instances whose last sequence has ended.
    pub(crate) fn finish_removals(&mut self, lanes: &mut LanePool, out: &mut SchedulerActions) {
        let slots = &self.slots;
        let is_empty = |instance: &InstanceId| slots.taken(*instance) == 0;
        let emptied: Vec<InstanceId> = self.removing.iter().copied().filter(is_empty).collect();
        for instance in emptied {
            self.mark_dirty(instance);
            self.dirty.remove(&instance);
            self.removing.remove(&instance);
            self.slots.remove(instance);
            self.lanes.remove(&instance);
            if lanes.remove(instance, out) == Removal::Complete {
                out.push(SchedulerAction::InstanceRemoved(instance));
            }
        }
    }

    fn update_hold(&mut self) {
        let is_below = |waiting: usize, minimum: u32| {
            u32::try_from(waiting).is_ok_and(|waiting| waiting < minimum)
        };
        if let Some(hold) = self.hold
            && !is_below(self.counts.queued_in_slots, hold.in_slots)
            && !is_below(self.counts.queued_in_backlog, hold.in_backlog)
        {
            self.hold = None;
            self.mark_all_dirty();
        }
    }

    fn find(&self, index: SequenceIndex) -> Option<&Sequence> {
        self.sequences.get(index.index())?.as_ref()
    }

    fn get(&self, index: SequenceIndex) -> &Sequence {
        self.find(index).expect("the sequence is live")
    }

    fn get_mut(&mut self, index: SequenceIndex) -> &mut Sequence {
        self.sequences[index.index()].as_mut().expect("the sequence is live")
    }
}

/// Returns the reason why a request is refused, or `None` if it isn't.
fn refusal(
    position: SequencePosition,
    is_known: bool,
    state: SchedulerState,
) -> Option<FailReason> {
    match state {
        SchedulerState::Draining | SchedulerState::Drained => Some(FailReason::Draining),
        SchedulerState::Open if !position.start && !is_known => Some(FailReason::MissingStart),
        SchedulerState::Open => None,
    }
}

#[cfg(test)]
mod tests;
