//! A naive scheduler: a single list that is sorted in each step. It can be trusted because it
//! shares no code with the real scheduler and recalculates everything in each step.

use galatea_policy::{
    BatchEntry, CloseReason, DynamicBatcherSpec, FailReason, InstanceId, QueuePolicy, RequestInfo,
    RequestKey, SchedulerEvent, SchedulingMode, ShapeClassId, Time, TimeoutAction,
};

use crate::decision::SchedulerDecision;
use crate::dynamic_rules::{NaiveBatcher, QueuedRequest, sum};
use crate::setup::SchedulerSetup;

#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    batcher: NaiveBatcher,
    /// True for the default scheduler, which executes each request in a batch of its own.
    is_unbatched: bool,
    settings: DynamicBatcherSpec,
    pending: Vec<Pending>,
    /// The free instances, in the order in which they became free.
    free: Vec<InstanceId>,
    busy: Vec<InstanceId>,
    removing: Vec<InstanceId>,
    hold: u32,
    draining: bool,
    drained: bool,
    arrivals: u64,
    now: Time,
}

#[derive(Clone, Debug)]
struct Pending {
    key: RequestKey,
    rows: u64,
    shape_class: ShapeClassId,
    level: u64,
    arrival: u64,
    enqueued: Time,
    deadline: Option<Time>,
    action: TimeoutAction,
}

impl QueuedRequest for Pending {
    fn key(&self) -> RequestKey {
        self.key
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn shape_class(&self) -> ShapeClassId {
        self.shape_class
    }

    fn since(&self) -> Time {
        self.enqueued
    }
}

impl Oracle {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        let spec = &setup.spec;
        let (max, settings) = match &spec.mode {
            SchedulingMode::Default => (1, DynamicBatcherSpec::default()),
            SchedulingMode::Dynamic(settings) => (spec.max_batch_size, settings.clone()),
            SchedulingMode::Deadline(_) => unreachable!("deadlines have a world of their own"),
            SchedulingMode::Sequence(_) => unreachable!("sequences have an oracle of their own"),
        };
        Oracle {
            batcher: NaiveBatcher::new(max, &settings, setup.custom),
            is_unbatched: matches!(spec.mode, SchedulingMode::Default),
            settings,
            pending: Vec::new(),
            free: Vec::new(),
            busy: Vec::new(),
            removing: Vec::new(),
            hold: spec.hold_until_queued,
            draining: false,
            drained: false,
            arrivals: 0,
            now: Time(0),
        }
    }

    pub(crate) fn step(&mut self, now: Time, event: SchedulerEvent) -> Vec<SchedulerDecision> {
        self.now = self.now.max(now);
        let mut decisions = self.reject();
        match event {
            SchedulerEvent::Enqueue(info) => decisions.extend(self.enqueue(info)),
            SchedulerEvent::Cancel(key) => {
                if let Some(index) = self.pending.iter().position(|pending| pending.key == key) {
                    self.pending.remove(index);
                    decisions.push(SchedulerDecision::Fail(key, FailReason::Cancelled));
                }
            }
            SchedulerEvent::LaneFree(instance) => {
                self.busy.retain(|busy| *busy != instance);
                if self.removing.contains(&instance) {
                    self.removing.retain(|removing| *removing != instance);
                    decisions.push(SchedulerDecision::InstanceRemoved(instance));
                } else {
                    self.free.push(instance);
                }
            }
            SchedulerEvent::AddInstance(instance) => self.free.push(instance),
            SchedulerEvent::RemoveInstance(instance) if self.free.contains(&instance) => {
                self.free.retain(|free| *free != instance);
                decisions.push(SchedulerDecision::InstanceRemoved(instance));
            }
            SchedulerEvent::RemoveInstance(instance) => self.removing.push(instance),
            SchedulerEvent::Drain => {
                self.draining = true;
                self.hold = 0;
            }
            SchedulerEvent::Released { .. }
            | SchedulerEvent::PermitGranted(_)
            | SchedulerEvent::PermitDelayed(_)
            | SchedulerEvent::Tick => {}
        }
        self.run(&mut decisions);
        if self.draining && !self.drained && self.pending.is_empty() && self.busy.is_empty() {
            self.drained = true;
            decisions.push(SchedulerDecision::Drained);
        }
        decisions
    }

    fn reject(&mut self) -> Vec<SchedulerDecision> {
        let now = self.now;
        let is_expired = |pending: &Pending| {
            pending.action == TimeoutAction::Reject
                && pending.deadline.is_some_and(|deadline| deadline <= now)
        };
        let mut expired: Vec<Pending> =
            self.pending.iter().filter(|pending| is_expired(pending)).cloned().collect();
        self.pending.retain(|pending| !is_expired(pending));
        expired.sort_by_key(|pending| (pending.deadline, pending.arrival));
        expired
            .iter()
            .map(|pending| SchedulerDecision::Fail(pending.key, FailReason::TimeoutExpired))
            .collect()
    }

    fn enqueue(&mut self, info: RequestInfo) -> Option<SchedulerDecision> {
        if self.draining {
            return Some(SchedulerDecision::Fail(info.key, FailReason::Draining));
        }
        let (level, policy) = self.level(info.priority);
        let there = self.pending.iter().filter(|pending| pending.level == level).count();
        if policy.max_queue_size != 0
            && there >= usize::try_from(policy.max_queue_size).expect("64 bits")
        {
            return Some(SchedulerDecision::Fail(info.key, FailReason::QueueFull));
        }
        let mut timeout = policy.default_timeout_ns;
        if policy.allow_timeout_override && info.timeout_ns != 0 && info.timeout_ns < timeout {
            timeout = info.timeout_ns;
        }
        let deadline = if timeout == 0 { None } else { sum(self.now, timeout) };
        self.pending.push(Pending {
            key: info.key,
            rows: u64::from(info.batch_size).max(1),
            shape_class: info.shape_class,
            level,
            arrival: self.arrivals,
            enqueued: self.now,
            deadline,
            action: policy.timeout_action,
        });
        self.arrivals += 1;
        self.hold = self.hold.saturating_sub(1);
        None
    }

    fn level(&self, priority: u64) -> (u64, QueuePolicy) {
        let settings = &self.settings;
        if settings.priority_levels == 0 {
            return (0, settings.default_queue_policy);
        }
        let named = priority >= 1 && priority <= settings.priority_levels;
        let level = if named { priority } else { settings.default_priority_level };
        (
            level,
            settings
                .priority_queue_policies
                .get(&level)
                .copied()
                .unwrap_or(settings.default_queue_policy),
        )
    }

    /// Sorts pending requests into the current service order.
    fn sort(&mut self) {
        let now = self.now;
        self.pending.sort_by_key(|pending| {
            let moved_back = pending.deadline.filter(|deadline| *deadline <= now);
            (pending.level, moved_back, pending.arrival)
        });
    }

    fn run(&mut self, decisions: &mut Vec<SchedulerDecision>) {
        self.sort();
        while self.hold == 0 && !self.free.is_empty() {
            let batch = self.batcher.batch(&self.pending, self.now, self.draining);
            let Some((count, reason)) = batch else { return };
            let reason = if self.is_unbatched { CloseReason::Unbatched } else { reason };
            let instance = self.free.pop().expect("checked above");
            self.busy.push(instance);
            let batch: Vec<Pending> = self.pending.drain(..count).collect();
            let rows: u64 = batch.iter().map(|pending| pending.rows).sum();
            let entries = batch.iter().map(|pending| BatchEntry::Request(pending.key)).collect();
            let rows = u32::try_from(rows).expect("a batch is small");
            decisions.push(SchedulerDecision::Execute { instance, entries, rows, reason });
        }
    }

    /// Returns the time at which the next decision is due without an event.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        let can_run = self.hold == 0 && !self.free.is_empty();
        let mut times = Vec::new();
        for pending in &self.pending {
            match pending.action {
                TimeoutAction::Reject => times.extend(pending.deadline),
                TimeoutAction::Delay if can_run => {
                    times.extend(pending.deadline.filter(|deadline| *deadline > self.now))
                }
                TimeoutAction::Delay => {}
            }
            if can_run {
                times.extend(self.batcher.dispatch_time(pending.enqueued));
            }
        }
        times.into_iter().min()
    }
}
