//! Independent requests whose execution cost is a fixed function of rows and length, which the
//! scheduler has to learn. Each decision can therefore be judged against the truth.
//!
//! A single world covers all schedulers that learn costs. They differ in what they know about
//! requests ([`Kind`]), and therefore in the rules that apply.
//!
//! | part | content |
//! |---|---|
//! | `draw` | the settings, costs and arrivals of a seed |
//! | `batches` | the rules of a batch |
//! | `knowledge` | what the scheduler can know of costs, and what it promises with that |
//! | `refusals` | the rules of requests that fail, and of those that wait |
//! | `scenes` | loads of a purpose |

mod batches;
mod draw;
mod knowledge;
mod refusals;
mod scenes;

use std::collections::BTreeMap;

use galatea_policy::{
    Batch, DeadlineBatcherSpec, DynamicBatcherSpec, FailReason, InstanceId, PaddingSpec,
    RequestInfo, RequestKey, SchedulerAction, SchedulerEvent, SchedulingMode, SchedulingSpec,
    ShapeClassId, Time, TimeoutAction,
};
use galatea_simulate::{SchedulerSimulation, SimulationWorld};

pub use self::knowledge::DeadlineOutcomes;
use self::knowledge::Knowledge;
use crate::check::{Check, ensure};
use crate::random::Random;

/// The kind of scheduler.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// Requests of equal lengths share batches, by deadline.
    Deadlines,
    /// Requests of different lengths share padded batches, in arrival order.
    Padded,
    /// Requests of different lengths share padded batches, by deadline. The rules of both other
    /// kinds apply, and admitted requests complete in time once costs are known.
    PaddedDeadlines,
}

impl Kind {
    fn has_deadlines(self) -> bool {
        self != Kind::Padded
    }

    fn is_padded(self) -> bool {
        self != Kind::Deadlines
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Deadlines => "deadlines",
            Kind::Padded => "padding",
            Kind::PaddedDeadlines => "padded deadlines",
        }
    }
}

/// The durations of batches in nanoseconds: fixed, per row, per element, and per element and
/// length.
#[derive(Copy, Clone, Default, Debug)]
struct Costs {
    fixed: u64,
    row: u64,
    element: u64,
    square: u64,
}

impl Costs {
    const fn by_element(fixed: u64, element: u64) -> Self {
        Costs { fixed, row: 0, element, square: 0 }
    }

    fn of(self, rows: u32, length: u32) -> u64 {
        let elements = u64::from(rows) * u64::from(length);
        let square = elements * u64::from(length) * self.square / 256;
        (self.fixed + u64::from(rows) * self.row + elements * self.element + square).max(1)
    }
}

/// The position in the service order: the level, then the deadline or 1 if the request was moved
/// back, then the arrival.
type Place = (u64, Time, u64);

#[derive(Copy, Clone, Debug)]
struct TimedRequest {
    info: RequestInfo,
    place: Place,
    /// [`Time::MAX`] means no deadline.
    deadline: Time,
    arrived: Time,
    expires: Time,
    passed_over: u32,
}

impl TimedRequest {
    /// Returns the request's rows times its length.
    fn elements(&self) -> u64 {
        (u64::from(self.info.batch_size) * u64::from(self.info.length)).max(1)
    }
}

struct World {
    kind: Kind,
    timed: SchedulerSimulation,
    /// The settings of the queue, without padding.
    queue: DynamicBatcherSpec,
    objective_ns: u64,
    budget: u64,
    max_rows: u32,
    costs: Costs,
    /// The durations of successive batches with several requests, in tenths of the usual duration.
    batches_take: Option<[u64; 5]>,
    longest: u32,
    own_deadlines: OwnDeadlines,
    arrivals: u64,
    moved_back: u64,
    waiting: BTreeMap<RequestKey, TimedRequest>,
    knowledge: Knowledge,
    /// The number of consecutive batches that only had requests with deadlines while others of
    /// their level waited.
    passed_over: u32,
    /// The number of requests that completed too late.
    late: u64,
    /// The number of requests refused as too late on arrival since the latest execution.
    refused: u64,
    /// The number of requests refused as too late after they had waited.
    refused_late: u64,
    /// The time at which a request that looked hopeless completed in time, if none that arrived
    /// later was executed.
    recovered_at: Option<Time>,
    /// The instance that executes a request that looked hopeless, and the request's deadline.
    probing: Option<(InstanceId, Time)>,
    is_draining: bool,
    is_drained: bool,
}

/// The share of requests that have their own deadline.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum OwnDeadlines {
    Few,
    /// Almost all requests, so that the others have to wait for their turn.
    Most,
}

/// Runs a seed's load of requests that have deadlines.
///
/// # Errors
///
/// Returns the broken rule.
pub fn fuzz_deadlines(seed: u64) -> Check {
    check(Kind::Deadlines, seed).map(|_| ())
}

/// Runs a seed's load of requests with different lengths.
///
/// # Errors
///
/// Returns the broken rule.
pub fn fuzz_padding(seed: u64) -> Check {
    check(Kind::Padded, seed).map(|_| ())
}

/// Runs a seed's load of requests with different lengths and deadlines.
///
/// # Errors
///
/// Returns the broken rule.
pub fn fuzz_padded_deadlines(seed: u64) -> Result<DeadlineOutcomes, String> {
    check(Kind::PaddedDeadlines, seed)
}

fn check(kind: Kind, seed: u64) -> Result<DeadlineOutcomes, String> {
    let mut random = Random::new(seed);
    let mut world = World::new(kind, &mut random);
    let result = world.live(&mut random).and_then(|()| match kind {
        Kind::Deadlines => scenes::check_deadlines(&mut random),
        Kind::Padded => scenes::check_padding(&mut random),
        Kind::PaddedDeadlines => scenes::check_padded_deadlines(&mut random, seed),
    });
    result.map_err(|message| format!("{}: {message}", kind.name()))?;
    Ok(world.knowledge.promises)
}

fn settings(max_batch_size: u32, mode: SchedulingMode) -> SchedulingSpec {
    SchedulingSpec { max_batch_size, mode, hold_until_queued: 0, hold_until_backlogged: 0 }
}

impl World {
    /// Starts over with a scheduler that has these settings.
    fn rebuild(&mut self, queue: DynamicBatcherSpec) {
        let padding = self.kind.is_padded().then_some(PaddingSpec { budget: self.budget });
        self.queue = queue;
        let queue = DynamicBatcherSpec { padding, ..self.queue.clone() };
        let mode = match self.kind.has_deadlines() {
            true => SchedulingMode::Deadline(DeadlineBatcherSpec {
                objective_ns: self.objective_ns,
                queue,
            }),
            false => SchedulingMode::Dynamic(queue),
        };
        self.timed = SchedulerSimulation::new(settings(self.max_rows, mode));
    }

    /// Advances time to this moment.
    fn pass_until(&mut self, until: Time) -> Check {
        loop {
            let wakeup = self.timed.scheduler.next_wakeup();
            ensure!(wakeup.is_none_or(|time| time > self.timed.now), "it wakes in the past");
            let next = self.timed.peek_next_event();
            let Some(next) = next.filter(|(time, _)| *time <= until) else { break };
            self.pass(next)?;
        }
        if until < Time::MAX {
            self.timed.now = until;
        }
        Ok(())
    }

    /// Advances time by this much.
    fn pass_ns(&mut self, nanoseconds: u64) -> Check {
        self.pass_until(self.after(nanoseconds))
    }

    fn after(&self, nanoseconds: u64) -> Time {
        self.timed.now.saturating_add(nanoseconds)
    }

    /// Executes all waiting requests. Returns the number of executions that end meanwhile. Resets
    /// the counts of late and refused requests.
    fn finish(&mut self) -> Result<u64, String> {
        let before = self.timed.executions;
        (self.late, self.refused_late) = (0, 0);
        self.pass_until(Time::MAX)?;
        Ok(self.timed.executions - before)
    }

    /// Ends the load and checks that nothing waits forever.
    fn drain(&mut self) -> Check {
        self.is_draining = true;
        self.step(SchedulerEvent::Drain)?;
        self.pass_until(Time::MAX)?;
        ensure!(self.waiting.is_empty(), "{:?} wait for ever", self.waiting.keys());
        ensure!(self.is_drained, "it is quiet, but drained was not reported");
        Ok(())
    }

    fn arrive_with(
        &mut self,
        length: u32,
        rows: u32,
        class: u32,
        priority: u64,
        deadline: Time,
    ) -> Check {
        let info = RequestInfo {
            key: RequestKey(self.arrivals),
            batch_size: rows,
            shape_class: ShapeClassId(class),
            priority,
            deadline,
            length,
            timeout_ns: 0,
            sequence: None,
        };
        self.arrivals += 1;
        let level = self.level_of(priority);
        let deadline = self.after(self.objective_ns).min(deadline);
        let place = match self.kind.has_deadlines() {
            true => (level, deadline, info.key.0),
            false => (level, Time(0), info.key.0),
        };
        let timeout_ns = self.queue.default_queue_policy.default_timeout_ns;
        let expires = if timeout_ns == 0 { Time::MAX } else { self.after(timeout_ns) };
        let arrived = self.timed.now;
        let waiting = TimedRequest { info, place, deadline, arrived, expires, passed_over: 0 };
        self.waiting.insert(info.key, waiting);
        self.step(SchedulerEvent::Enqueue(info))
    }

    /// Adds a request of one row.
    fn arrive_plainly(&mut self, length: u32, deadline: Time) -> Check {
        self.arrive_with(length, 1, 0, 0, deadline)
    }

    fn level_of(&self, priority: u64) -> u64 {
        let levels = self.queue.priority_levels;
        if (1..=levels).contains(&priority) { priority } else { levels.min(1) }
    }

    fn cancel(&mut self, random: &mut Random) -> Check {
        let Some(last) = self.arrivals.checked_sub(1) else { return Ok(()) };
        self.step(SchedulerEvent::Cancel(RequestKey(random.between(0, last))))
    }

    /// Moves back the requests whose timeouts have expired, in order of expiry.
    fn move_expired(&mut self) {
        if self.queue.default_queue_policy.timeout_action == TimeoutAction::Reject {
            return;
        }
        let is_over =
            |one: &&mut TimedRequest| one.place.1 == Time(0) && one.expires <= self.timed.now;
        let mut expired: Vec<&mut TimedRequest> =
            self.waiting.values_mut().filter(is_over).collect();
        expired.sort_unstable_by_key(|one| (one.expires, one.info.key));
        for one in expired {
            self.moved_back += 1;
            one.place = (one.place.0, Time(1), self.moved_back);
        }
    }

    /// Returns the list of requests that share batches: those of a level that are in time, or those
    /// that were moved back.
    fn list_of(&self, one: &TimedRequest) -> (u64, bool) {
        (one.place.0, !self.kind.has_deadlines() && one.place.1 > Time(0))
    }

    /// Returns the waiting requests, in service order.
    fn in_order(&mut self) -> Vec<TimedRequest> {
        self.move_expired();
        let mut order: Vec<TimedRequest> = self.waiting.values().copied().collect();
        order.sort_unstable_by_key(|waiting| waiting.place);
        order
    }
}

impl SimulationWorld for World {
    type Broken = String;

    fn timed(&mut self) -> &mut SchedulerSimulation {
        &mut self.timed
    }

    fn begin(&mut self, instance: InstanceId, batch: &Batch) -> Result<u64, String> {
        let takes_ns = self.check_batch(instance, batch)?;
        self.refused = 0;
        Ok(takes_ns)
    }

    fn end(&mut self, instance: InstanceId) {
        let now = self.timed.now;
        if let Some((_, deadline)) = self.probing.take_if(|(on, _)| *on == instance) {
            self.recovered_at = (now <= deadline).then_some(now);
        }
        self.knowledge.end(instance, self.timed.executions);
    }

    fn fail(&mut self, event: &SchedulerEvent, key: RequestKey, reason: FailReason) -> Check {
        self.check_refusal(event, key, reason)
    }

    fn notice(&mut self, action: &SchedulerAction) -> Check {
        ensure!(*action == SchedulerAction::Drained, "{action:?} without cause");
        self.is_drained = true;
        Ok(())
    }

    fn settle(&mut self, event: &SchedulerEvent) -> Check {
        self.check_rest(event)
    }
}
