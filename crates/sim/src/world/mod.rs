//! A simulated world: clients and instances that act in virtual time.

mod behavior;
mod client_sequences;
mod clients;
mod instances;
mod occurrences;
mod report;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use galatea_policy::{FailReason, InstanceId, RequestKey, SchedulerEvent, Time};

use self::behavior::ClientBehavior;
use self::clients::{Client, random_client};
use self::instances::Instances;
pub use self::occurrences::{CoverageCounts, CoverageEvent};
pub use self::report::{RunResult, SimulationConfig, Violation};
use crate::coalescing::check_coalescing;
use crate::decision::SchedulerDecision;
use crate::ensembles::fuzz_ensembles;
use crate::goodput::check_goodput;
use crate::harness::Harness;
use crate::keys::{CorrelationIds, Keys, Reuse};
use crate::padding_gain::check_padding_gain;
use crate::random::Random;
use crate::random_setup::random_setup;
use crate::replies::check_replies;
use crate::residency::fuzz_residency;
use crate::shares::{check_shares, fuzz_shares, fuzz_tenant_limits};
use crate::sharing::fuzz_rate_limiter;
use crate::timed::{fuzz_deadlines, fuzz_padded_deadlines, fuzz_padding};
use crate::trace::SchedulerTrace;
use crate::workers::fuzz_workers;

/// Runs a seed's world after checking the seed's replies, equal requests, shared resources,
/// ensembles, workers, models in memory, tenants and deadlines.
pub fn run(seed: u64, config: &SimulationConfig) -> Result<RunResult, Box<Violation>> {
    let mut world = World::new(seed, *config);
    let result = catch_unwind(AssertUnwindSafe(|| {
        check_replies(seed)?;
        check_coalescing(seed)?;
        fuzz_rate_limiter(seed)?;
        fuzz_ensembles(seed)?;
        fuzz_workers(seed)?;
        fuzz_residency(seed % RESIDENCY_SEEDS)?;
        fuzz_shares(seed)?;
        fuzz_tenant_limits(seed)?;
        if seed.is_multiple_of(SHARES_EVERY) {
            check_shares(seed)?;
        }
        fuzz_deadlines(seed)?;
        if seed.is_multiple_of(PADDING_EVERY) {
            fuzz_padding(seed)?;
            fuzz_padded_deadlines(seed / PADDING_EVERY % PADDED_DEADLINES_SEEDS)?;
        }
        if seed.is_multiple_of(GOODPUT_EVERY) {
            check_goodput(seed)?;
            check_padding_gain(seed)?;
        }
        world.live()
    }));
    let message = match result {
        Ok(Ok(())) => return Ok(world.outcome()),
        Ok(Err(message)) => message,
        Err(panic) => crate::trace::panic_text(&panic),
    };
    Err(Box::new(Violation { seed, config: *config, message, trace: world.trace }))
}

/// The number of worlds of models in memory. Their checks can't see the ends of all promises, so
/// only worlds that were examined are used.
const RESIDENCY_SEEDS: u64 = 6_000;

/// The number of seeds per check of shares over ten seconds, which takes tens of thousands of
/// requests.
const SHARES_EVERY: u64 = 128;

/// The number of seeds per goodput check, because a load of thousands of requests takes longer than
/// a seed's world.
const GOODPUT_EVERY: u64 = 16;

/// The number of seeds used for padded batches with deadlines. Their bounds hold for these seeds.
const PADDED_DEADLINES_SEEDS: u64 = 2_500;
/// The number of seeds per padding check, because costs have to be learned.
const PADDING_EVERY: u64 = 8;

/// An entry of the schedule.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PlannedEvent {
    /// A client may send a request.
    ClientActs(usize),
    /// A client disconnects, which cancels its requests.
    Disconnect(usize),
    /// A client cancels the request with this number.
    Cancel(RequestKey, u64),
    /// An instance finishes the execution with this number.
    Finish(InstanceId, u64),
    /// A backend releases the request that belongs to the execution with this number.
    Release(RequestKey, u64),
    AddInstance,
    RemoveInstance,
    /// An instance fails permanently.
    BreakInstance,
    Drain,
    /// A timer fires unnecessarily.
    Tick,
}

/// The limits of the world's random times.
#[derive(Debug)]
struct Timing {
    duration_max: u64,
    /// The maximum time from a batch to the release of its request.
    release_lateness_max: u64,
    /// The number of times that an iterative request is rescheduled.
    iterations_max: u64,
    /// The maximum delay of a timer.
    lateness_max: u64,
    /// The chance that a step's time was read before that of the previous step.
    clock_back_chance: u64,
    key_reuse_chance: u64,
    lanes_max: u32,
}

/// A request that has neither failed nor finished.
#[derive(Debug)]
struct OpenRequest {
    client: usize,
    /// The number, which is unique even if keys are reused.
    number: u64,
    /// The number of its client's sequence; `None` if the client didn't begin it.
    sequence: Option<u64>,
    /// The last activity of the sequence before this request.
    last_activity: Time,
    iterations_left: u64,
}

struct World {
    config: SimulationConfig,
    random: Random,
    harness: Harness,
    trace: SchedulerTrace,
    timing: Timing,
    clients: Vec<Client>,
    open: BTreeMap<RequestKey, OpenRequest>,
    instances: Instances,
    keys: Keys,
    correlation_ids: CorrelationIds,
    schedule: BinaryHeap<Reverse<(Time, u64, PlannedEvent)>>,
    planned: u64,
    sent: u64,
    wakeups: u64,
    executions: u64,
    completed: u64,
    occurrences: CoverageCounts,
    draining: bool,
}

impl World {
    fn new(seed: u64, config: SimulationConfig) -> Self {
        let mut random = Random::new(seed);
        let setup = random_setup(&mut random, config.mode);
        let duration_max = random.pick(&[0, 3, 10, 40]);
        let timing = Timing {
            duration_max,
            release_lateness_max: random.pick(&[0, 0, duration_max, 30]),
            iterations_max: random.pick(&[0, 1, 3, 8]),
            lateness_max: random.pick(&[0, 0, 0, 1, 5]),
            clock_back_chance: random.pick(&[0, 0, 5]),
            key_reuse_chance: random.pick(&[0, 10, 50]),
            lanes_max: random.between_u32(1, 4),
        };
        let harness = Harness::new(&setup, config.reference);
        let clients = (0..random.between(1, 5))
            .map(|number| random_client(&mut random, &setup.spec, number))
            .collect();
        let mut world = World {
            config,
            random,
            harness,
            trace: SchedulerTrace { setup, steps: Vec::new() },
            timing,
            clients,
            open: BTreeMap::new(),
            instances: Instances::default(),
            keys: Keys::default(),
            correlation_ids: CorrelationIds::default(),
            schedule: BinaryHeap::new(),
            planned: 0,
            sent: 0,
            wakeups: 0,
            executions: 0,
            completed: 0,
            occurrences: CoverageCounts::default(),
            draining: false,
        };
        world.plan_start();
        world
    }

    fn plan_start(&mut self) {
        for client in 0..self.clients.len() {
            self.plan_within(20, PlannedEvent::ClientActs(client));
            if self.clients[client].behavior == ClientBehavior::Arbitrary && self.random.percent(20)
            {
                self.plan_within(1000, PlannedEvent::Disconnect(client));
            }
        }
        for _ in 0..self.timing.lanes_max {
            let delay = self.random.pick(&[0, 0, 30]);
            self.plan_within(delay, PlannedEvent::AddInstance);
        }
        for (chance, planned) in [
            (30, PlannedEvent::RemoveInstance),
            (10, PlannedEvent::BreakInstance),
            (10, PlannedEvent::Drain),
            (30, PlannedEvent::Tick),
        ] {
            if self.random.percent(chance) {
                self.plan_within(1000, planned);
            }
        }
    }

    fn plan_within(&mut self, most: u64, planned: PlannedEvent) {
        let time = self.harness.now().saturating_add(self.random.between(0, most));
        self.planned += 1;
        self.schedule.push(Reverse((time, self.planned, planned)));
    }

    fn live(&mut self) -> Result<(), String> {
        while self.run_next()? {}
        // The remaining requests wait indefinitely: for a lane, the test hook or an unlimited
        // delay. Unloading the model ends all of these waits.
        if !self.harness.has_accepting_lane() {
            self.add_instance()?;
        }
        self.draining = true;
        self.step(SchedulerEvent::Drain)?;
        while self.run_next()? {}
        self.harness.check_no_leaks()?;
        if let Some((key, _)) = self.open.first_key_value() {
            return Err(format!("{key:?} has neither failed nor finished"));
        }
        // The causes of wake-ups are a rejection, a move back, the end of a delay for each
        // execution, and the end of a sequence.
        let bound = 3 * self.sent + self.executions;
        if self.wakeups > bound {
            return Err(format!("{} wake-ups for {} requests", self.wakeups, self.sent));
        }
        Ok(())
    }

    /// Performs the next event. Returns false if there is none.
    fn run_next(&mut self) -> Result<bool, String> {
        let wakeup = self.harness.next_wakeup().filter(|time| time.0 < Self::END);
        let wakeup = wakeup
            .map(|time| time.saturating_add(self.random.between(0, self.timing.lateness_max)));
        let next = self.schedule.peek().map(|Reverse((time, ..))| *time);
        let timer_first = match (wakeup, next) {
            (None, None) => return Ok(false),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(wakeup), Some(next)) if wakeup == next => self.random.percent(50),
            (Some(wakeup), Some(next)) => wakeup < next,
        };
        if timer_first {
            self.wakeups += 1;
            let now = wakeup.unwrap_or_default();
            self.step_at(now, SchedulerEvent::Tick)?;
        } else if let Some(Reverse((now, _, planned))) = self.schedule.pop() {
            self.perform(now, planned)?;
        }
        Ok(true)
    }

    /// Timers beyond this time are never reached.
    const END: u64 = u64::MAX / 2;

    fn step(&mut self, event: SchedulerEvent) -> Result<(), String> {
        self.step_at(self.harness.now(), event)
    }

    fn step_at(&mut self, now: Time, event: SchedulerEvent) -> Result<(), String> {
        let back = if self.random.percent(self.timing.clock_back_chance) { 3 } else { 0 };
        let now = match event {
            // A wake-up with an early time would have no effect.
            SchedulerEvent::Tick => now,
            _ => Time(now.0.saturating_sub(back)),
        };
        self.trace.steps.push((now, event));
        for decision in self.harness.step(now, event)? {
            self.apply(decision)?;
        }
        Ok(())
    }

    fn apply(&mut self, decision: SchedulerDecision) -> Result<(), String> {
        self.occurrences.count(&decision);
        match decision {
            SchedulerDecision::Execute { instance, entries, .. } => {
                self.execute(instance, &entries)
            }
            SchedulerDecision::Fail(key, reason) => {
                self.check_refusal(key, reason)?;
                if matches!(reason, FailReason::MissingStart | FailReason::Draining) {
                    self.drop_sequence(key);
                }
                self.settle(key);
            }
            SchedulerDecision::SequenceClosed(sequence) => self.correlation_ids.close(sequence),
            SchedulerDecision::SequenceEnded(sequence) => self.correlation_ids.end(sequence),
            SchedulerDecision::InstanceRemoved(_) | SchedulerDecision::Drained => {}
        }
        Ok(())
    }

    /// Records that a request has failed or finished.
    fn settle(&mut self, key: RequestKey) {
        if let Some(open) = self.open.remove(&key) {
            self.clients[open.client].open.remove(&key);
        }
        self.keys.free(key.0);
    }

    fn perform(&mut self, now: Time, planned: PlannedEvent) -> Result<(), String> {
        match planned {
            PlannedEvent::ClientActs(client) => self.act(now, client),
            PlannedEvent::Disconnect(client) => self.disconnect(now, client),
            PlannedEvent::Cancel(key, number) => {
                // By now, another request may have the same key.
                let is_other = self.open.get(&key).is_some_and(|open| open.number != number);
                if is_other { Ok(()) } else { self.step_at(now, SchedulerEvent::Cancel(key)) }
            }
            PlannedEvent::Finish(instance, number) => self.finish(now, instance, number),
            PlannedEvent::Release(key, number) => self.release(now, key, number),
            PlannedEvent::AddInstance => {
                self.advance(now)?;
                self.add_instance()
            }
            PlannedEvent::RemoveInstance => self.remove_instance(now),
            PlannedEvent::BreakInstance => self.break_instance(now),
            PlannedEvent::Drain => {
                self.draining = true;
                self.step_at(now, SchedulerEvent::Drain)
            }
            PlannedEvent::Tick => {
                self.plan_within(200, PlannedEvent::Tick);
                if self.is_finishing() || self.draining {
                    self.schedule.retain(|Reverse((.., planned))| *planned != PlannedEvent::Tick);
                }
                self.step_at(now, SchedulerEvent::Tick)
            }
        }
    }

    /// Returns true if clients and instances begin nothing new, because the maximum number of
    /// requests was sent or clients waiting for replies planned too many events.
    fn is_finishing(&self) -> bool {
        self.sent >= self.config.requests || self.planned >= 20 * self.config.requests
    }

    /// Advances the scheduler to the current time.
    fn advance(&mut self, now: Time) -> Result<(), String> {
        if now > self.harness.now() { self.step_at(now, SchedulerEvent::Tick) } else { Ok(()) }
    }

    fn reuse(&mut self) -> Reuse {
        if self.random.percent(self.timing.key_reuse_chance) {
            Reuse::SameKey
        } else {
            Reuse::OtherGeneration
        }
    }

    fn outcome(&self) -> RunResult {
        RunResult {
            trace_hash: self.harness.trace_hash(),
            events: self.harness.steps(),
            completed: self.completed,
            occurrences: self.occurrences,
        }
    }
}
