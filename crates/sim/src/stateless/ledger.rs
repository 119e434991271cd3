//! What is known from outside: who waits, who runs, which lanes there are. Built
//! from events and deeds alone.

use std::collections::BTreeMap;

use galatea_policy::{
    BatchKey, DynamicSpec, Event, InstanceId, QueuePolicy, RequestInfo, RequestKey, SchedulingMode,
    Time, TimeoutAction,
};

use crate::forming::{Forming, Moment, Waiting};
use crate::setup::Setup;

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) rules: Rules,
    /// In order of arrival.
    pub(crate) waiting: Vec<Fact>,
    pub(crate) lanes: BTreeMap<InstanceId, Lane>,
    /// Arrivals that the test hook still wants to see.
    pub(crate) held: u32,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    pub(crate) now: Time,
    arrivals: u64,
}

/// The specification, made explicit.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) forming: Forming,
    settings: DynamicSpec,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) key: RequestKey,
    pub(crate) rows: u64,
    pub(crate) batch_key: BatchKey,
    pub(crate) level: u64,
    pub(crate) arrival: u64,
    pub(crate) enqueued: Time,
    pub(crate) reject_at: Option<Time>,
    pub(crate) move_back_at: Option<Time>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lane {
    pub(crate) state: LaneState,
    /// Since when it is free, or busy.
    pub(crate) since: Time,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum LaneState {
    Free,
    Busy,
    Leaving,
}

impl Waiting for Fact {
    fn key(&self) -> RequestKey {
        self.key
    }

    fn rows(&self) -> u64 {
        self.rows
    }

    fn batch_key(&self) -> BatchKey {
        self.batch_key
    }

    fn since(&self) -> Time {
        self.enqueued
    }
}

impl Rules {
    fn new(setup: &Setup) -> Self {
        let (max, settings) = match &setup.spec.mode {
            SchedulingMode::Default => (1, DynamicSpec::default()),
            SchedulingMode::Dynamic(settings) => (setup.spec.max_batch_size, settings.clone()),
            SchedulingMode::Sequence(_) => unreachable!("sequences have a ledger of their own"),
        };
        let preferred = &settings.preferred_batch_sizes;
        let mut forming = Forming::new(max, preferred, settings.max_queue_delay_ns);
        forming.custom = setup.custom;
        Rules { forming, settings }
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

impl Fact {
    fn new(ticket: &RequestInfo, rules: &Rules, arrival: u64, now: Time) -> Self {
        let level = rules.level(ticket.priority);
        let policy = rules.policy(level);
        let own = if policy.allow_timeout_override && ticket.timeout_ns != 0 {
            ticket.timeout_ns
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
        let rows = u64::from(ticket.batch_size.max(1));
        let (key, batch_key) = (ticket.key, ticket.batch_key);
        Fact { key, rows, batch_key, level, arrival, enqueued: now, reject_at, move_back_at }
    }

    pub(crate) fn is_rejected_by(&self, now: Time) -> bool {
        self.reject_at.is_some_and(|deadline| deadline <= now)
    }

    /// Sorting by this gives the order of service.
    fn turn(&self, now: Time) -> (u64, Option<Time>, u64) {
        (self.level, self.move_back_at.filter(|deadline| *deadline <= now), self.arrival)
    }
}

impl Ledger {
    pub(crate) fn new(setup: &Setup) -> Self {
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

    /// Whether a well-behaved driver can say this now.
    pub(crate) fn allows(&self, event: &Event) -> bool {
        match event {
            Event::Enqueue(ticket) => self.find(ticket.key).is_none(),
            Event::LaneFree(id) => {
                matches!(self.state(*id), Some(LaneState::Busy | LaneState::Leaving))
            }
            Event::AddInstance(id) => !self.lanes.contains_key(id),
            Event::RemoveInstance(id) => self.lanes.contains_key(id),
            Event::Released { .. } => false,
            // The harness says it, where it is said.
            Event::PermitGranted(_) | Event::PermitDelayed(_) => false,
            Event::Cancel(_) | Event::Drain | Event::Tick => true,
        }
    }

    /// What an instance does, if there is such an instance.
    pub(crate) fn state(&self, id: InstanceId) -> Option<LaneState> {
        self.lanes.get(&id).map(|lane| lane.state)
    }

    pub(crate) fn set_state(&mut self, id: InstanceId, state: LaneState) {
        self.lanes.insert(id, Lane { state, since: self.now });
    }

    pub(crate) fn find(&self, key: RequestKey) -> Option<usize> {
        self.waiting.iter().position(|fact| fact.key == key)
    }

    /// Whether a request can't wait at its level, which is full of others.
    pub(crate) fn is_full_for(&self, ticket: &RequestInfo) -> bool {
        let level = self.rules.level(ticket.priority);
        let limit = u64::from(self.rules.policy(level).max_queue_size);
        let there = self
            .waiting
            .iter()
            .filter(|fact| fact.level == level && !fact.is_rejected_by(self.now));
        limit != 0 && u64::try_from(there.count()).is_ok_and(|there| there >= limit)
    }

    pub(crate) fn arrive(&mut self, ticket: &RequestInfo) {
        let fact = Fact::new(ticket, &self.rules, self.arrivals, self.now);
        self.arrivals += 1;
        self.held = self.held.saturating_sub(1);
        self.waiting.push(fact);
    }

    pub(crate) fn in_order_of_service(&self) -> Vec<&Fact> {
        let mut order: Vec<&Fact> = self.waiting.iter().collect();
        order.sort_by_key(|fact| fact.turn(self.now));
        order
    }

    pub(crate) fn can_run(&self) -> bool {
        self.held == 0 && self.lanes.values().any(|lane| lane.state == LaneState::Free)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.lanes.values().all(|lane| lane.state == LaneState::Free)
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { now: self.now, draining: self.draining }
    }
}
