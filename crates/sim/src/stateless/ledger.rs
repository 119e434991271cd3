//! The externally visible state: waiting requests and lanes, derived only from events and
//! decisions.

use std::collections::BTreeMap;

use galatea_policy::{
    DynamicBatcherSpec, InstanceId, QueuePolicy, RequestInfo, RequestKey, SchedulerEvent,
    SchedulingMode, ShapeClassId, Time, TimeoutAction,
};

use crate::dynamic_rules::{BatchContext, DynamicRules, QueuedRequest};
use crate::setup::SchedulerSetup;

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) rules: Rules,
    /// The waiting requests, in arrival order.
    pub(crate) waiting: Vec<WaitingRequest>,
    pub(crate) lanes: BTreeMap<InstanceId, LedgerLane>,
    /// The number of arrivals that the test hook is still waiting for.
    pub(crate) held: u32,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    pub(crate) now: Time,
    arrivals: u64,
}

/// The settings, with defaults resolved.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) dynamic_rules: DynamicRules,
    settings: DynamicBatcherSpec,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) key: RequestKey,
    pub(crate) rows: u64,
    pub(crate) shape_class: ShapeClassId,
    pub(crate) level: u64,
    pub(crate) arrival: u64,
    pub(crate) enqueued: Time,
    pub(crate) reject_at: Option<Time>,
    pub(crate) move_back_at: Option<Time>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct LedgerLane {
    pub(crate) state: LaneState,
    /// The time at which the lane became free or busy.
    pub(crate) since: Time,
}

/// Free ⇄ Busy → Removing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum LaneState {
    Free,
    Busy,
    Removing,
}

impl QueuedRequest for WaitingRequest {
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

impl Rules {
    fn new(setup: &SchedulerSetup) -> Self {
        let (max, settings) = match &setup.spec.mode {
            SchedulingMode::Default => (1, DynamicBatcherSpec::default()),
            SchedulingMode::Dynamic(settings) => (setup.spec.max_batch_size, settings.clone()),
            SchedulingMode::Deadline(_) => unreachable!("deadlines have a world of their own"),
            SchedulingMode::Sequence(_) => unreachable!("sequences have a ledger of their own"),
        };
        let mut dynamic_rules = DynamicRules::new(max, &settings);
        dynamic_rules.custom = setup.custom;
        Rules { dynamic_rules, settings }
    }

    fn level(&self, priority: u64) -> u64 {
        match self.settings.priority_levels {
            0 => 0,
            levels if (1..=levels).contains(&priority) => priority,
            _ => self.settings.default_priority_level,
        }
    }

    fn policy(&self, level: u64) -> QueuePolicy {
        let own = if level == 0 { None } else { self.settings.priority_queue_policies.get(&level) };
        *own.unwrap_or(&self.settings.default_queue_policy)
    }
}

impl WaitingRequest {
    fn new(info: &RequestInfo, rules: &Rules, arrival: u64, now: Time) -> Self {
        let level = rules.level(info.priority);
        let policy = rules.policy(level);
        let own = if policy.allow_timeout_override && info.timeout_ns != 0 {
            info.timeout_ns
        } else {
            u64::MAX
        };
        let timeout = policy.default_timeout_ns.min(own);
        let deadline =
            (timeout != 0).then(|| now.saturating_add(timeout)).filter(|time| *time != Time::MAX);
        let (reject_at, move_back_at) = match policy.timeout_action {
            TimeoutAction::Reject => (deadline, None),
            TimeoutAction::Delay => (None, deadline),
        };
        let rows = u64::from(info.batch_size.max(1));
        let (key, shape_class) = (info.key, info.shape_class);
        WaitingRequest {
            key,
            rows,
            shape_class,
            level,
            arrival,
            enqueued: now,
            reject_at,
            move_back_at,
        }
    }

    pub(crate) fn is_rejected_by(&self, now: Time) -> bool {
        self.reject_at.is_some_and(|deadline| deadline <= now)
    }

    /// Returns the sort key for the service order.
    fn service_order(&self, now: Time) -> (u64, Option<Time>, u64) {
        (self.level, self.move_back_at.filter(|deadline| *deadline <= now), self.arrival)
    }
}

impl Ledger {
    pub(crate) fn new(setup: &SchedulerSetup) -> Self {
        Ledger {
            rules: Rules::new(setup),
            waiting: Vec::new(),
            lanes: BTreeMap::new(),
            held: setup.spec.hold_until_queued,
            draining: false,
            drained: false,
            now: Time(0),
            arrivals: 0,
        }
    }

    /// Returns true if a correct driver can send this event now.
    pub(crate) fn allows(&self, event: &SchedulerEvent) -> bool {
        match event {
            SchedulerEvent::Enqueue(info) => self.find(info.key).is_none(),
            SchedulerEvent::LaneFree(id) => {
                matches!(self.state(*id), Some(LaneState::Busy | LaneState::Removing))
            }
            SchedulerEvent::AddInstance(id) => !self.lanes.contains_key(id),
            SchedulerEvent::RemoveInstance(id) => self.lanes.contains_key(id),
            SchedulerEvent::Released { .. } => false,
            // Only the harness sends this event.
            SchedulerEvent::PermitGranted(_) | SchedulerEvent::PermitDelayed(_) => false,
            SchedulerEvent::Cancel(_) | SchedulerEvent::Drain | SchedulerEvent::Tick => true,
        }
    }

    /// Returns the state of an instance, if it exists.
    pub(crate) fn state(&self, id: InstanceId) -> Option<LaneState> {
        self.lanes.get(&id).map(|lane| lane.state)
    }

    pub(crate) fn set_state(&mut self, id: InstanceId, state: LaneState) {
        self.lanes.insert(id, LedgerLane { state, since: self.now });
    }

    pub(crate) fn find(&self, key: RequestKey) -> Option<usize> {
        self.waiting.iter().position(|request| request.key == key)
    }

    /// Returns true if the request's level is full.
    pub(crate) fn is_full_for(&self, info: &RequestInfo) -> bool {
        let level = self.rules.level(info.priority);
        let limit = u64::from(self.rules.policy(level).max_queue_size);
        let waiting = self
            .waiting
            .iter()
            .filter(|request| request.level == level && !request.is_rejected_by(self.now));
        limit != 0 && u64::try_from(waiting.count()).is_ok_and(|waiting| waiting >= limit)
    }

    pub(crate) fn arrive(&mut self, info: &RequestInfo) {
        let request = WaitingRequest::new(info, &self.rules, self.arrivals, self.now);
        self.arrivals += 1;
        self.held = self.held.saturating_sub(1);
        self.waiting.push(request);
    }

    pub(crate) fn in_order_of_service(&self) -> Vec<&WaitingRequest> {
        let mut order: Vec<&WaitingRequest> = self.waiting.iter().collect();
        order.sort_by_key(|request| request.service_order(self.now));
        order
    }

    pub(crate) fn can_run(&self) -> bool {
        self.held == 0 && self.lanes.values().any(|lane| lane.state == LaneState::Free)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.lanes.values().all(|lane| lane.state == LaneState::Free)
    }

    pub(crate) fn context(&self) -> BatchContext {
        BatchContext { now: self.now, draining: self.draining }
    }
}
