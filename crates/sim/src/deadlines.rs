//! Requests with deadlines. Executions take what a fixed function of rows and length says,
//! which the scheduler has to learn, so each decision can be judged by the truth.

use std::collections::BTreeMap;

use galatea_policy::{
    Action, Actions, Batch, CloseReason, DeadlineSpec, DynamicSpec, Event, FailReason, InstanceId,
    QueuePolicy, RequestInfo, RequestKey, Scheduler, SchedulingMode, SchedulingSpec, ShapeClassId,
    Time,
};

use crate::check::{Check, ensure};
use crate::random::Random;

/// A size is known after this many executions, and forgotten after [`FORGOTTEN_AFTER`] of
/// others.
const KNOWN_AFTER: u64 = 3;
const FORGOTTEN_AFTER: u64 = 500;

/// A request without a deadline is passed over by 16 batches.
const PASSED_OVER_MAX: u32 = 16;

/// After this many refusals one is executed although it looks hopeless.
const PROBED_AFTER: u64 = 32;

/// The durations of batches in nanoseconds: fixed, by row, and by row and element.
#[derive(Copy, Clone, Debug)]
struct Costs {
    fixed: u64,
    row: u64,
    element: u64,
}

impl Costs {
    fn of(self, rows: u32, length: u32) -> u64 {
        self.fixed + u64::from(rows) * (self.row + self.element * u64::from(length))
    }
}

/// The order of service: level, deadline, arrival.
type Place = (u64, Time, u64);

#[derive(Copy, Clone, Debug)]
struct Waiting {
    info: RequestInfo,
    place: Place,
    expires: Time,
}

struct World {
    scheduler: Scheduler,
    actions: Actions,
    spec: DeadlineSpec,
    max_rows: u32,
    costs: Costs,
    now: Time,
    arrivals: u64,
    waiting: BTreeMap<RequestKey, Waiting>,
    /// The instances, and when and with what each busy one ends.
    lanes: BTreeMap<InstanceId, Option<(Time, u32, u32)>>,
    /// By length and rows: how often executed, and the number of the latest execution.
    executed: BTreeMap<(u32, u32), (u64, u64)>,
    executions: u64,
    own_deadlines: OwnDeadlines,
    /// Batches in a row that had deadlines alone while others of their level waited.
    passed_over: u32,
    /// Requests that were refused on arrival as too late, since the latest execution.
    refused: u64,
    /// The latest execution was of a request that looked hopeless, and was in time.
    has_recovered: bool,
    /// The deadline of such a request in execution.
    probing: Option<Time>,
    is_draining: bool,
    is_drained: bool,
}

/// The share of requests that have a deadline of their own.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum OwnDeadlines {
    Few,
    /// Almost all, so that the others have to wait for their turn.
    Most,
}

/// Plays the load of a seed.
///
/// # Errors
///
/// The rule that was broken.
pub fn check_deadlines(seed: u64) -> Check {
    let mut random = Random::new(seed);
    World::new(&mut random).live(&mut random).map_err(|message| format!("deadlines: {message}"))?;
    check_recovery(&mut random).map_err(|message| format!("deadlines: {message}"))?;
    check_levels(&mut random).map_err(|message| format!("deadlines: {message}"))
}

/// The request without a deadline is of a later level than all that have one: it has no turn
/// before them.
fn check_levels(random: &mut Random) -> Check {
    let mut world = World::new(random);
    let queue =
        DynamicSpec { priority_levels: 2, default_priority_level: 2, ..DynamicSpec::default() };
    world.spec = DeadlineSpec { objective_ns: u64::MAX, queue };
    world.max_rows = 1;
    world.costs = Costs { fixed: 100, row: 0, element: 0 };
    world.rebuild();
    world.lanes.insert(InstanceId(0), None);
    world.step(Event::AddInstance(InstanceId(0)))?;
    world.arrive_with(1, 0, 1, Time::MAX)?;
    let later = RequestKey(world.arrivals);
    world.arrive_with(1, 0, 2, Time::MAX)?;
    for _ in 0..20 {
        world.arrive_with(1, 0, 1, world.now.saturating_add(1_000))?;
        world.pass_until(world.now.saturating_add(100))?;
    }
    ensure!(world.waiting.contains_key(&later), "{later:?} goes before those of level 1");
    world.pass_until(Time::MAX)
}

/// The first executions are so slow that every later request looks hopeless. The scheduler
/// finds out that it is wrong, also if more arrives than it believes to be possible, where batches
/// would wait for more requests.
fn check_recovery(random: &mut Random) -> Check {
    let mut world = World::new(random);
    world.max_rows = 8;
    world.spec = DeadlineSpec { objective_ns: 1_000, queue: DynamicSpec::default() };
    world.rebuild();
    world.costs = Costs { fixed: 10_000, row: 0, element: 0 };
    world.lanes.insert(InstanceId(0), None);
    world.step(Event::AddInstance(InstanceId(0)))?;
    // The second probe finds that executions are quick again.
    let (slow, arrivals, gap_ns, least) = match random.between(0, 1) {
        0 => (random.between(1, 5), 200, 20_000, 150),
        _ => (60, 500, 3_000, 350),
    };
    for number in 0..arrivals {
        if number == slow {
            world.costs.fixed = 100;
        }
        world.arrive_with(1, 0, 0, Time::MAX)?;
        world.pass_until(world.now.saturating_add(gap_ns))?;
    }
    let executions = world.executions;
    ensure!(executions >= least, "only {executions} of {arrivals} requests were executed");
    Ok(())
}

fn scheduler(max_rows: u32, spec: &DeadlineSpec) -> Scheduler {
    Scheduler::new(SchedulingSpec {
        max_batch_size: max_rows,
        mode: SchedulingMode::Deadline(spec.clone()),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    })
}

impl World {
    fn new(random: &mut Random) -> Self {
        let max_rows = random.between_u32(1, 8);
        let costs = Costs {
            fixed: random.between(1, 400),
            row: random.between(1, 100),
            element: random.pick(&[0, 10, 50]),
        };
        let levels = random.pick(&[0, 0, 2]);
        let policy = QueuePolicy {
            default_timeout_ns: random.pick(&[0, 0, 2_000]),
            max_queue_size: random.pick(&[0, 0, 5]),
            ..QueuePolicy::default()
        };
        let queue = DynamicSpec {
            priority_levels: levels,
            default_priority_level: levels.min(1),
            default_queue_policy: policy,
            ..DynamicSpec::default()
        };
        let full = costs.of(max_rows, 0);
        let objective_ns = random.pick(&[full, full * 2, full * 4, u64::MAX]);
        let spec = DeadlineSpec { objective_ns, queue };
        World {
            scheduler: scheduler(max_rows, &spec),
            actions: Actions::default(),
            spec,
            max_rows,
            costs,
            now: Time(0),
            arrivals: 0,
            waiting: BTreeMap::new(),
            lanes: BTreeMap::new(),
            executed: BTreeMap::new(),
            executions: 0,
            own_deadlines: random.pick(&[OwnDeadlines::Few, OwnDeadlines::Few, OwnDeadlines::Most]),
            passed_over: 0,
            refused: 0,
            has_recovered: false,
            probing: None,
            is_draining: false,
            is_drained: false,
        }
    }

    fn rebuild(&mut self) {
        self.scheduler = scheduler(self.max_rows, &self.spec);
    }

    fn live(&mut self, random: &mut Random) -> Check {
        let lanes = random.between_u32(1, 3);
        let gap = self.costs.of(self.max_rows, 0) / random.between(1, 2 * u64::from(self.max_rows));
        for id in 0..lanes {
            self.lanes.insert(InstanceId(id), None);
            self.step(Event::AddInstance(InstanceId(id)))?;
        }
        let most = if self.own_deadlines == OwnDeadlines::Most { 400 } else { 150 };
        for _ in 0..random.between(10, most) {
            let until = self.now.saturating_add(random.between(0, 2 * gap));
            self.pass_until(until)?;
            match random.between(1, 100) {
                1..=5 => self.cancel(random)?,
                6..=7 => self.step(Event::Tick)?,
                _ => self.arrive(random)?,
            }
        }
        self.is_draining = true;
        self.step(Event::Drain)?;
        self.pass_until(Time::MAX)?;
        ensure!(self.waiting.is_empty(), "{:?} wait for ever", self.waiting.keys());
        ensure!(self.is_drained, "it is quiet, but drained was not reported");
        Ok(())
    }

    /// Ends executions and wakes the scheduler, in the order of time.
    fn pass_until(&mut self, until: Time) -> Check {
        loop {
            let ends = self.lanes.iter().filter_map(|(id, run)| run.map(|run| (run.0, *id))).min();
            let wakeup = self.scheduler.next_wakeup();
            ensure!(wakeup.is_none_or(|time| time > self.now), "it wakes in the past");
            match (ends, wakeup) {
                (Some((end, id)), _) if end <= until && wakeup.is_none_or(|time| end <= time) => {
                    self.now = end;
                    self.end(id)?;
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

    fn end(&mut self, id: InstanceId) -> Check {
        let (_, rows, length) = self.lanes.insert(id, None).flatten().expect("it is busy");
        self.executions += 1;
        self.has_recovered = self.probing.take().is_some_and(|deadline| self.now <= deadline);
        let known = self.executed.entry((length, rows)).or_default();
        *known = (known.0 + 1, self.executions);
        self.step(Event::LaneFree(id))
    }

    fn arrive(&mut self, random: &mut Random) -> Check {
        let class = random.pick(&[0, 0, 2, 3]);
        let deadline = match (self.own_deadlines, random.between(1, 20)) {
            (OwnDeadlines::Few, 1..=5) => self.now.saturating_add(random.between(0, 2_000)),
            (OwnDeadlines::Most, 2..) => self.now.saturating_add(random.between(500, 5_000)),
            _ => Time::MAX,
        };
        let rows = random.between_u32(1, self.max_rows.min(2));
        self.arrive_with(rows, class, random.pick(&[0, 1, 2]), deadline)
    }

    fn arrive_with(&mut self, rows: u32, class: u32, priority: u64, deadline: Time) -> Check {
        let info = RequestInfo {
            key: RequestKey(self.arrivals),
            batch_size: rows,
            shape_class: ShapeClassId(class),
            priority,
            deadline,
            length: class,
            timeout_ns: 0,
            sequence: None,
        };
        self.arrivals += 1;
        let levels = self.spec.queue.priority_levels;
        let level =
            if (1..=levels).contains(&info.priority) { info.priority } else { levels.min(1) };
        let deadline = self.now.saturating_add(self.spec.objective_ns).min(info.deadline);
        let timeout_ns = self.spec.queue.default_queue_policy.default_timeout_ns;
        let expires = if timeout_ns == 0 { Time::MAX } else { self.now.saturating_add(timeout_ns) };
        let place = (level, deadline, info.key.0);
        self.waiting.insert(info.key, Waiting { info, place, expires });
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

    /// The rules of a batch.
    fn execute(&mut self, instance: InstanceId, batch: &Batch) -> Check {
        ensure!(self.lanes.get(&instance) == Some(&None), "{instance:?} is not free");
        let mut order: Vec<Waiting> = self.waiting.values().copied().collect();
        order.sort_unstable_by_key(|waiting| waiting.place);
        let turn = self.turn(&order);
        order.drain(..turn.unwrap_or(0));
        let class = order.first().map(|first| first.info.shape_class);
        let alike = order.iter().filter(|waiting| Some(waiting.info.shape_class) == class);
        let keys: Vec<RequestKey> =
            batch.entries().iter().filter_map(|row| row.request()).collect();
        let alike: Vec<RequestKey> = alike.map(|waiting| waiting.info.key).collect();
        let run = alike.windows(keys.len()).position(|window| window == keys);
        let Some(start) = run else {
            return Err(format!("{keys:?} are not neighbours in the order {alike:?}"));
        };
        ensure!(turn.is_none() || start == 0, "{keys:?} have no turn before {alike:?}");
        let is_idle = self.waiting.len() == 1 && self.lanes.values().all(Option::is_none);
        let is_probe = is_idle && (self.refused >= PROBED_AFTER || self.has_recovered);
        self.probing = is_probe.then(|| order[0].place.1);
        let next = alike.get(start + keys.len()).map(|key| self.waiting[key].place.1);
        let chosen: Vec<Waiting> = keys.iter().filter_map(|key| self.waiting.remove(key)).collect();
        self.count_passed_over(&chosen);
        let rows: u32 = chosen.iter().map(|one| one.info.batch_size).sum();
        ensure!(rows == batch.batch_size(), "{rows} rows count as {}", batch.batch_size());
        ensure!(rows <= self.max_rows || keys.len() == 1, "{rows} rows exceed the maximum");
        let length = chosen[0].info.length;
        let takes = self.costs.of(rows, length);
        let ends = self.now.saturating_add(takes);
        let earliest = chosen.iter().map(|one| one.place.1).min().unwrap_or(Time::MAX);
        if self.is_known(length, rows) && ends > earliest {
            ensure!(keys.len() == 1, "{keys:?} together miss a deadline");
            let is_in_vain = self.is_hopeless(&chosen[0], self.now);
            ensure!(is_probe || !is_in_vain, "{keys:?} runs in vain");
        }
        let is_right = match batch.close_reason() {
            CloseReason::MaxSize => rows + self.max_rows.min(2) > self.max_rows,
            CloseReason::Deadline => next.is_some_and(|next| next.min(earliest) < Time::MAX),
            CloseReason::InstanceIdle => next.is_none(),
            _ => false,
        };
        ensure!(is_right, "{:?} is no reason to close {keys:?}", batch.close_reason());
        self.lanes.insert(instance, Some((ends, rows, length)));
        self.refused = 0;
        Ok(())
    }

    /// The index of the request without a deadline that has waited for 16 batches of its
    /// level that the next one is its own.
    fn turn(&self, order: &[Waiting]) -> Option<usize> {
        let level = order.first()?.place.0;
        let is_patient = |one: &Waiting| one.place.0 == level && one.place.1 == Time::MAX;
        order.iter().position(is_patient).filter(|_| self.passed_over >= PASSED_OVER_MAX)
    }

    fn count_passed_over(&mut self, batch: &[Waiting]) {
        let is_patient = |one: &Waiting| one.place.1 == Time::MAX;
        let level = batch[0].place.0;
        if batch.iter().any(is_patient) {
            self.passed_over = 0;
        } else if self.waiting.values().any(|one| one.place.0 == level && is_patient(one)) {
            self.passed_over += 1;
        }
    }

    /// Returns true if the scheduler knows the duration of such an execution.
    fn is_known(&self, length: u32, rows: u32) -> bool {
        let known = self.executed.get(&(length, rows));
        known.is_some_and(|(times, latest)| {
            *times >= KNOWN_AFTER && self.executions - latest < FORGOTTEN_AFTER
        })
    }

    fn is_hopeless(&self, waiting: &Waiting, start: Time) -> bool {
        let takes = self.costs.of(waiting.info.batch_size, waiting.info.length);
        start.saturating_add(takes) > waiting.place.1
    }

    /// When an instance is free by the truth; none without an instance.
    fn next_free(&self) -> Option<Time> {
        self.lanes.values().map(|run| run.map_or(self.now, |run| run.0)).min()
    }

    fn fail(&mut self, event: &Event, key: RequestKey, reason: FailReason) -> Check {
        let Some(waiting) = self.waiting.remove(&key) else {
            return Err(format!("{key:?} fails with {reason:?} after its end"));
        };
        let is_arriving = matches!(event, Event::Enqueue(info) if info.key == key);
        let (_, deadline, _) = waiting.place;
        let is_right = match reason {
            FailReason::Cancelled => *event == Event::Cancel(key),
            FailReason::TimeoutExpired => waiting.expires <= self.now,
            FailReason::Draining => is_arriving && self.is_draining,
            FailReason::QueueFull => is_arriving && self.level_is_full(waiting.place.0),
            FailReason::TooLate { retry_after_ns } => {
                ensure!(deadline < Time::MAX, "{key:?} has no deadline to miss");
                ensure!(retry_after_ns > 0, "{key:?} could have been answered in time");
                self.refused += u64::from(is_arriving);
                self.is_refused_rightly(&waiting, is_arriving)
            }
            _ => false,
        };
        ensure!(is_right, "{key:?} fails with {reason:?} without cause");
        Ok(())
    }

    fn level_is_full(&self, level: u64) -> bool {
        let there = self.waiting.values().filter(|waiting| waiting.place.0 == level).count();
        let limit = u64::from(self.spec.queue.default_queue_policy.max_queue_size);
        limit != 0 && there as u64 >= limit
    }

    /// Returns true if a request that is refused as too late would have been, as far as the
    /// scheduler can know. On arrival others may be served before it.
    fn is_refused_rightly(&self, waiting: &Waiting, is_arriving: bool) -> bool {
        if !self.is_known(waiting.info.length, waiting.info.batch_size) {
            return true;
        }
        let Some(free) = self.next_free() else { return false };
        let has_company = is_arriving && !self.waiting.is_empty();
        has_company || self.has_unknown_executions() || self.is_hopeless(waiting, free)
    }

    /// Returns true if the scheduler may be mistaken about when an instance is free.
    fn has_unknown_executions(&self) -> bool {
        let mut busy = self.lanes.values().flatten();
        busy.any(|(_, rows, length)| !self.is_known(*length, *rows))
    }

    /// Checks that hold after each step.
    fn check_rest(&self, event: &Event) -> Check {
        let (reported, waiting) = (self.scheduler.queued(), self.waiting.len());
        ensure!(reported == waiting, "{reported} queued, {waiting} wait after {event:?}");
        let idle = self.lanes.values().any(Option::is_none);
        let has_window = !self.is_draining && self.scheduler.next_wakeup().is_some();
        ensure!(waiting == 0 || !idle || has_window, "requests wait and an instance is free");
        let first = self.waiting.values().min_by_key(|waiting| (waiting.place.1, waiting.place.2));
        if let Some(first) = first
            && first.place.1 < Time::MAX
        {
            let wakeup = self.scheduler.next_wakeup();
            let last = first.place.1.saturating_add(1);
            ensure!(wakeup.is_some_and(|time| time <= last), "it sleeps through a deadline");
        }
        Ok(())
    }
}
