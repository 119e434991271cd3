//! A made-up world: clients and instances that act in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use galatea_policy::{BatchKey, Event, InstanceId, RequestKey, SchedulingSpec, Ticket, Time};

use crate::deed::Deed;
use crate::harness::{Harness, Reference};
use crate::random::Random;
use crate::specs::random_spec;
use crate::trace::Trace;

/// How long a run is, and what it is compared with.
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// Requests after which clients fall silent.
    pub requests: u64,
    /// What decisions are compared with.
    pub reference: Reference,
}

impl Default for Config {
    fn default() -> Self {
        Config { requests: 100, reference: Reference::Oracle }
    }
}

/// A run in which everything held.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// A hash of all events and deeds.
    pub trace_hash: u64,
    /// Steps of the scheduler.
    pub events: u64,
    /// Requests that ran.
    pub completed: u64,
    /// Requests that failed, for whatever reason.
    pub failed: u64,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that shows it again.
    pub seed: u64,
    /// The settings of the run, which must be the same again.
    pub config: Config,
    /// Which promise.
    pub message: String,
    /// Everything that happened until then.
    pub trace: Trace,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps = self.trace.steps.len();
        writeln!(
            formatter,
            "{}\nseed {} after {steps} steps; again with:",
            self.message, self.seed
        )?;
        write!(formatter, "  cargo run -p galatea-sim --bin galatea-sim --")?;
        write!(formatter, " --seed {} --requests {}", self.seed, self.config.requests)?;
        match self.config.reference {
            Reference::Oracle => Ok(()),
            Reference::ChecksOnly => write!(formatter, " --without-oracle"),
        }
    }
}

/// Lives through the world of a seed.
pub fn run(seed: u64, config: &Config) -> Result<Outcome, Box<Violation>> {
    let mut world = World::new(seed, *config);
    let result = catch_unwind(AssertUnwindSafe(|| world.live()));
    let message = match result {
        Ok(Ok(())) => return Ok(world.outcome()),
        Ok(Err(message)) => message,
        Err(panic) => crate::trace::panic_text(&panic),
    };
    Err(Box::new(Violation { seed, config: *config, message, trace: world.trace }))
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Happening {
    /// A client may send.
    Turn(usize),
    /// A client goes without a word, and its connections break.
    Vanish(usize),
    Cancel(RequestKey),
    Finish(InstanceId),
    Join,
    Leave,
    Drain,
    /// A timer that fires for no reason.
    Tick,
}

#[derive(Debug)]
struct Client {
    open: BTreeSet<RequestKey>,
    open_max: usize,
    pause_max: u64,
    rows_max: u32,
    batch_keys: u32,
    priority_max: u64,
    timeout_chance: u64,
    cancel_chance: u64,
    gone: bool,
}

/// How the world treats a scheduler.
#[derive(Debug)]
struct Weather {
    duration_max: u64,
    /// How late timers fire.
    lateness_max: u64,
    /// Chance that a step's clock was read before the step before it.
    clock_back_chance: u64,
    key_reuse_chance: u64,
    lanes_max: u32,
}

struct World {
    config: Config,
    random: Random,
    harness: Harness,
    trace: Trace,
    weather: Weather,
    clients: Vec<Client>,
    owners: BTreeMap<RequestKey, usize>,
    running: BTreeMap<InstanceId, Vec<RequestKey>>,
    present: Vec<InstanceId>,
    finished_keys: Vec<RequestKey>,
    agenda: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    planned: u64,
    sent: u64,
    wakeups: u64,
    completed: u64,
    failed: u64,
    draining: bool,
}

impl World {
    fn new(seed: u64, config: Config) -> Self {
        let mut random = Random::new(seed);
        let spec = random_spec(&mut random);
        let weather = Weather {
            duration_max: random.pick(&[0, 3, 10, 40]),
            lateness_max: random.pick(&[0, 0, 0, 1, 5]),
            clock_back_chance: random.pick(&[0, 0, 5]),
            key_reuse_chance: random.pick(&[0, 10, 50]),
            lanes_max: random.between_u32(1, 4),
        };
        let harness = Harness::new(&spec, config.reference);
        let clients =
            (0..random.between(1, 5)).map(|_| random_client(&mut random, &spec)).collect();
        let mut world = World {
            config,
            random,
            harness,
            trace: Trace { spec, steps: Vec::new() },
            weather,
            clients,
            owners: BTreeMap::new(),
            running: BTreeMap::new(),
            present: Vec::new(),
            finished_keys: Vec::new(),
            agenda: BinaryHeap::new(),
            planned: 0,
            sent: 0,
            wakeups: 0,
            completed: 0,
            failed: 0,
            draining: false,
        };
        world.plan_beginnings();
        world
    }

    fn plan_beginnings(&mut self) {
        for client in 0..self.clients.len() {
            self.plan_within(20, Happening::Turn(client));
            if self.random.percent(20) {
                self.plan_within(1000, Happening::Vanish(client));
            }
        }
        for _ in 0..self.weather.lanes_max {
            let patience = self.random.pick(&[0, 0, 30]);
            self.plan_within(patience, Happening::Join);
        }
        for (chance, happening) in
            [(30, Happening::Leave), (10, Happening::Drain), (30, Happening::Tick)]
        {
            if self.random.percent(chance) {
                self.plan_within(1000, happening);
            }
        }
    }

    fn plan_within(&mut self, most: u64, happening: Happening) {
        let time = self.harness.now().saturating_add(self.random.between(0, most));
        self.planned += 1;
        self.agenda.push(Reverse((time, self.planned, happening)));
    }

    fn live(&mut self) -> Result<(), String> {
        while self.go_on()? {}
        // Whoever is left waits for something that never comes: a lane, the
        // test hook, an endless delay. Unloading the model ends all of it.
        if !self.harness.has_staying_lane() {
            self.join()?;
        }
        self.step(Event::Drain)?;
        while self.go_on()? {}
        self.harness.check_empty()?;
        if let Some((key, _)) = self.owners.first_key_value() {
            return Err(format!("{key:?} has no outcome"));
        }
        // A rejection, a move back, and the end of a delay: no more can wake.
        let bound = 3 * self.sent;
        if self.wakeups > bound {
            return Err(format!("{} wake-ups for {} requests", self.wakeups, self.sent));
        }
        Ok(())
    }

    /// One thing happens; false if nothing ever will.
    fn go_on(&mut self) -> Result<bool, String> {
        let wakeup = self.harness.next_wakeup().filter(|time| time.0 < Self::END);
        let wakeup = wakeup
            .map(|time| time.saturating_add(self.random.between(0, self.weather.lateness_max)));
        let next = self.agenda.peek().map(|Reverse((time, ..))| *time);
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
            self.step_at(now, Event::Tick)?;
        } else if let Some(Reverse((now, _, happening))) = self.agenda.pop() {
            self.happen(now, happening)?;
        }
        Ok(true)
    }

    /// Timers beyond this never fire in anyone's lifetime.
    const END: u64 = u64::MAX / 2;

    fn step(&mut self, event: Event) -> Result<(), String> {
        self.step_at(self.harness.now(), event)
    }

    fn step_at(&mut self, now: Time, event: Event) -> Result<(), String> {
        let back = if self.random.percent(self.weather.clock_back_chance) { 3 } else { 0 };
        let now = match event {
            // A wake-up that read the clock too early would be no wake-up.
            Event::Tick => now,
            _ => Time(now.0.saturating_sub(back)),
        };
        self.trace.steps.push((now, event));
        for deed in self.harness.step(now, event)? {
            self.take_note(deed);
        }
        Ok(())
    }

    fn take_note(&mut self, deed: Deed) {
        match deed {
            Deed::Run { instance, keys, .. } => {
                self.running.insert(instance, keys);
                self.plan_within(self.weather.duration_max, Happening::Finish(instance));
            }
            Deed::Fail(key, _) => {
                self.failed += 1;
                self.settle(key);
            }
            Deed::Removed(_) | Deed::Drained => {}
        }
    }

    /// A request has its outcome.
    fn settle(&mut self, key: RequestKey) {
        if let Some(owner) = self.owners.remove(&key) {
            self.clients[owner].open.remove(&key);
        }
        self.finished_keys.push(key);
    }

    fn happen(&mut self, now: Time, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Turn(client) => self.turn(now, client),
            Happening::Vanish(client) => {
                self.clients[client].gone = true;
                for key in self.clients[client].open.clone() {
                    self.step_at(now, Event::Cancel(key))?;
                }
                Ok(())
            }
            Happening::Cancel(key) => self.step_at(now, Event::Cancel(key)),
            Happening::Finish(instance) => self.finish(now, instance),
            Happening::Join => {
                self.advance(now)?;
                self.join()
            }
            Happening::Leave => self.leave(now),
            Happening::Drain => {
                self.draining = true;
                self.step_at(now, Event::Drain)
            }
            Happening::Tick => {
                self.plan_within(200, Happening::Tick);
                if self.is_evening() || self.draining {
                    self.agenda.retain(|Reverse((.., happening))| *happening != Happening::Tick);
                }
                self.step_at(now, Event::Tick)
            }
        }
    }

    /// Nothing new begins: enough was sent, or enough was planned in vain by
    /// clients that wait for answers.
    fn is_evening(&self) -> bool {
        self.sent >= self.config.requests || self.planned >= 20 * self.config.requests
    }

    /// Lets time pass up to now.
    fn advance(&mut self, now: Time) -> Result<(), String> {
        if now > self.harness.now() { self.step_at(now, Event::Tick) } else { Ok(()) }
    }

    fn turn(&mut self, now: Time, index: usize) -> Result<(), String> {
        if self.clients[index].gone || self.is_evening() {
            return Ok(());
        }
        if self.clients[index].open.len() < self.clients[index].open_max {
            self.send(now, index)?;
        }
        // Time must pass for those who wait, so the pause is not always 0.
        let pause = self.clients[index].pause_max + u64::from(self.random.percent(10));
        self.plan_within(pause, Happening::Turn(index));
        Ok(())
    }

    fn send(&mut self, now: Time, index: usize) -> Result<(), String> {
        self.sent += 1;
        let key = self.new_key();
        let client = &self.clients[index];
        let random = &mut self.random;
        let least_rows = u32::from(self.trace.spec.max_batch_size != 0);
        let ticket = Ticket {
            key,
            batch_size: random.between_u32(least_rows, client.rows_max),
            batch_key: BatchKey(random.between_u32(0, client.batch_keys)),
            priority: random.between(0, client.priority_max),
            timeout_ns: if random.percent(client.timeout_chance) {
                random.between(1, 60)
            } else {
                0
            },
        };
        let cancels = random.percent(client.cancel_chance);
        self.owners.insert(key, index);
        self.clients[index].open.insert(key);
        self.step_at(now, Event::Enqueue(ticket))?;
        if cancels {
            self.plan_within(30, Happening::Cancel(key));
        }
        Ok(())
    }

    fn new_key(&mut self) -> RequestKey {
        if !self.finished_keys.is_empty() && self.random.percent(self.weather.key_reuse_chance) {
            let last = u64::try_from(self.finished_keys.len() - 1).expect("few keys");
            let index = usize::try_from(self.random.between(0, last)).expect("an index");
            return self.finished_keys.swap_remove(index);
        }
        RequestKey(self.sent)
    }

    fn finish(&mut self, now: Time, instance: InstanceId) -> Result<(), String> {
        for key in self.running.remove(&instance).expect("it runs") {
            self.completed += 1;
            self.settle(key);
        }
        self.step_at(now, Event::LaneFree(instance))
    }

    fn join(&mut self) -> Result<(), String> {
        let is_new = |id: &InstanceId| self.harness.allows(&Event::AddInstance(*id));
        let id = (0..).map(InstanceId).find(is_new).expect("ids don't run out");
        self.present.push(id);
        self.step(Event::AddInstance(id))
    }

    /// An instance is removed; perhaps another comes later.
    fn leave(&mut self, now: Time) -> Result<(), String> {
        if !self.is_evening() && !self.draining {
            self.plan_within(300, Happening::Leave);
            self.plan_within(300, Happening::Join);
        }
        let here: Vec<InstanceId> = self.present.clone();
        let Some(last) = u64::try_from(here.len()).ok().and_then(|count| count.checked_sub(1))
        else {
            return Ok(());
        };
        let index = usize::try_from(self.random.between(0, last)).expect("an index");
        self.present.swap_remove(index);
        self.step_at(now, Event::RemoveInstance(here[index]))
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            trace_hash: self.harness.trace_hash(),
            events: self.harness.steps(),
            completed: self.completed,
            failed: self.failed,
        }
    }
}

fn random_client(random: &mut Random, spec: &SchedulingSpec) -> Client {
    let rows_limit = if spec.max_batch_size == 0 { 3 } else { spec.max_batch_size };
    let rows_max = if random.percent(50) { 1 } else { random.between_u32(1, rows_limit) };
    let chances = [0, 0, 20, 80];
    Client {
        open: BTreeSet::new(),
        open_max: random.pick(&[1, 4, 12, 30]),
        pause_max: random.pick(&[0, 1, 5, 20, 60]),
        rows_max,
        batch_keys: random.pick(&[0, 0, 1, 2]),
        priority_max: random.pick(&[0, 2, 4]),
        timeout_chance: random.pick(&chances),
        cancel_chance: random.pick(&chances),
        gone: false,
    }
}
