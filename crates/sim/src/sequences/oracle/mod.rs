//! A naive sequence batcher: a single list of sequences in start order, which is searched for each
//! query. It shares no code with the real one.
//!
//! It orders simultaneous decisions like the real one: timeouts before idle ends, each by deadline,
//! and instances by id.

mod batches;

use galatea_policy::{
    FailReason, InstanceId, RequestInfo, RequestKey, RequestRelease, SchedulerEvent,
    SchedulingMode, SequenceBatcherSpec, SequenceKey, SequenceStrategy, ShapeClassId, Time,
};

use crate::decision::SchedulerDecision;
use crate::dynamic_rules::{NaiveBatcher, sum};
use crate::setup::{SchedulerSetup, oldest_settings};

#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    slots: u32,
    strategy: OracleStrategy,
    idle_ns: u64,
    iterative: bool,
    /// The numbers of requests in slots and in the backlog that the test hook waits for.
    hold: Option<(usize, usize)>,
    sequences: Vec<LiveSequence>,
    lanes: Vec<OracleLane>,
    /// Executing requests and their sequences; `None` if the sequence has ended.
    executing: Vec<(RequestKey, Option<SequenceKey>)>,
    draining: bool,
    drained: bool,
    now: Time,
    ticks: u64,
}

#[derive(Clone, Debug)]
enum OracleStrategy {
    Direct { delay_ns: u64, minimum_ready: usize },
    Oldest(NaiveBatcher),
}

/// A live sequence.
#[derive(Clone, Debug)]
struct LiveSequence {
    key: SequenceKey,
    /// The slot and instance; `None` in the backlog.
    slot: Option<(u32, InstanceId)>,
    waiting: Vec<Pending>,
    running: Option<Pending>,
    open: bool,
    cancelled: bool,
    /// The position in the order of eligibility, and the time at which the sequence became
    /// eligible.
    ready: Option<(u64, Time)>,
    /// The latest arrival or rescheduling of a request.
    arrived: Time,
    /// The end of the idle time, and the order in which idle times began.
    idle_end: Option<(Time, u64)>,
    /// True if the sequence is iterative and its idle time is over.
    expired: bool,
}

#[derive(Clone, Debug)]
struct Pending {
    key: RequestKey,
    shape_class: ShapeClassId,
    since: Time,
    fails_at: Option<Time>,
    start: bool,
    end: bool,
}

#[derive(Clone, Debug)]
struct OracleLane {
    id: InstanceId,
    busy: bool,
    removing: bool,
}

impl Oracle {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        let spec = &setup.spec;
        let SchedulingMode::Sequence(SequenceBatcherSpec {
            strategy,
            max_sequence_idle_ns,
            iterative,
        }) = &spec.mode
        else {
            unreachable!("the stateless schedulers have an oracle of their own")
        };
        let rows = spec.max_batch_size.max(1);
        let (slots, strategy) = match strategy {
            SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots } => {
                let delay_ns = *max_queue_delay_ns;
                let minimum_ready = whole(*minimum_ready_slots);
                (rows, OracleStrategy::Direct { delay_ns, minimum_ready })
            }
            SequenceStrategy::Oldest {
                max_candidate_sequences,
                preferred_batch_sizes,
                max_queue_delay_ns,
            } => {
                let slots =
                    if *max_candidate_sequences > 0 { *max_candidate_sequences } else { rows };
                let settings = oldest_settings(preferred_batch_sizes, *max_queue_delay_ns);
                let batcher = NaiveBatcher::new(rows, &settings, None);
                (slots, OracleStrategy::Oldest(batcher))
            }
        };
        Oracle {
            slots,
            strategy,
            idle_ns: *max_sequence_idle_ns,
            iterative: *iterative,
            hold: Some((whole(spec.hold_until_queued), whole(spec.hold_until_backlogged))),
            sequences: Vec::new(),
            lanes: Vec::new(),
            executing: Vec::new(),
            draining: false,
            drained: false,
            now: Time(0),
            ticks: 0,
        }
    }

    pub(crate) fn step(&mut self, now: Time, event: SchedulerEvent) -> Vec<SchedulerDecision> {
        self.now = self.now.max(now);
        let mut decisions = Vec::new();
        self.time_out(&mut decisions);
        self.assign_slots();
        match event {
            SchedulerEvent::Enqueue(info) => self.enqueue(info, &mut decisions),
            SchedulerEvent::Cancel(key) => self.cancel(key, &mut decisions),
            SchedulerEvent::Released { key, release } => self.release(key, release, &mut decisions),
            SchedulerEvent::LaneFree(id) => self.lane(id).busy = false,
            SchedulerEvent::AddInstance(id) => {
                self.lanes.push(OracleLane { id, busy: false, removing: false });
                self.lanes.sort_by_key(|lane| lane.id);
            }
            SchedulerEvent::RemoveInstance(id) => self.lane(id).removing = true,
            SchedulerEvent::Drain => self.drain(&mut decisions),
            SchedulerEvent::PermitGranted(_)
            | SchedulerEvent::PermitDelayed(_)
            | SchedulerEvent::Tick => {}
        }
        self.assign_slots();
        self.run(&mut decisions);
        self.finish_drain(&mut decisions);
        self.remove_instances(&mut decisions);
        decisions
    }

    fn lane(&mut self, id: InstanceId) -> &mut OracleLane {
        self.lanes.iter_mut().find(|lane| lane.id == id).expect("it was added")
    }

    fn sequence(&self, key: SequenceKey) -> Option<usize> {
        self.sequences.iter().position(|sequence| sequence.key == key)
    }

    fn time_out(&mut self, decisions: &mut Vec<SchedulerDecision>) {
        let expires =
            |sequence: &LiveSequence| sequence.waiting.iter().filter_map(|one| one.fails_at).min();
        let backlog = self.sequences.iter().filter(|sequence| sequence.slot.is_none());
        let mut failing: Vec<(Time, u64, SequenceKey)> = backlog
            .filter_map(|sequence| {
                Some((expires(sequence)?, sequence.key.0 & 0xffff_ffff, sequence.key))
            })
            .filter(|(expiry, ..)| *expiry <= self.now)
            .collect();
        failing.sort();
        for (.., key) in failing {
            let index = self.sequence(key).expect("it waits");
            self.fail_from(index, 0, FailReason::SequenceTimeoutExpired, decisions);
        }
        let ends = |sequence: &LiveSequence| Some((sequence.idle_end?, sequence.key));
        let ends = self.sequences.iter().filter_map(ends);
        let mut idle: Vec<_> = ends.filter(|((at, _), _)| *at <= self.now).collect();
        idle.sort();
        for (_, key) in idle {
            let index = self.sequence(key).expect("it is idle");
            self.sequences[index].idle_end = None;
            if self.iterative {
                self.sequences[index].expired = true;
                continue;
            }
            self.close(index, decisions);
            self.end_if_finished(key, decisions);
        }
    }

    /// Starts the idle time of a sequence with a slot.
    fn begin_idle_time(&mut self, index: usize) {
        let sequence = &mut self.sequences[index];
        if sequence.slot.is_none() || self.idle_ns == 0 || !(self.iterative || sequence.open) {
            return;
        }
        let whole = sequence.arrived.saturating_add(self.idle_ns);
        let least = self.now.saturating_add(self.idle_ns.min(super::rules::SLOT_GRACE_NS));
        let end = whole.max(least);
        self.ticks += 1;
        sequence.idle_end = (end != Time::MAX).then_some((end, self.ticks));
    }

    fn enqueue(&mut self, info: RequestInfo, decisions: &mut Vec<SchedulerDecision>) {
        let Some(mark) = info.sequence else {
            decisions.push(SchedulerDecision::Fail(info.key, FailReason::NoSequence));
            return;
        };
        let known = self.sequence(mark.sequence);
        let refusal = if self.draining {
            Some(FailReason::Draining)
        } else {
            (known.is_none() && !mark.start).then_some(FailReason::MissingStart)
        };
        if let Some(reason) = refusal {
            decisions.push(SchedulerDecision::Fail(info.key, reason));
            if known.is_none() {
                decisions.extend([
                    SchedulerDecision::SequenceClosed(mark.sequence),
                    SchedulerDecision::SequenceEnded(mark.sequence),
                ]);
            }
            return;
        }
        let index = known.unwrap_or_else(|| self.begin(mark.sequence));
        let fails_at = if info.timeout_ns == 0 { None } else { sum(self.now, info.timeout_ns) };
        self.sequences[index].waiting.push(Pending {
            key: info.key,
            shape_class: info.shape_class,
            since: self.now,
            fails_at,
            start: mark.start,
            end: mark.end,
        });
        self.sequences[index].arrived = self.now;
        if mark.end || self.iterative {
            self.close(index, decisions);
        }
        self.begin_idle_time(index);
    }

    fn begin(&mut self, key: SequenceKey) -> usize {
        self.sequences.push(LiveSequence {
            key,
            slot: None,
            waiting: Vec::new(),
            running: None,
            open: true,
            cancelled: false,
            ready: None,
            arrived: self.now,
            idle_end: None,
            expired: false,
        });
        self.sequences.len() - 1
    }

    fn cancel(&mut self, key: RequestKey, decisions: &mut Vec<SchedulerDecision>) {
        for index in 0..self.sequences.len() {
            let sequence = &mut self.sequences[index];
            if self.iterative && sequence.running.as_ref().is_some_and(|running| running.key == key)
            {
                sequence.cancelled = true;
            }
            if let Some(first) = sequence.waiting.iter().position(|waiting| waiting.key == key) {
                self.fail_from(index, first, FailReason::Cancelled, decisions);
                return;
            }
        }
    }

    /// Fails the requests from `first` on and closes the sequence.
    fn fail_from(
        &mut self,
        index: usize,
        first: usize,
        reason: FailReason,
        decisions: &mut Vec<SchedulerDecision>,
    ) {
        let key = self.sequences[index].key;
        let failing = self.sequences[index].waiting.split_off(first);
        decisions
            .extend(failing.iter().map(|pending| SchedulerDecision::Fail(pending.key, reason)));
        self.close(index, decisions);
        self.end_if_finished(key, decisions);
    }

    fn release(
        &mut self,
        key: RequestKey,
        release: RequestRelease,
        decisions: &mut Vec<SchedulerDecision>,
    ) {
        let place = self.executing.iter().position(|(running, _)| *running == key);
        let (_, sequence) = self.executing.swap_remove(place.expect("it is in execution"));
        let Some(index) = sequence.and_then(|sequence| self.sequence(sequence)) else { return };
        let sequence = &mut self.sequences[index];
        let ran = sequence.running.take().expect("it is in execution");
        if release == RequestRelease::Reschedule && sequence.cancelled {
            decisions.push(SchedulerDecision::Fail(key, FailReason::Cancelled));
        } else if release == RequestRelease::Reschedule && sequence.expired {
            decisions.push(SchedulerDecision::Fail(key, FailReason::RescheduledTooLate));
        } else if release == RequestRelease::Reschedule {
            sequence.waiting.insert(0, Pending { since: self.now, start: false, ..ran });
            sequence.arrived = self.now;
            self.begin_idle_time(index);
        }
        let sequence = self.sequences[index].key;
        self.end_if_finished(sequence, decisions);
    }

    fn close(&mut self, index: usize, decisions: &mut Vec<SchedulerDecision>) {
        let sequence = &mut self.sequences[index];
        if sequence.open {
            sequence.open = false;
            sequence.idle_end = sequence.idle_end.filter(|_| self.iterative);
            decisions.push(SchedulerDecision::SequenceClosed(sequence.key));
        }
    }

    fn end_if_finished(&mut self, key: SequenceKey, decisions: &mut Vec<SchedulerDecision>) {
        let index = self.sequence(key).expect("it is live");
        let sequence = &self.sequences[index];
        let comes_back = self.iterative && sequence.running.is_some();
        if sequence.open || !sequence.waiting.is_empty() || comes_back {
            return;
        }
        self.sequences.remove(index);
        for (_, sequence) in &mut self.executing {
            // A later sequence may get the same key.
            sequence.take_if(|sequence| *sequence == key);
        }
        decisions.push(SchedulerDecision::SequenceEnded(key));
    }

    /// Assigns free slots to the backlog and updates which sequences are eligible.
    fn assign_slots(&mut self) {
        while let Some(index) = self.sequences.iter().position(|sequence| sequence.slot.is_none())
            && let Some(slot) = self.best_slot()
        {
            self.sequences[index].slot = Some(slot);
            self.begin_idle_time(index);
        }
        for sequence in &mut self.sequences {
            let idle = sequence.slot.is_some() && sequence.running.is_none();
            let mut note = |holds: bool, place: &mut Option<(u64, Time)>| {
                if !holds {
                    *place = None;
                } else if place.is_none() {
                    self.ticks += 1;
                    *place = Some((self.ticks, self.now));
                }
            };
            note(idle && !sequence.waiting.is_empty(), &mut sequence.ready);
        }
    }

    fn best_slot(&self) -> Option<(u32, InstanceId)> {
        let is_free =
            |slot: &(u32, InstanceId)| self.sequences.iter().all(|one| one.slot != Some(*slot));
        let staying = self.lanes.iter().filter(|lane| !lane.removing);
        let slots = staying.flat_map(|lane| (0..self.slots).map(|slot| (slot, lane.id)));
        slots.filter(is_free).min()
    }

    fn is_quiet(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.waiting.is_empty())
            && self.executing.is_empty()
            && self.lanes.iter().all(|lane| !lane.busy)
    }

    fn finish_drain(&mut self, decisions: &mut Vec<SchedulerDecision>) {
        if !self.draining || self.drained || !self.is_quiet() {
            return;
        }
        self.drained = true;
        decisions.push(SchedulerDecision::Drained);
    }

    /// Closes all sequences.
    fn drain(&mut self, decisions: &mut Vec<SchedulerDecision>) {
        self.draining = true;
        self.hold = None;
        let mut open: Vec<SequenceKey> = self
            .sequences
            .iter()
            .filter(|sequence| sequence.open)
            .map(|sequence| sequence.key)
            .collect();
        open.sort_by_key(|key| key.0 & 0xffff_ffff);
        for key in open {
            let index = self.sequence(key).expect("it is live");
            self.close(index, decisions);
            self.end_if_finished(key, decisions);
        }
    }

    fn remove_instances(&mut self, decisions: &mut Vec<SchedulerDecision>) {
        let taken: Vec<InstanceId> =
            self.sequences.iter().filter_map(|sequence| Some(sequence.slot?.1)).collect();
        let goes = |lane: &OracleLane| lane.removing && !lane.busy && !taken.contains(&lane.id);
        decisions.extend(
            self.lanes
                .iter()
                .filter(|lane| goes(lane))
                .map(|lane| SchedulerDecision::InstanceRemoved(lane.id)),
        );
        self.lanes.retain(|lane| !goes(lane));
    }

    /// Returns the time at which the next decision is due without an event.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let backlog = self.sequences.iter().filter(|sequence| sequence.slot.is_none());
        let failures =
            backlog.flat_map(|sequence| &sequence.waiting).filter_map(|one| one.fails_at);
        let idle = self.sequences.iter().filter_map(|sequence| Some(sequence.idle_end?.0));
        failures.chain(idle).chain(self.batch_dispatch_times()).min()
    }
}

fn whole(number: u32) -> usize {
    usize::try_from(number).expect("32 bits or more")
}
