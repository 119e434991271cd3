//! Clients that send and cancel requests and disconnect.

use std::collections::BTreeSet;

use galatea_policy::{
    FailReason, RequestInfo, RequestKey, SchedulerEvent, SchedulingSpec, SequencePosition,
    ShapeClassId, Time,
};

use super::behavior::ClientBehavior;
use super::client_sequences::{ClientSequences, random_client_sequences};
use super::{OpenRequest, PlannedEvent, World};
use crate::keys::CorrelationId;
use crate::random::Random;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) open: BTreeSet<RequestKey>,
    pub(super) sequences: ClientSequences,
    pub(super) behavior: ClientBehavior,
    open_max: usize,
    pause_max: u64,
    rows_max: u32,
    shape_classes: u32,
    priority_max: u64,
    timeout_chance: u64,
    cancel_chance: u64,
    disconnected: bool,
}

impl World {
    pub(super) fn act(&mut self, now: Time, index: usize) -> Result<(), String> {
        if self.clients[index].disconnected || self.is_finishing() {
            return Ok(());
        }
        let is_full = self.clients[index].open.len() >= self.clients[index].open_max;
        if !is_full {
            self.send(now, index)?;
        }
        // Time must pass for waiting requests, so the pause isn't always 0.
        let extra_pause = if is_full { 10 } else { u64::from(self.random.percent(10)) };
        self.plan_within(
            self.clients[index].pause_max + extra_pause,
            PlannedEvent::ClientActs(index),
        );
        Ok(())
    }

    pub(super) fn disconnect(&mut self, now: Time, index: usize) -> Result<(), String> {
        self.clients[index].disconnected = true;
        for key in self.clients[index].open.clone() {
            self.step_at(now, SchedulerEvent::Cancel(key))?;
        }
        Ok(())
    }

    fn send(&mut self, now: Time, index: usize) -> Result<(), String> {
        self.sent += 1;
        let reuse = self.reuse();
        let key = RequestKey(self.keys.allocate(reuse));
        let step = self.next_step(index);
        let client = &self.clients[index];
        let random = &mut self.random;
        let is_sequential = self.trace.setup.is_sequential();
        let least_rows = u32::from(self.trace.setup.spec.max_batch_size != 0);
        let mut info = RequestInfo {
            key,
            batch_size: if is_sequential {
                1
            } else {
                random.between_u32(least_rows, client.rows_max)
            },
            shape_class: ShapeClassId(random.between_u32(0, client.shape_classes)),
            priority: random.between(0, client.priority_max),
            deadline: Time::MAX,
            length: 0,
            timeout_ns: if random.percent(client.timeout_chance) {
                random.between(1, 60)
            } else {
                0
            },
            sequence: None,
        };
        let cancels = random.percent(client.cancel_chance);
        let iterations_left = if self.is_iterative() {
            self.random.between(0, self.timing.iterations_max)
        } else {
            0
        };
        let sequence = step.and_then(|step| step.sequence);
        let last_activity = step.map_or(Time(0), |step| step.last_activity);
        let open = OpenRequest {
            client: index,
            number: self.sent,
            sequence,
            last_activity,
            iterations_left,
        };
        self.open.insert(key, open);
        self.clients[index].open.insert(key);
        if self.is_iterative() {
            let reuse = self.reuse();
            let sequence = self.correlation_ids.anonymous(reuse);
            info.sequence = Some(SequencePosition { sequence, start: true, end: false });
        } else if let Some(step) = step {
            self.assign_sequence(now, &mut info, step)?;
        }
        self.step_at(now, SchedulerEvent::Enqueue(info))?;
        self.record_activity(index, sequence);
        if cancels {
            self.plan_within(30, PlannedEvent::Cancel(key, self.sent));
        }
        Ok(())
    }

    /// Checks that a request of a well-behaved client is refused only by an unloading model or
    /// after its sequence was idle.
    pub(super) fn check_refusal(&self, key: RequestKey, reason: FailReason) -> Result<(), String> {
        let Some(open) = self.open.get(&key) else {
            return Err(format!("{key:?} fails with {reason:?} after its reply"));
        };
        let client = &self.clients[open.client];
        let sequential = self.trace.setup.is_sequential();
        if client.behavior != ClientBehavior::WellBehaved || !sequential || self.is_iterative() {
            return Ok(());
        }
        let is_allowed = match reason {
            FailReason::Draining => self.draining,
            FailReason::MissingStart => self.was_idle(open),
            FailReason::Cancelled
            | FailReason::QueueFull
            | FailReason::TimeoutExpired
            | FailReason::NoSequence
            | FailReason::SequenceTimeoutExpired
            | FailReason::RescheduledTooLate
            | FailReason::TooLate { .. } => false,
        };
        if is_allowed {
            return Ok(());
        }
        Err(format!("{key:?} of a well-behaved client fails with {reason:?}"))
    }
}

pub(super) fn random_client(random: &mut Random, spec: &SchedulingSpec, number: u64) -> Client {
    let rows_limit = if spec.max_batch_size == 0 { 3 } else { spec.max_batch_size };
    let rows_max = if random.percent(50) { 1 } else { random.between_u32(1, rows_limit) };
    let chances = [0, 0, 20, 80];
    let behavior =
        if random.percent(30) { ClientBehavior::WellBehaved } else { ClientBehavior::Arbitrary };
    let chance = |random: &mut Random| match behavior {
        ClientBehavior::Arbitrary => random.pick(&chances),
        ClientBehavior::WellBehaved => 0,
    };
    Client {
        open: BTreeSet::new(),
        sequences: random_client_sequences(
            random,
            spec,
            behavior,
            CorrelationId(100 * (number + 1)),
        ),
        behavior,
        open_max: random.pick(&[1, 4, 12, 30]),
        pause_max: random.pick(&[0, 1, 5, 20, 60]),
        rows_max,
        shape_classes: random.pick(&[0, 0, 1, 2]),
        priority_max: random.pick(&[0, 2, 4]),
        timeout_chance: chance(random),
        cancel_chance: chance(random),
        disconnected: false,
    }
}
