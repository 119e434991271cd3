//! Requests of unequal lengths, which share padded batches. Executions take what a fixed
//! function of rows and padded length says, which the scheduler has to learn, so each
//! decision can be judged by the truth.

use std::collections::{BTreeMap, VecDeque};

use galatea_policy::{
    Action, Actions, Batch, CloseReason, DynamicSpec, Event, FailReason, InstanceId, PaddingSpec,
    QueuePolicy, RequestInfo, RequestKey, Scheduler, SchedulingMode, SchedulingSpec, ShapeClassId,
    Time, TimeoutAction,
};

use crate::check::{Check, ensure};
use crate::random::Random;

/// A request is passed over by at most this many batches.
const PASSED_OVER_MAX: u32 = 16;

/// Companions are among this many requests in front.
const LOOK_AHEAD: usize = 64;

/// A padded batch has at most this many times the elements of its requests.
const PADDED_MAX: u64 = 8;

/// After this many executions, the scheduler is expected to know what they cost.
const LEARNED_AFTER: u64 = 150;

/// From these numbers of executions on, all batches together may take this share of what their
/// requests take one by one. In short loads, the batches by which costs are learned tell more:
/// of half a million seeds, the worst took 1.04 and 1.09 times as long.
const SLOWER_MAX: [(u64, f64); 2] = [(600, 1.05), (300, 1.15)];

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
        self.fixed + elements * self.element + elements * u64::from(length) * self.square / 256
    }
}

#[derive(Copy, Clone, Debug)]
struct Waiting {
    info: RequestInfo,
    arrived: Time,
    expires: Time,
    passed_over: u32,
}

/// The lists of waiting requests in the order of service: by level, those in time and then
/// those that were moved back.
type Lists = BTreeMap<(u64, bool), VecDeque<RequestKey>>;

struct World {
    scheduler: Scheduler,
    actions: Actions,
    spec: DynamicSpec,
    budget: u64,
    max_rows: u32,
    costs: Costs,
    /// The tenths of their usual duration that batches of several requests take in turn.
    batches_take: Option<[u64; 5]>,
    longest: u32,
    now: Time,
    arrivals: u64,
    waiting: BTreeMap<RequestKey, Waiting>,
    lists: Lists,
    /// The instances, and when each busy one ends.
    lanes: BTreeMap<InstanceId, Option<Time>>,
    executions: u64,
    /// The most elements that were executed.
    elements_max: u64,
    /// When the batch that was checked last ends.
    ends: Time,
    /// The times that batches and their requests one by one took, once costs are known.
    took: (u64, u64),
    is_draining: bool,
    is_drained: bool,
}

/// Plays the load of a seed.
///
/// # Errors
///
/// The rule that was broken.
pub fn check_padding(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let mut world = World::new(&mut random);
    let result = world.live(&mut random);
    result.map_err(|message| format!("padding: {message}"))?;
    check_gain(&mut random).map_err(|message| format!("padding: {message}"))?;
    check_luck(&mut random).map_err(|message| format!("padding: {message}"))?;
    check_spread(&mut random).map_err(|message| format!("padding: {message}"))?;
    check_patience(&mut random).map_err(|message| format!("padding: {message}"))
}

/// Many requests of one length at once, whose executions cost mostly the same however large
/// they are: the batches grow to what is allowed.
fn check_gain(random: &mut Random) -> Check {
    let mut world = World::new(random);
    let length = random.between_u32(1, 64);
    world.costs = Costs { fixed: 1_000_000, element: 1, square: 0 };
    world.rebuild(&DynamicSpec::default());
    world.step(Event::AddInstance(InstanceId(0)))?;
    for _ in 0..400 {
        world.arrive_with(length, 1, 0, 0)?;
    }
    world.pass_until(Time::MAX)?;
    let allowed = u64::from(world.max_rows).min(world.budget / u64::from(length)).max(1);
    let expected = 40 + 400 / allowed + 1;
    ensure!(
        world.executions <= expected,
        "{} executions of 400 requests, {allowed} at once",
        world.executions
    );
    Ok(())
}

/// A few long requests among short ones, for executions that cost mostly the same: the batches
/// would be nearly all padding if that were not bounded.
fn check_spread(random: &mut Random) -> Check {
    let mut world = World::new(random);
    let long = random.between_u32(100, 256);
    (world.max_rows, world.budget) = (16, u64::MAX);
    world.costs = Costs { fixed: 1_000_000, element: 1, square: 0 };
    world.rebuild(&DynamicSpec::default());
    world.step(Event::AddInstance(InstanceId(0)))?;
    for number in 0..400 {
        world.arrive_with(if number % 20 == 0 { long } else { 1 }, 1, 0, 0)?;
    }
    world.pass_until(Time::MAX)
}

/// Batches that take three times what their requests take one by one, but now and then only a
/// tenth: what usually happens counts, and not the best that was seen.
fn check_luck(random: &mut Random) -> Check {
    let mut world = World::new(random);
    let length = random.between_u32(8, 64);
    (world.max_rows, world.budget) = (4, u64::MAX);
    world.costs = Costs { fixed: 0, element: 100, square: 0 };
    world.batches_take = Some([30, 30, 1, 30, 30]);
    world.rebuild(&DynamicSpec::default());
    world.step(Event::AddInstance(InstanceId(0)))?;
    for _ in 0..300 {
        world.arrive_with(length, 1, 0, 0)?;
    }
    world.pass_until(Time::MAX)?;
    let (together, one_by_one) = world.took;
    let is_slow = together as f64 > one_by_one as f64 * SLOWER_MAX[0].1;
    ensure!(
        !is_slow,
        "batches that are fast by luck took {together} ns instead of {one_by_one} ns"
    );
    Ok(())
}

/// Batches that save a twentieth of the time, once that is known: a long request is not put off for
/// such a batch of younger ones. It is for a batch that takes half of the time.
fn check_patience(random: &mut Random) -> Check {
    let (mut world, key, short) = wait_with_a_long_one(random, 700)?;
    let soon_ns = 3 * world.costs.of(1, short);
    world.pass_until(world.now.saturating_add(soon_ns))?;
    ensure!(!world.waiting.contains_key(&key), "{key:?} is put off for a batch that gains little");
    world.pass_until(Time::MAX)?;
    let (mut world, key, _) = wait_with_a_long_one(random, 10_000)?;
    ensure!(world.waiting.contains_key(&key), "{key:?} is in a batch of short requests");
    let left = world.waiting.len();
    ensure!(left <= 5, "{left} of 17 wait still, although a batch of most is twice as fast");
    world.pass_until(Time::MAX)
}

/// One short request, a long one and 15 short ones, at the time when the instance is free for them, with
/// this fixed duration of an execution. Returns the key of the long one and the length of the others.
fn wait_with_a_long_one(
    random: &mut Random,
    fixed: u64,
) -> Result<(World, RequestKey, u32), String> {
    let mut world = World::new(random);
    (world.max_rows, world.budget) = (16, u64::MAX);
    world.costs = Costs { fixed, element: 1_000, square: 0 };
    world.rebuild(&DynamicSpec::default());
    world.step(Event::AddInstance(InstanceId(0)))?;
    for length in [4, 8, 16, 32, 64, 128, 256, 512] {
        for _ in 0..40 {
            world.arrive_with(length, 1, 0, 0)?;
            world.pass_until(world.now.saturating_add(10_000_000))?;
        }
    }
    let (short, long) = (random.between_u32(9, 11), random.between_u32(190, 210));
    world.arrive_with(512, 1, 0, 0)?;
    world.arrive_with(short, 1, 0, 0)?;
    let key = RequestKey(world.arrivals);
    world.arrive_with(long, 1, 0, 0)?;
    for _ in 0..15 {
        world.arrive_with(short, 1, 0, 0)?;
    }
    world.pass_until(world.now.saturating_add(world.costs.of(1, 512)))?;
    Ok((world, key, short))
}

impl World {
    fn new(random: &mut Random) -> Self {
        let levels = random.pick(&[0, 0, 2]);
        let policy = QueuePolicy {
            timeout_action: random.pick(&[TimeoutAction::Reject, TimeoutAction::Delay]),
            default_timeout_ns: random.pick(&[0, 0, 20_000]),
            max_queue_size: random.pick(&[0, 0, 30]),
            ..QueuePolicy::default()
        };
        let spec = DynamicSpec {
            priority_levels: levels,
            default_priority_level: levels.min(1),
            default_queue_policy: policy,
            max_queue_delay_ns: random.pick(&[0, 0, 500, 5_000]),
            ..DynamicSpec::default()
        };
        let mut world = World {
            scheduler: Scheduler::new(SchedulingSpec {
                max_batch_size: 1,
                mode: SchedulingMode::Default,
                hold_until_queued: 0,
                hold_until_backlogged: 0,
            }),
            actions: Actions::default(),
            spec: spec.clone(),
            budget: random.pick(&[u64::MAX, 40, 200, 1_000]),
            max_rows: random.between_u32(2, 16),
            costs: Costs {
                fixed: random.pick(&[0, 50, 500, 5_000]),
                element: random.between(1, 20),
                square: random.pick(&[0, 0, 2]),
            },
            batches_take: None,
            longest: random.pick(&[8, 64, 256]),
            now: Time(0),
            arrivals: 0,
            waiting: BTreeMap::new(),
            lists: BTreeMap::new(),
            lanes: BTreeMap::new(),
            executions: 0,
            elements_max: 0,
            ends: Time(0),
            took: (0, 0),
            is_draining: false,
            is_drained: false,
        };
        world.rebuild(&spec);
        world
    }

    fn rebuild(&mut self, spec: &DynamicSpec) {
        let padding = Some(PaddingSpec { budget: self.budget });
        self.spec = DynamicSpec { padding, ..spec.clone() };
        self.lanes = BTreeMap::from([(InstanceId(0), None)]);
        self.scheduler = Scheduler::new(SchedulingSpec {
            max_batch_size: self.max_rows,
            mode: SchedulingMode::Dynamic(self.spec.clone()),
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        });
    }

    fn live(&mut self, random: &mut Random) -> Check {
        for id in 0..random.between_u32(1, 2) {
            self.lanes.insert(InstanceId(id), None);
            self.step(Event::AddInstance(InstanceId(id)))?;
        }
        let mean = self.costs.of(1, self.longest / 3);
        let gap = mean / random.pick(&[1, 2, 4]);
        for _ in 0..random.between(50, 600) {
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
        let (together, one_by_one) = self.took;
        let slower_max = SLOWER_MAX.iter().find(|(executions, _)| self.executions >= *executions);
        ensure!(
            slower_max.is_none_or(|(_, most)| together as f64 <= one_by_one as f64 * most),
            "batches took {together} ns, and their requests one by one {one_by_one} ns"
        );
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
        let rows = random.pick(&[1, 1, 1, 2]);
        let class = random.pick(&[0, 0, 0, 0, 1]);
        self.arrive_with(length, rows, class, random.pick(&[0, 1, 2]))
    }

    fn arrive_with(&mut self, length: u32, rows: u32, class: u32, priority: u64) -> Check {
        let info = RequestInfo {
            key: RequestKey(self.arrivals),
            batch_size: rows,
            shape_class: ShapeClassId(class),
            priority,
            deadline: Time::MAX,
            length,
            timeout_ns: 0,
            sequence: None,
        };
        self.arrivals += 1;
        let timeout_ns = self.spec.default_queue_policy.default_timeout_ns;
        let expires = if timeout_ns == 0 { Time::MAX } else { self.now.saturating_add(timeout_ns) };
        self.move_expired();
        let waiting = Waiting { info, arrived: self.now, expires, passed_over: 0 };
        self.waiting.insert(info.key, waiting);
        self.lists.entry((self.level_of(priority), false)).or_default().push_back(info.key);
        self.step(Event::Enqueue(info))
    }

    fn level_of(&self, priority: u64) -> u64 {
        let levels = self.spec.priority_levels;
        if (1..=levels).contains(&priority) { priority } else { levels.min(1) }
    }

    /// Moves the requests back whose time is over, in its order.
    fn move_expired(&mut self) {
        if self.spec.default_queue_policy.timeout_action == TimeoutAction::Reject {
            return;
        }
        let mut expired: Vec<(Time, RequestKey, (u64, bool))> = Vec::new();
        for (place, keys) in self.lists.iter().filter(|(place, _)| !place.1) {
            let over = keys.iter().map(|key| (self.waiting[key].expires, *key, *place));
            expired.extend(over.filter(|(expires, ..)| *expires <= self.now));
        }
        expired.sort_unstable();
        for (_, key, (level, _)) in expired {
            self.take_out(key);
            self.lists.entry((level, true)).or_default().push_back(key);
        }
    }

    fn take_out(&mut self, key: RequestKey) {
        self.lists.values_mut().for_each(|keys| keys.retain(|one| *one != key));
    }

    fn cancel(&mut self, random: &mut Random) -> Check {
        let Some(last) = self.arrivals.checked_sub(1) else { return Ok(()) };
        let key = RequestKey(random.between(0, last));
        self.step(Event::Cancel(key))
    }

    fn step(&mut self, event: Event) -> Check {
        self.move_expired();
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
        let front = self.lists.values().find(|keys| !keys.is_empty());
        let front: Vec<RequestKey> = front.into_iter().flatten().copied().collect();
        let keys: Vec<RequestKey> =
            batch.entries().iter().filter_map(|row| row.request()).collect();
        ensure!(keys.first() == front.first(), "the first request is not the first of {keys:?}");
        let place = |key: &RequestKey| front.iter().position(|one| one == key);
        let Some(places) = keys.iter().map(place).collect::<Option<Vec<usize>>>() else {
            return Err(format!("{keys:?} are of several levels"));
        };
        ensure!(places.is_sorted_by(|one, next| one < next), "{keys:?} are not in order");
        let youngest = places.last().copied().unwrap_or(0);
        ensure!(youngest < LOOK_AHEAD, "{keys:?} are too far apart");
        self.check_size(batch, &keys)?;
        let class = self.waiting[&keys[0]].info.shape_class;
        for key in front[..youngest].iter().filter(|key| !keys.contains(key)) {
            let passed = self.waiting.get_mut(key).expect("it waits");
            passed.passed_over += 1;
            ensure!(passed.passed_over <= PASSED_OVER_MAX, "{key:?} is passed over too often");
        }
        let rest: Vec<Waiting> =
            front.iter().filter(|key| !keys.contains(key)).map(|key| self.waiting[key]).collect();
        let oldest = front.iter().take(LOOK_AHEAD).map(|key| self.waiting[key].arrived).min();
        self.check_reason(batch, class, &rest, oldest.unwrap_or(self.now))?;
        for key in &keys {
            self.take_out(*key);
            self.waiting.remove(key);
        }
        self.lanes.insert(instance, Some(self.ends));
        Ok(())
    }

    fn check_size(&mut self, batch: &Batch, keys: &[RequestKey]) -> Check {
        let chosen: Vec<RequestInfo> = keys.iter().map(|key| self.waiting[key].info).collect();
        ensure!(
            chosen.iter().all(|one| one.shape_class == chosen[0].shape_class),
            "{keys:?} are of several shape classes"
        );
        let rows: u32 = chosen.iter().map(|one| one.batch_size).sum();
        ensure!(rows == batch.batch_size(), "{rows} rows count as {}", batch.batch_size());
        let length = chosen.iter().map(|one| one.length).max().unwrap_or(0);
        let elements = u64::from(rows) * u64::from(length);
        if keys.len() > 1 {
            ensure!(rows <= self.max_rows, "{rows} rows exceed the maximum");
            ensure!(elements <= self.budget, "{elements} elements exceed the budget");
            let own =
                |one: &RequestInfo| (u64::from(one.batch_size) * u64::from(one.length)).max(1);
            let own: u64 = chosen.iter().map(own).sum();
            ensure!(elements <= PADDED_MAX * own, "{elements} elements are padding, but for {own}");
            ensure!(
                elements <= 4 * self.elements_max.max(1),
                "{elements} elements, and what more than {} cost is not known",
                self.elements_max
            );
        }
        let takes = self.duration(keys.len(), rows, length);
        if self.executions > LEARNED_AFTER {
            let alone = |one: &RequestInfo| self.costs.of(one.batch_size, one.length).max(1);
            self.took.0 += takes;
            self.took.1 += chosen.iter().map(alone).sum::<u64>();
        }
        self.elements_max = self.elements_max.max(elements);
        self.ends = self.now.saturating_add(takes);
        Ok(())
    }

    fn duration(&mut self, requests: usize, rows: u32, length: u32) -> u64 {
        let usual = self.costs.of(rows, length).max(1);
        match &mut self.batches_take {
            Some(tenths) if requests > 1 => {
                tenths.rotate_left(1);
                usual * tenths[0] / 10
            }
            _ => usual,
        }
    }

    fn check_reason(
        &self,
        batch: &Batch,
        class: ShapeClassId,
        rest: &[Waiting],
        oldest: Time,
    ) -> Check {
        let alike: Vec<&Waiting> =
            rest.iter().filter(|one| one.info.shape_class == class).collect();
        let nothing_fits = alike.is_empty();
        let delay_ns = self.spec.max_queue_delay_ns;
        let (rows, is_full) = (batch.batch_size(), batch.batch_size() >= self.max_rows);
        let is_right = match batch.close_reason() {
            CloseReason::MaxSize => {
                is_full || alike.iter().any(|one| rows + one.info.batch_size > self.max_rows)
            }
            CloseReason::Budget => self.budget < u64::MAX,
            CloseReason::Cost => true,
            CloseReason::Shape => nothing_fits && rest.len() > alike.len(),
            CloseReason::InstanceIdle => nothing_fits && delay_ns == 0,
            CloseReason::Unloading => nothing_fits && self.is_draining,
            CloseReason::Delay => nothing_fits && self.now.saturating_since(oldest) >= delay_ns,
            _ => false,
        };
        ensure!(is_right, "{:?} is no reason to close {batch:?}", batch.close_reason());
        Ok(())
    }

    fn fail(&mut self, event: &Event, key: RequestKey, reason: FailReason) -> Check {
        let Some(waiting) = self.waiting.remove(&key) else {
            return Err(format!("{key:?} fails with {reason:?} after its end"));
        };
        self.take_out(key);
        let is_arriving = matches!(event, Event::Enqueue(info) if info.key == key);
        let policy = &self.spec.default_queue_policy;
        let level = self.level_of(waiting.info.priority);
        let there: usize = [false, true]
            .iter()
            .filter_map(|late| self.lists.get(&(level, *late)))
            .map(VecDeque::len)
            .sum();
        let is_right = match reason {
            FailReason::Cancelled => *event == Event::Cancel(key),
            FailReason::TimeoutExpired => {
                waiting.expires <= self.now && policy.timeout_action == TimeoutAction::Reject
            }
            FailReason::Draining => is_arriving && self.is_draining,
            FailReason::QueueFull => {
                is_arriving
                    && policy.max_queue_size != 0
                    && there as u64 >= u64::from(policy.max_queue_size)
            }
            _ => false,
        };
        ensure!(is_right, "{key:?} fails with {reason:?} without cause");
        Ok(())
    }

    /// Checks that hold after each step.
    fn check_rest(&self, event: &Event) -> Check {
        let (reported, waiting) = (self.scheduler.queued(), self.waiting.len());
        ensure!(reported == waiting, "{reported} queued, {waiting} wait after {event:?}");
        if waiting == 0 || self.lanes.values().all(Option::is_some) {
            return Ok(());
        }
        let delay_ns = self.spec.max_queue_delay_ns;
        ensure!(delay_ns > 0 && !self.is_draining, "requests wait and an instance is free");
        let front = self.lists.values().find(|keys| !keys.is_empty()).expect("requests wait");
        let first = &self.waiting[&front[0]];
        let until =
            front.iter().map(|key| self.waiting[key].arrived).min().unwrap_or(first.arrived);
        let until = until.saturating_add(delay_ns);
        let wakeup = self.scheduler.next_wakeup();
        ensure!(wakeup.is_some_and(|time| time <= until), "it waits longer than the delay");
        let alike =
            front.iter().all(|key| self.waiting[key].info.shape_class == first.info.shape_class);
        ensure!(alike, "it waits although another class can't join");
        Ok(())
    }
}
