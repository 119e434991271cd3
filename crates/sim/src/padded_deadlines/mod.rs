//! Requests of unequal lengths with deadlines, in padded batches: the rules of both hold, and
//! what is admitted is answered in time once costs are known.

mod known_costs;
mod rules;
mod scenes;

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{
    Action, Actions, DeadlineSpec, DynamicSpec, Event, InstanceId, PaddingSpec, QueuePolicy,
    RequestInfo, RequestKey, Scheduler, SchedulingMode, SchedulingSpec, ShapeClassId, Time,
};

use self::known_costs::check_known_costs;
use self::scenes::{check_gain, check_goodput, check_order};
use crate::check::{Check, ensure};
use crate::random::Random;

/// A request is passed over by at most this many batches.
const PASSED_OVER_MAX: u32 = 16;

/// The requests of a batch are among this many in front.
const LOOK_AHEAD: usize = 64;

/// A padded batch has at most this many times the elements of its requests.
const PADDED_MAX: u64 = 8;

/// After this many executions, the scheduler is expected to know what they cost.
const LEARNED_AFTER: u64 = 150;

/// After this many refusals one is executed although it looks hopeless.
const PROBED_AFTER: u64 = 32;

/// A size is known after this many executions, and forgotten after [`FORGOTTEN_AFTER`] of
/// others.
const KNOWN_AFTER: u64 = 8;
const FORGOTTEN_AFTER: u64 = 1_000;

/// The factor by which predictions may be wrong once costs are known.
const TOLERANCE: f64 = 1.5;

/// Estimates of one request are wrong by up to this factor: elements are told apart in half
/// octaves, and where most of the cost is fixed, requests of a class cost the same.
const ESTIMATE_ERROR: f64 = 1.3;

/// Late answers of one load, once costs are known: this many, and this share. Requests that are
/// executed alone and are late by less than estimates are wrong don't count.
const LATE_MAX: (u64, f64) = (3, 0.01);

/// From this number of executions on, all batches together may take this share of what their
/// requests take one by one.
const SLOWER_MAX: (u64, f64) = (500, 1.06);

/// The durations of batches in nanoseconds: fixed, by element, and by element and length.
#[derive(Copy, Clone, Debug)]
struct Costs {
    fixed: u64,
    element: u64,
    square: u64,
}

impl Costs {
    fn of(self, rows: u32, length: u32) -> u64 {
        let elements = u64::from(rows) * u64::from(length);
        let square = elements * u64::from(length) * self.square / 256;
        (self.fixed + elements * self.element + square).max(1)
    }
}

/// The order of service: level, deadline, arrival.
type Place = (u64, Time, u64);

#[derive(Copy, Clone, Debug)]
struct Waiting {
    info: RequestInfo,
    place: Place,
    expires: Time,
    passed_over: u32,
}

/// The promises to the requests of a load, kept and broken.
#[derive(Copy, Clone, Default, Debug)]
pub struct Promises {
    /// Requests that were executed once costs were known.
    pub executed: u64,
    /// Those of them that were answered too late.
    pub late: u64,
}

struct World {
    scheduler: Scheduler,
    actions: Actions,
    spec: DeadlineSpec,
    budget: u64,
    max_rows: u32,
    costs: Costs,
    longest: u32,
    now: Time,
    arrivals: u64,
    waiting: BTreeMap<RequestKey, Waiting>,
    /// The instances, and when each busy one ends.
    lanes: BTreeMap<InstanceId, Option<Time>>,
    /// The busy instances whose executions the scheduler could not predict.
    unpredicted: BTreeSet<InstanceId>,
    executions: u64,
    /// The most elements that were executed.
    elements_max: u64,
    /// By size and shape: how often executed, and the number of the latest execution.
    executed: BTreeMap<(u32, u32, u32), (u64, u64)>,
    /// The times that batches and their requests one by one took, once costs are known.
    took: (u64, u64),
    promises: Promises,
    /// Those of the late ones that estimates do not explain.
    broken_promises: u64,
    /// Requests that were answered too late, whether costs were known or not.
    late: u64,
    /// Requests that were refused on arrival as too late, since the latest execution.
    refused: u64,
    /// Batches in a row that had deadlines alone while others of their level waited.
    passed_over: u32,
    /// Requests that were refused after they had waited.
    refused_late: u64,
    is_draining: bool,
    is_drained: bool,
}

/// Plays the load of a seed.
///
/// # Errors
///
/// The rule that was broken.
pub fn check_padded_deadlines(seed: u64) -> Result<Promises, String> {
    let named = |message| format!("padded deadlines: {message}");
    let mut random = Random::new(seed);
    let mut world = World::new(&mut random);
    world.live(&mut random).map_err(named)?;
    check_gain(&mut random).map_err(named)?;
    check_order(&mut random).map_err(named)?;
    check_known_costs(&mut random).map_err(named)?;
    check_goodput(seed).map_err(named)?;
    Ok(world.promises)
}

fn settings(max_batch_size: u32, mode: SchedulingMode) -> SchedulingSpec {
    SchedulingSpec { max_batch_size, mode, hold_until_queued: 0, hold_until_backlogged: 0 }
}

impl World {
    fn new(random: &mut Random) -> Self {
        let levels = random.pick(&[0, 0, 2]);
        let costs = Costs {
            fixed: random.pick(&[50, 500, 5_000]),
            element: random.between(1, 20),
            square: random.pick(&[0, 0, 2]),
        };
        let longest = random.pick(&[8, 64, 256]);
        let max_rows = random.between_u32(2, 16);
        let full_ns = costs.of(max_rows, longest / 3 + 1) + costs.of(1, longest);
        let policy = QueuePolicy {
            default_timeout_ns: random.pick(&[0, 0, full_ns]),
            max_queue_size: random.pick(&[0, 0, 30]),
            ..QueuePolicy::default()
        };
        let queue = DynamicSpec {
            priority_levels: levels,
            default_priority_level: levels.min(1),
            default_queue_policy: policy,
            ..DynamicSpec::default()
        };
        let objective_ns = random.pick(&[full_ns, 2 * full_ns, 5 * full_ns, u64::MAX]);
        let mut world = World {
            scheduler: Scheduler::new(settings(1, SchedulingMode::Default)),
            actions: Actions::default(),
            spec: DeadlineSpec { objective_ns, queue: DynamicSpec::default() },
            budget: random.pick(&[u64::MAX, 40, 200, 1_000]),
            max_rows,
            costs,
            longest,
            now: Time(0),
            arrivals: 0,
            waiting: BTreeMap::new(),
            lanes: BTreeMap::new(),
            unpredicted: BTreeSet::new(),
            executions: 0,
            elements_max: 0,
            executed: BTreeMap::new(),
            took: (0, 0),
            promises: Promises::default(),
            broken_promises: 0,
            late: 0,
            refused: 0,
            passed_over: 0,
            refused_late: 0,
            is_draining: false,
            is_drained: false,
        };
        world.rebuild(queue);
        world
    }

    fn rebuild(&mut self, queue: DynamicSpec) {
        let padding = Some(PaddingSpec { budget: self.budget });
        self.spec.queue = DynamicSpec { padding, ..queue };
        self.lanes = BTreeMap::from([(InstanceId(0), None)]);
        let mode = SchedulingMode::Deadline(self.spec.clone());
        self.scheduler = Scheduler::new(settings(self.max_rows, mode));
    }

    /// Executes all that waits. Returns how many executions end with it. What is late or refused
    /// is counted anew.
    fn finish(&mut self) -> Result<u64, String> {
        let before = self.executions;
        (self.late, self.refused_late) = (0, 0);
        self.pass_until(Time::MAX)?;
        Ok(self.executions - before)
    }

    fn live(&mut self, random: &mut Random) -> Check {
        for id in 0..random.between_u32(1, 2) {
            self.lanes.insert(InstanceId(id), None);
            self.step(Event::AddInstance(InstanceId(id)))?;
        }
        let mean = self.costs.of(1, self.longest / 3);
        let gap = mean / random.pick(&[1, 2, 4]);
        for _ in 0..random.between(50, 900) {
            let until = self.now.saturating_add(random.between(0, 2 * gap));
            self.pass_until(until)?;
            match random.between(1, 100) {
                1..=4 => self.cancel(random)?,
                5..=6 => self.step(Event::Tick)?,
                7 => (0..random.between(1, 80)).try_for_each(|_| self.arrive(random))?,
                _ => self.arrive(random)?,
            }
        }
        self.is_draining = true;
        self.step(Event::Drain)?;
        self.pass_until(Time::MAX)?;
        ensure!(self.waiting.is_empty(), "{:?} wait for ever", self.waiting.keys());
        ensure!(self.is_drained, "it is quiet, but drained was not reported");
        let ((together, one_by_one), (least, most)) = (self.took, SLOWER_MAX);
        ensure!(
            self.executions < least || together as f64 <= one_by_one as f64 * most,
            "batches took {together} ns, and their requests one by one {one_by_one} ns"
        );
        let (executed, late) = (self.promises.executed, self.broken_promises);
        let late_max = LATE_MAX.0 as f64 + LATE_MAX.1 * executed as f64;
        let is_kept = late as f64 <= late_max;
        ensure!(is_kept, "{late} of {executed} are late");
        Ok(())
    }

    /// Ends executions and wakes the scheduler, in the order of time.
    fn pass_until(&mut self, until: Time) -> Check {
        loop {
            let ends = self.lanes.iter().filter_map(|(id, end)| end.map(|end| (end, *id))).min();
            let wakeup = self.scheduler.next_wakeup();
            ensure!(wakeup.is_none_or(|time| time > self.now), "it wakes in the past");
            match (ends, wakeup) {
                (Some((end, id)), _) if end <= until && wakeup.is_none_or(|time| end <= time) => {
                    self.now = end;
                    self.lanes.insert(id, None);
                    self.unpredicted.remove(&id);
                    self.executions += 1;
                    self.step(Event::LaneFree(id))?;
                }
                (_, Some(time)) if time <= until && time < Time::MAX => {
                    self.now = time;
                    self.step(Event::Tick)?;
                }
                _ => break,
            }
        }
        if until < Time::MAX {
            self.now = until;
        }
        Ok(())
    }

    fn arrive(&mut self, random: &mut Random) -> Check {
        let length = match random.between(1, 10) {
            1 => self.longest,
            2 => random.between_u32(0, self.longest),
            _ => random.between_u32(1, self.longest / 3 + 1),
        };
        let deadline = match random.between(1, 6) {
            1 => self.now.saturating_add(random.between(0, 4 * self.costs.of(4, self.longest))),
            _ => Time::MAX,
        };
        let class = random.pick(&[0, 0, 0, 0, 1]);
        let rows = random.pick(&[1, 1, 1, 2]);
        self.arrive_with(length, rows, class, random.pick(&[0, 1, 2]), deadline)
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
        let levels = self.spec.queue.priority_levels;
        let level = if (1..=levels).contains(&priority) { priority } else { levels.min(1) };
        let deadline = self.now.saturating_add(self.spec.objective_ns).min(deadline);
        let timeout_ns = self.spec.queue.default_queue_policy.default_timeout_ns;
        let expires = if timeout_ns == 0 { Time::MAX } else { self.now.saturating_add(timeout_ns) };
        let place = (level, deadline, info.key.0);
        self.waiting.insert(info.key, Waiting { info, place, expires, passed_over: 0 });
        self.step(Event::Enqueue(info))
    }

    fn cancel(&mut self, random: &mut Random) -> Check {
        let Some(last) = self.arrivals.checked_sub(1) else { return Ok(()) };
        self.step(Event::Cancel(RequestKey(random.between(0, last))))
    }

    fn step(&mut self, event: Event) -> Check {
        self.scheduler.step(self.now, event, &mut self.actions);
        let actions: Vec<Action> = self.actions.drain().collect();
        for action in actions {
            match action {
                Action::Dispatch { instance, batch } => self.execute(instance, &batch)?,
                Action::Fail { key, reason } => self.fail(&event, key, reason)?,
                Action::Drained => self.is_drained = true,
                other => return Err(format!("{other:?} without cause")),
            }
        }
        self.check_rest(&event)
    }
}
