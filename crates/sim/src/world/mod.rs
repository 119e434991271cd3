//! A made-up world: clients and instances that act in virtual time.

mod clients;
mod instances;
mod report;
mod talks;
mod tally;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind};

use galatea_policy::{Event, FailReason, InstanceId, RequestKey, Time};

use self::clients::{Client, Manners, random_client};
use self::instances::Instances;
pub use self::report::{Config, Outcome, Violation};
pub use self::tally::{Sight, Tally};
use crate::deed::Deed;
use crate::driver::{Keys, Names, Reuse};
use crate::ensembles::check_ensembles;
use crate::harness::Harness;
use crate::random::Random;
use crate::replies::check_replies;
use crate::sharing::check_sharing;
use crate::specs::random_setup;
use crate::trace::Trace;

/// Lives through the world of a seed, and through the replies and the sharing of
/// one.
pub fn run(seed: u64, config: &Config) -> Result<Outcome, Box<Violation>> {
    let mut world = World::new(seed, *config);
    let result = catch_unwind(AssertUnwindSafe(|| {
        check_replies(seed)?;
        check_sharing(seed)?;
        check_ensembles(seed)?;
        world.live()
    }));
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
    /// A client gives up the request that had this number.
    Cancel(RequestKey, u64),
    /// An instance finishes the batch that had this number.
    Finish(InstanceId, u64),
    /// A backend gives back the request whose execution had this number.
    Release(RequestKey, u64),
    Join,
    Leave,
    /// An instance fails for good.
    Die,
    Drain,
    /// A timer that fires for no reason.
    Tick,
}

/// How the world treats a scheduler.
#[derive(Debug)]
struct Weather {
    duration_max: u64,
    /// How much later than its batch a request may be given back.
    release_lateness_max: u64,
    /// How often an iterative request runs again.
    iterations_max: u64,
    /// How late timers fire.
    lateness_max: u64,
    /// Chance that a step's clock was read before the step before it.
    clock_back_chance: u64,
    key_reuse_chance: u64,
    lanes_max: u32,
}

/// A request without an outcome.
#[derive(Debug)]
struct Open {
    client: usize,
    /// No two requests have the same, however often keys are used.
    number: u64,
    /// Of its client; none if it belongs to none that the client began.
    talk: Option<u64>,
    /// Of the talk, before this request.
    last_word: Time,
    iterations_left: u64,
}

struct World {
    config: Config,
    random: Random,
    harness: Harness,
    trace: Trace,
    weather: Weather,
    clients: Vec<Client>,
    open: BTreeMap<RequestKey, Open>,
    instances: Instances,
    keys: Keys,
    names: Names,
    agenda: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    planned: u64,
    sent: u64,
    wakeups: u64,
    executions: u64,
    completed: u64,
    tally: Tally,
    draining: bool,
}

impl World {
    fn new(seed: u64, config: Config) -> Self {
        let mut random = Random::new(seed);
        let setup = random_setup(&mut random, config.mode);
        let duration_max = random.pick(&[0, 3, 10, 40]);
        let weather = Weather {
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
            trace: Trace { setup, steps: Vec::new() },
            weather,
            clients,
            open: BTreeMap::new(),
            instances: Instances::default(),
            keys: Keys::default(),
            names: Names::default(),
            agenda: BinaryHeap::new(),
            planned: 0,
            sent: 0,
            wakeups: 0,
            executions: 0,
            completed: 0,
            tally: Tally::default(),
            draining: false,
        };
        world.plan_beginnings();
        world
    }

    fn plan_beginnings(&mut self) {
        for client in 0..self.clients.len() {
            self.plan_within(20, Happening::Turn(client));
            if self.clients[client].manners == Manners::Any && self.random.percent(20) {
                self.plan_within(1000, Happening::Vanish(client));
            }
        }
        for _ in 0..self.weather.lanes_max {
            let patience = self.random.pick(&[0, 0, 30]);
            self.plan_within(patience, Happening::Join);
        }
        for (chance, happening) in [
            (30, Happening::Leave),
            (10, Happening::Die),
            (10, Happening::Drain),
            (30, Happening::Tick),
        ] {
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
        self.draining = true;
        self.step(Event::Drain)?;
        while self.go_on()? {}
        self.harness.check_empty()?;
        if let Some((key, _)) = self.open.first_key_value() {
            return Err(format!("{key:?} has no outcome"));
        }
        // A rejection, a move back, the end of a delay for each time it runs, and
        // the end of its sequence: no more can wake.
        let bound = 3 * self.sent + self.executions;
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
            self.take_note(deed)?;
        }
        Ok(())
    }

    fn take_note(&mut self, deed: Deed) -> Result<(), String> {
        self.tally.count(&deed);
        match deed {
            Deed::Run { instance, entries, .. } => self.execute(instance, &entries),
            Deed::Fail(key, reason) => {
                self.check_refusal(key, reason)?;
                if matches!(reason, FailReason::MissingStart | FailReason::Draining) {
                    self.drop_talk(key);
                }
                self.settle(key);
            }
            Deed::Closed(sequence) => self.names.close(sequence),
            Deed::Ended(sequence) => self.names.end(sequence),
            Deed::Removed(_) | Deed::Drained => {}
        }
        Ok(())
    }

    /// A request has its outcome.
    fn settle(&mut self, key: RequestKey) {
        if let Some(open) = self.open.remove(&key) {
            self.clients[open.client].open.remove(&key);
        }
        self.keys.free(key.0);
    }

    fn happen(&mut self, now: Time, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Turn(client) => self.turn(now, client),
            Happening::Vanish(client) => self.vanish(now, client),
            Happening::Cancel(key, number) => {
                // Another request may have the very same key by now.
                let is_other = self.open.get(&key).is_some_and(|open| open.number != number);
                if is_other { Ok(()) } else { self.step_at(now, Event::Cancel(key)) }
            }
            Happening::Finish(instance, number) => self.finish(now, instance, number),
            Happening::Release(key, number) => self.release(now, key, number),
            Happening::Join => {
                self.advance(now)?;
                self.join()
            }
            Happening::Leave => self.leave(now),
            Happening::Die => self.die(now),
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

    fn reuse(&mut self) -> Reuse {
        if self.random.percent(self.weather.key_reuse_chance) {
            Reuse::SameKey
        } else {
            Reuse::OtherGeneration
        }
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            trace_hash: self.harness.trace_hash(),
            events: self.harness.steps(),
            completed: self.completed,
            tally: self.tally,
        }
    }
}
