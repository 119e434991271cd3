//! Stage one with a sequence batcher: each sequence gets a slot of an instance
//! and keeps it; its requests run there in order, one at a time.
//!
//! A sequence begins with the request that brings an unknown key. It takes a
//! free slot, or waits for one in the backlog, first come, first served. It is
//! open until a request with END arrives, it was idle for too long, one of its
//! requests was cancelled, it waited for a slot for too long, or the model unloads.
//! From then on it
//! is closed: nothing joins it, and once its last request has been dispatched it
//! ends and its slot goes to the backlog in the same step.
//!
//! The first request of a sequence with a slot is eligible while none of its
//! requests is in execution. From the eligible requests of an instance, a former
//! makes batches: by slot for the strategy direct, dynamically for oldest.
//!
//! An iterative sequence is one request, which becomes eligible again and again
//! until its backend is done with it; only then it ends.
//!
//! # Bounds
//!
//! Sequences in slots are bounded by the configuration. The backlog and the
//! requests that wait in a sequence are not, as in the original: the front ends'
//! limits on open requests are the bound. Every step costs O(log n) in live
//! sequences, and forming a batch O(slots of the instance).

mod backlog;
mod lane;
mod lifecycle;
mod requests;
mod slots;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use self::backlog::Backlog;
use self::lane::{LaneWait, SequenceLane};
use self::requests::{List, RequestIndex, RequestState, Requests, low_half};
use self::slots::{Slot, Slots};
use crate::event::{Action, Actions, FailReason, Release};
use crate::former::{Outlook, Verdict};
use crate::ids::{InstanceId, RequestInfo, RequestKey, SequenceKey, SequencePosition};
use crate::lanes::{Departure, Lanes, Taken};
use crate::queue::{Deadlines, Place};
use crate::scheduler::Life;
use crate::spec::{SchedulingSpec, SequenceSpec, SequenceStrategy};
use crate::time::Time;

/// Leads sequences to instances.
#[derive(Clone, Debug)]
pub(crate) struct SequenceBatcher {
    strategy: SequenceStrategy,
    max_batch_size: u32,
    max_sequence_idle_ns: u64,
    iterative: bool,
    /// Live sequences, by the low half of their key.
    sequences: Vec<Option<Sequence>>,
    requests: Requests,
    slots: Slots,
    lanes: BTreeMap<InstanceId, SequenceLane>,
    /// Instances that go away once their sequences have ended.
    leaving: BTreeSet<InstanceId>,
    backlog: Backlog,
    /// When sequences that rest in their slots count as idle.
    idle: Deadlines<SequenceIndex>,
    /// Instances whose batches must be judged anew.
    touched: BTreeSet<InstanceId>,
    /// When batches that wait to grow go as they are.
    alarms: BTreeSet<(Time, InstanceId)>,
    counts: Counts,
    hold: Option<Hold>,
    /// Breaks ties of deadlines.
    arrivals: u64,
}

/// A sequence's place in the table.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SequenceIndex(u32);

impl Place for SequenceIndex {
    fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug)]
struct Sequence {
    key: SequenceKey,
    queue: List,
    executing: Option<RequestIndex>,
    position: Position,
    membership: Membership,
}

/// Backlog → Slot, never back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Position {
    /// It waits for a slot, at this place of the queue.
    Backlog(u64),
    Slot(Slot),
}

/// Whether requests may join a sequence. It closes once.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Membership {
    Open,
    Closed,
}

/// How many requests there are.
#[derive(Copy, Clone, Debug, Default)]
struct Counts {
    queued_in_slots: usize,
    queued_in_backlog: usize,
    executing: usize,
}

/// For tests: nothing runs until so many requests wait.
#[derive(Copy, Clone, Debug)]
struct Hold {
    in_slots: u32,
    in_backlog: u32,
}

impl SequenceBatcher {
    pub(crate) fn new(spec: &SchedulingSpec, sequence: &SequenceSpec) -> Self {
        let rows = spec.max_batch_size.max(1);
        let capacity = match sequence.strategy {
            SequenceStrategy::Oldest { max_candidate_sequences, .. }
                if max_candidate_sequences > 0 =>
            {
                max_candidate_sequences
            }
            SequenceStrategy::Oldest { .. } | SequenceStrategy::Direct { .. } => rows,
        };
        let hold =
            Hold { in_slots: spec.hold_until_queued, in_backlog: spec.hold_until_backlogged };
        SequenceBatcher {
            strategy: sequence.strategy.clone(),
            max_batch_size: rows,
            max_sequence_idle_ns: sequence.max_sequence_idle_ns,
            iterative: sequence.iterative,
            sequences: Vec::new(),
            requests: Requests::default(),
            slots: Slots::new(capacity),
            lanes: BTreeMap::new(),
            leaving: BTreeSet::new(),
            backlog: Backlog::default(),
            idle: Deadlines::default(),
            touched: BTreeSet::new(),
            alarms: BTreeSet::new(),
            counts: Counts::default(),
            hold: (hold.in_slots > 0 || hold.in_backlog > 0).then_some(hold),
            arrivals: 0,
        }
    }

    /// Requests that wait.
    pub(crate) fn queued(&self) -> usize {
        self.counts.queued_in_slots + self.counts.queued_in_backlog
    }

    /// Nothing is queued and nothing in execution.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queued() == 0 && self.counts.executing == 0
    }

    /// When to step next if nothing happens before.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let alarm = self.alarms.first().map(|(time, _)| *time);
        [self.backlog.next_failure(), self.idle.next(), alarm].into_iter().flatten().min()
    }

    /// Ends what was idle or waited for too long, and looks again at batches
    /// whose delay is over. Comes before the event.
    pub(crate) fn apply_deadlines(&mut self, now: Time, out: &mut Actions) {
        while let Some(index) = self.backlog.pop_failed(now) {
            let queued = self.take_queue(index);
            self.fail_all(&queued, FailReason::SequenceTimeoutExpired, out);
            self.close(index, out);
            self.end(index, out);
        }
        while let Some(index) = self.idle.pop_due(now) {
            self.close(index, out);
            self.end(index, out);
        }
        while let Some((_, instance)) = self.alarms.first().filter(|(time, _)| *time <= now) {
            self.touch(*instance);
        }
        self.fill_slots(now);
    }

    pub(crate) fn enqueue(
        &mut self,
        ticket: RequestInfo,
        now: Time,
        life: Life,
        out: &mut Actions,
    ) {
        let Some(mark) = ticket.sequence else {
            out.push(Action::Fail { key: ticket.key, reason: FailReason::NoSequence });
            return;
        };
        let index = SequenceIndex(low_half(mark.sequence.0));
        let is_known = self.find(index).is_some_and(|known| known.key == mark.sequence);
        if let Some(reason) = refusal(mark, is_known, life) {
            out.push(Action::Fail { key: ticket.key, reason });
            if !is_known {
                out.push(Action::SequenceClosed(mark.sequence));
                out.push(Action::SequenceEnded(mark.sequence));
            }
            return;
        }
        if !is_known {
            self.begin(index, mark.sequence, now);
        }
        assert_eq!(
            self.get(index).membership,
            Membership::Open,
            "{:?} is closed: a new sequence needs a new key",
            mark.sequence
        );
        self.append(index, &ticket, mark, now);
        if mark.end || self.iterative {
            self.close(index, out);
        }
    }

    /// A request is no longer wanted: it fails, and so does what comes behind it
    /// in its sequence, which makes no sense without it.
    pub(crate) fn cancel(&mut self, key: RequestKey, now: Time, out: &mut Actions) {
        let Some(request) = self.requests.find(key) else { return };
        match self.requests.get(request).state {
            RequestState::Queued => self.cut_sequence(request, now, out),
            RequestState::Executing if self.iterative => {
                self.requests.get_mut(request).state = RequestState::Cancelled;
            }
            RequestState::Executing | RequestState::Cancelled => {}
        }
    }

    /// The backend gave a request back.
    pub(crate) fn release(
        &mut self,
        key: RequestKey,
        release: Release,
        now: Time,
        out: &mut Actions,
    ) {
        let request = self.requests.find(key).unwrap_or_else(|| panic!("{key:?} is not known"));
        let state = self.requests.get(request).state;
        assert_ne!(state, RequestState::Queued, "{key:?} was released without being executed");
        assert!(release == Release::Done || self.iterative, "{key:?} is not iterative");
        self.counts.executing -= 1;
        let Some(index) = self.requests.get(request).sequence else {
            self.requests.remove(request);
            return;
        };
        self.get_mut(index).executing = None;
        match (release, state) {
            (Release::Reschedule, RequestState::Executing) => {
                self.put_back(index, request, now);
                return;
            }
            (Release::Reschedule, _) => {
                self.requests.remove(request);
                out.push(Action::Fail { key, reason: FailReason::Cancelled });
            }
            (Release::Done, _) => {
                self.requests.remove(request);
            }
        }
        self.wake(index, now);
        self.end_if_over(index, out);
        self.fill_slots(now);
    }

    pub(crate) fn add_instance(&mut self, instance: InstanceId, now: Time) {
        self.slots.add(instance);
        let lane = SequenceLane::new(&self.strategy, self.max_batch_size);
        self.lanes.insert(instance, lane);
        self.fill_slots(now);
    }

    /// The instance gets no further sequences; it goes when its last has ended.
    pub(crate) fn remove_instance(&mut self, instance: InstanceId) -> KnownInstance {
        if !self.lanes.contains_key(&instance) {
            return KnownInstance::Gone;
        }
        self.slots.leave(instance);
        self.leaving.insert(instance);
        KnownInstance::Leaving
    }

    /// The instance's batch must be judged anew.
    pub(crate) fn touch(&mut self, instance: InstanceId) {
        if let Some(lane) = self.lanes.get_mut(&instance) {
            if let Some(LaneWait { until: Some(until) }) = lane.waits.take() {
                self.alarms.remove(&(until, instance));
            }
            self.touched.insert(instance);
        }
    }

    /// Nothing comes any more: no sequence goes on, and those that rest in their
    /// slots end for the backlog's sake. What is held or waits to grow would wait in
    /// vain.
    pub(crate) fn drain(&mut self, now: Time, out: &mut Actions) {
        for index in (0..).map(SequenceIndex).take(self.sequences.len()) {
            if self.find(index).is_some_and(|known| known.membership == Membership::Open) {
                self.close(index, out);
                self.end_if_over(index, out);
            }
        }
        self.fill_slots(now);
        self.hold = None;
        self.touch_all();
    }

    fn touch_all(&mut self) {
        let instances: Vec<InstanceId> = self.lanes.keys().copied().collect();
        for instance in instances {
            self.touch(instance);
        }
    }

    /// Closes the batches of free instances: the latest moment there is.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        outlook: Outlook,
        lanes: &mut Lanes,
        out: &mut Actions,
    ) {
        self.look_at_hold();
        if self.hold.is_some() {
            return;
        }
        while let Some(instance) = self.touched.pop_first() {
            let Some(lane) = self.lanes.get_mut(&instance) else { continue };
            if !lanes.is_free(instance) {
                continue;
            }
            match lane.judge(now, outlook) {
                Verdict::Nothing => lanes.withdraw(instance, out),
                Verdict::Wait { until, .. } => {
                    self.alarms.extend(until.map(|until| (until, instance)));
                    lanes.withdraw(instance, out);
                }
                Verdict::Close { requests, .. } => {
                    if lanes.take_this(instance, now, out) == Taken::AwaitsPermit {
                        continue;
                    }
                    let rows = lane.take(requests, &self.requests);
                    self.execute(instance, &rows, now, out);
                }
            }
        }
    }

    /// Lets instances go whose last sequence has ended.
    pub(crate) fn settle_departures(&mut self, lanes: &mut Lanes, out: &mut Actions) {
        let slots = &self.slots;
        let is_empty = |instance: &InstanceId| slots.taken(*instance) == 0;
        let gone: Vec<InstanceId> = self.leaving.iter().copied().filter(is_empty).collect();
        for instance in gone {
            self.touch(instance);
            self.touched.remove(&instance);
            self.leaving.remove(&instance);
            self.slots.remove(instance);
            self.lanes.remove(&instance);
            if lanes.remove(instance, out) == Departure::Gone {
                out.push(Action::InstanceRemoved(instance));
            }
        }
    }

    fn look_at_hold(&mut self) {
        let enough = |waiting: usize, wanted: u32| u32::try_from(waiting).is_ok_and(|n| n < wanted);
        if let Some(hold) = self.hold
            && !enough(self.counts.queued_in_slots, hold.in_slots)
            && !enough(self.counts.queued_in_backlog, hold.in_backlog)
        {
            self.hold = None;
            self.touch_all();
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

/// Whether an instance that shall go is still there.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum KnownInstance {
    /// It goes when its last sequence has ended.
    Leaving,
    /// It went, or it finishes its last batch.
    Gone,
}

/// Why a request can't be taken, if it can't.
fn refusal(mark: SequencePosition, is_known: bool, life: Life) -> Option<FailReason> {
    match life {
        Life::Draining | Life::Drained => Some(FailReason::Draining),
        Life::Open if !mark.start && !is_known => Some(FailReason::MissingStart),
        Life::Open => None,
    }
}

#[cfg(test)]
mod tests;
