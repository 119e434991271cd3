//! Random models, requests, sequences, clients that load and unload models, failures, and changes
//! of the budget, in random order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use galatea_policy::{
    LoadMeasurement, MemoryBudget, MemoryByPool, MemoryPoolId, ModelEstimate, ModelId, RequestKey,
    RequestOrigin, Residency, ResidencyAction, ResidencyEvent, ResidencyRequest, ResidencySettings,
    Time,
};

use super::ledger::{Ledger, LedgerModel, LedgerWaiter, ModelPlace, POOLS};
use crate::check::{Check, ensure};
use crate::random::Random;

/// The maximum number of steps in which everything that waits gets an outcome, if loads, unloads
/// and uses end.
const STEPS_TO_END_MAX: u64 = 400;

struct ResidencyWorld {
    residency: Residency,
    ledger: Ledger,
    now: Time,
    next_key: u64,
    steps: u64,
    /// The budget at first, from which changes are drawn.
    bytes_max: u64,
    actions: Vec<ResidencyAction>,
    /// The latest events, for error messages.
    log: String,
}

/// Runs the random world of a seed.
///
/// # Errors
///
/// Returns the broken rule with the preceding events.
pub fn fuzz_residency(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let mut world = ResidencyWorld::draw(&mut random);
    world.live(&mut random).map_err(|message| format!("residency: {message}, after{}", world.log))
}

impl ResidencyWorld {
    fn draw(random: &mut Random) -> Self {
        let bytes_max = random.between(60, 200);
        let settings = ResidencySettings {
            budget: MemoryBudget::host(bytes_max).with(MemoryPoolId::gpu(0), bytes_max),
            concurrent_loads_max: usize::try_from(random.between(1, 3)).expect("small"),
            waiting_per_model_max: usize::try_from(random.between(1, 6)).expect("small"),
            waiting_max: usize::try_from(random.between(2, 12)).expect("small"),
            stay_factor: random.pick(&[0.0, 1.0, 3.0]),
        };
        let plain = random.between(2, 7);
        let ensembles = random.pick(&[0, 0, 1, 2]);
        let models = (0..plain + ensembles).map(|number| {
            let dependencies = if number < plain { Vec::new() } else { pick_some(plain, random) };
            draw_model(number, dependencies, random)
        });
        let ledger = Ledger {
            settings: settings.clone(),
            models: models.collect(),
            waiters: BTreeMap::new(),
            promised: BTreeMap::new(),
            draining: Vec::new(),
            urgent: BTreeSet::new(),
            waiters_before: BTreeMap::new(),
        };
        Self {
            residency: Residency::new(settings),
            ledger,
            now: Time(0),
            next_key: 1,
            steps: 0,
            bytes_max,
            actions: Vec::new(),
            log: String::new(),
        }
    }

    fn live(&mut self, random: &mut Random) -> Check {
        for model in 0..self.ledger.models.len() {
            self.make_known(model)?;
        }
        for _ in 0..random.between(20, 120) {
            self.happen(random)?;
        }
        self.press(random)?;
        self.end()
    }

    fn happen(&mut self, random: &mut Random) -> Check {
        let model = self.pick_model(random);
        match random.between(1, 100) {
            1..=35 => self.request(model, random),
            36..=50 => self.release(random),
            51..=65 => self.end_load(random),
            66..=74 => self.end_unload(random),
            75..=84 => self.pass_time(random),
            85..=86 => self.hold(random),
            87..=89 => self.cancel(random),
            90..=92 => self.client_load(model),
            93..=94 => self.client_unload(model),
            95 => self.forget(model),
            96 => self.make_known(model),
            97 => self.measure(random),
            98..=99 => self.change_budget(random),
            _ => self.step(ResidencyEvent::Tick),
        }
    }

    fn pick_model(&self, random: &mut Random) -> usize {
        let last = self.ledger.models.len() - 1;
        // Some models are more popular than others.
        let pick = |random: &mut Random| random.between(0, last as u64);
        usize::try_from(pick(random).min(pick(random))).expect("an index")
    }

    fn pick_at(&self, place: ModelPlace, random: &mut Random) -> Option<usize> {
        let there = self.ledger.at(&[place]);
        (!there.is_empty()).then(|| random.pick(&there))
    }

    fn request(&mut self, model: usize, random: &mut Random) -> Check {
        let origin = match random.between(1, 10) {
            1 => RequestOrigin::Sequence,
            2 => RequestOrigin::Nested,
            _ => RequestOrigin::Client,
        };
        let deadline = match random.between(1, 4) {
            1 => self.now.saturating_add(random.pick(&[1, 50, 200, 1_000])),
            _ => Time::MAX,
        };
        let key = self.new_waiter(model, deadline, Some(origin));
        let draining = self.draining();
        let drains = self.ledger.closure(model).iter().any(|member| draining.contains(member));
        let model = self.ledger.models[model].name.clone();
        let request = ResidencyRequest { key, model, deadline, origin };
        self.step(ResidencyEvent::Request(request))?;
        let is_admitted = self.actions.contains(&ResidencyAction::Admit(key));
        let waits = origin == RequestOrigin::Client && drains;
        ensure!(!waits || !is_admitted, "{key:?} is admitted while its model drains");
        self.check_first_outcome(key)
    }

    fn client_load(&mut self, model: usize) -> Check {
        let key = self.new_waiter(model, Time::MAX, None);
        let closure = self.ledger.closure(model);
        if closure.iter().all(|member| self.ledger.models[*member].is_known) {
            for member in closure {
                self.ledger.models[member].is_blocked = false;
                self.ledger.models[member].retry_at = Time(0);
            }
            self.ledger.models[model].is_pinned = true;
        }
        let name = self.ledger.models[model].name.clone();
        let origin = RequestOrigin::Client;
        self.step(ResidencyEvent::ClientLoad { key, model: name, origin })?;
        self.check_first_outcome(key)
    }

    fn new_waiter(
        &mut self,
        model: usize,
        deadline: Time,
        origin: Option<RequestOrigin>,
    ) -> RequestKey {
        let key = RequestKey(self.next_key);
        self.next_key += 1;
        let waiter = LedgerWaiter { model, deadline, origin, since: self.steps };
        self.ledger.waiters.insert(key, waiter);
        match origin {
            None | Some(RequestOrigin::Nested) => _ = self.ledger.urgent.insert(model),
            Some(RequestOrigin::Client | RequestOrigin::Sequence) => {}
        }
        key
    }

    /// Checks that a request got an outcome at once, or was told to wait.
    fn check_first_outcome(&mut self, key: RequestKey) -> Check {
        let is_told = |action: &ResidencyAction| match action {
            ResidencyAction::Wait { key: other, .. }
            | ResidencyAction::Admit(other)
            | ResidencyAction::Refuse(other, _) => *other == key,
            ResidencyAction::Load(_) | ResidencyAction::Unload(_) => false,
        };
        let told = self.actions.iter().filter(|action| is_told(action)).count();
        ensure!(told == 1, "{key:?} was told {told} outcomes");
        Ok(())
    }

    fn hold(&mut self, random: &mut Random) -> Check {
        let Some(model) = self.pick_in_use(random) else { return Ok(()) };
        self.ledger.models[model].uses += 1;
        self.step(ResidencyEvent::Held(self.ledger.models[model].name.clone()))
    }

    fn pick_in_use(&self, random: &mut Random) -> Option<usize> {
        let uses = |model: &usize| self.ledger.models[*model].uses > 0;
        let in_use: Vec<usize> = (0..self.ledger.models.len()).filter(uses).collect();
        (!in_use.is_empty()).then(|| random.pick(&in_use))
    }

    fn release(&mut self, random: &mut Random) -> Check {
        let Some(model) = self.pick_in_use(random) else { return Ok(()) };
        self.ledger.models[model].uses -= 1;
        if self.ledger.models[model].uses == 0 {
            for member in self.ledger.closure(model) {
                self.ledger.models[member].idle_since = self.now;
            }
        }
        self.step(ResidencyEvent::Released(self.ledger.models[model].name.clone()))
    }

    fn end_load(&mut self, random: &mut Random) -> Check {
        let Some(index) = self.pick_at(ModelPlace::Loading, random) else { return Ok(()) };
        self.now = self.now.saturating_add(random.between(0, 100));
        if random.percent(8) {
            return self.fail_load(index);
        }
        self.complete_load(index, random)
    }

    fn fail_load(&mut self, index: usize) -> Check {
        let model = &mut self.ledger.models[index];
        (model.place, model.is_pinned) = (ModelPlace::Absent, false);
        let pause_ns = (1_000_000_000_u64 << model.failures.min(6)).min(60_000_000_000);
        model.failures += 1;
        model.retry_at = self.now.saturating_add(pause_ns);
        let name = model.name.clone();
        self.stop_promising(index);
        self.step(ResidencyEvent::LoadFailed(name))
    }

    fn complete_load(&mut self, index: usize, random: &mut Random) -> Check {
        let model = &mut self.ledger.models[index];
        model.place = ModelPlace::Resident;
        model.bytes = model.truth.bytes.clone();
        model.is_measured = true;
        (model.loaded_at, model.idle_since) = (self.now, self.now);
        model.load_ns = model.truth.load_ns;
        model.failures = 0;
        let measured = model.truth.clone();
        model.truth.load_ns = random.between(50, 150);
        let name = model.name.clone();
        self.step(ResidencyEvent::Loaded(name, measured))
    }

    fn end_unload(&mut self, random: &mut Random) -> Check {
        let Some(index) = self.pick_at(ModelPlace::Unloading, random) else { return Ok(()) };
        self.ledger.models[index].place = ModelPlace::Absent;
        self.step(ResidencyEvent::Unloaded(self.ledger.models[index].name.clone()))
    }

    fn pass_time(&mut self, random: &mut Random) -> Check {
        let wakeup = self.residency.next_wakeup();
        let passed = match wakeup {
            Some(wakeup) if random.percent(60) => wakeup.saturating_since(self.now),
            _ => random.pick(&[0, 1, 30, 100, 400, 2_000_000_000]),
        };
        self.now = self.now.saturating_add(passed);
        self.step(ResidencyEvent::Tick)
    }

    fn cancel(&mut self, random: &mut Random) -> Check {
        let is_request = |(_, waiter): &(&RequestKey, &LedgerWaiter)| waiter.origin.is_some();
        let keys: Vec<RequestKey> =
            self.ledger.waiters.iter().filter(is_request).map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let key = random.pick(&keys);
        if self.ledger.waiters[&key].deadline > self.now {
            self.ledger.waiters.remove(&key);
        }
        self.step(ResidencyEvent::Cancelled(key))
    }

    fn client_unload(&mut self, index: usize) -> Check {
        let model = &mut self.ledger.models[index];
        if !model.is_known {
            return Ok(());
        }
        (model.is_blocked, model.is_pinned) = (true, false);
        let name = model.name.clone();
        self.stop_promising(index);
        self.step(ResidencyEvent::ClientUnload(name))
    }

    fn forget(&mut self, index: usize) -> Check {
        let model = &mut self.ledger.models[index];
        // Earlier dependencies of models in use have tests of their own.
        if model.uses > 0 {
            return Ok(());
        }
        (model.is_known, model.is_pinned) = (false, false);
        let name = model.name.clone();
        self.stop_promising(index);
        self.step(ResidencyEvent::Forgotten(name))
    }

    fn stop_promising(&mut self, index: usize) {
        let targets: Vec<usize> = self.ledger.promised.keys().copied().collect();
        for target in targets {
            if self.ledger.closure(target).contains(&index) {
                self.ledger.promised.remove(&target);
                self.ledger.urgent.remove(&target);
            }
        }
    }

    fn make_known(&mut self, index: usize) -> Check {
        if self.residency.state(&self.ledger.models[index].name).is_none() {
            // The residency has forgotten all about the model.
            let model = &mut self.ledger.models[index];
            (model.is_blocked, model.is_measured) = (false, false);
            (model.loaded_at, model.load_ns, model.idle_since) = (Time(0), 0, Time(0));
        }
        let model = &mut self.ledger.models[index];
        let estimate = model.truth.bytes.clone();
        let bytes = if model.is_measured { model.bytes.clone() } else { halved(&estimate) };
        (model.is_known, model.failures, model.retry_at) = (true, 0, Time(0));
        model.bytes.clone_from(&bytes);
        let dependencies = self.ledger.models[index].dependencies.clone();
        let dependencies: Vec<ModelId> =
            dependencies.iter().map(|one| self.ledger.models[*one].name.clone()).collect();
        let name = self.ledger.models[index].name.clone();
        let estimate = ModelEstimate { bytes, load_ns: 100, dependencies };
        self.step(ResidencyEvent::Known(name, estimate))
    }

    fn measure(&mut self, random: &mut Random) -> Check {
        let Some(index) = self.pick_at(ModelPlace::Resident, random) else { return Ok(()) };
        let model = &mut self.ledger.models[index];
        let bytes = model.bytes.of(MemoryPoolId::HOST);
        model.bytes = model.bytes.clone().with(MemoryPoolId::HOST, bytes + random.between(0, 20));
        let event = ResidencyEvent::Measured(model.name.clone(), model.bytes.clone());
        self.step(event)
    }

    fn change_budget(&mut self, random: &mut Random) -> Check {
        let mut bytes = || random.between(self.bytes_max / 2, self.bytes_max * 3 / 2);
        let budget = MemoryBudget::host(bytes()).with(MemoryPoolId::gpu(0), bytes());
        self.ledger.settings.budget = budget.clone();
        self.step(ResidencyEvent::Budget(budget))
    }

    /// Lets loads, unloads and uses end while further requests come. Each request that waits gets
    /// its outcome in the end.
    fn press(&mut self, random: &mut Random) -> Check {
        let begin = self.steps;
        let requests = random.pick(&[0, 1, 3]);
        for round in 0..60 {
            for _ in 0..requests {
                let model = self.pick_model(random);
                let deadline = Time::MAX;
                let origin = RequestOrigin::Client;
                let key = self.new_waiter(model, deadline, Some(origin));
                let model = self.ledger.models[model].name.clone();
                let request = ResidencyRequest { key, model, deadline, origin };
                self.step(ResidencyEvent::Request(request))?;
            }
            self.end_all(random, round % 2 == 0)?;
        }
        let waits = self.ledger.waiters.iter().find(|(_, waiter)| waiter.since <= begin);
        ensure!(waits.is_none(), "{waits:?} waits while others are served");
        Ok(())
    }

    /// Ends all loads and unloads, and all uses or all but one of each model.
    fn end_all(&mut self, random: &mut Random, ends_uses: bool) -> Check {
        for index in self.ledger.at(&[ModelPlace::Loading]) {
            self.complete_load(index, random)?;
        }
        for index in self.ledger.at(&[ModelPlace::Unloading]) {
            self.ledger.models[index].place = ModelPlace::Absent;
            self.step(ResidencyEvent::Unloaded(self.ledger.models[index].name.clone()))?;
        }
        for index in 0..self.ledger.models.len() {
            let keeps = u64::from(!ends_uses);
            while self.ledger.models[index].uses > keeps {
                self.ledger.models[index].uses -= 1;
                if self.ledger.models[index].uses == 0 {
                    for member in self.ledger.closure(index) {
                        self.ledger.models[member].idle_since = self.now;
                    }
                }
                self.step(ResidencyEvent::Released(self.ledger.models[index].name.clone()))?;
            }
        }
        let wakeup = self.residency.next_wakeup();
        self.now = wakeup.unwrap_or(self.now).max(self.now.saturating_add(60));
        self.step(ResidencyEvent::Tick)
    }

    /// Ends everything, after which nothing waits.
    fn end(&mut self) -> Check {
        let mut random = Random::new(1);
        for _ in 0..STEPS_TO_END_MAX {
            self.end_all(&mut random, true)?;
            let is_quiet = self.ledger.waiters.is_empty()
                && self.ledger.at(&[ModelPlace::Loading, ModelPlace::Unloading]).is_empty();
            if is_quiet {
                return Ok(());
            }
        }
        Err(format!("{:?} never end", self.ledger.waiters))
    }

    fn step(&mut self, event: ResidencyEvent) -> Check {
        self.steps += 1;
        let _ = write!(self.log, "\n{event:?} @{}", self.now.0);
        self.ledger.draining = self.draining();
        self.ledger.waiters_before.clone_from(&self.ledger.waiters);
        self.actions.clear();
        self.residency.step(self.now, event, &mut self.actions);
        let _ = write!(self.log, " -> {:?}", self.actions);
        for action in &self.actions {
            self.ledger.judge(self.now, action, &self.residency)?;
        }
        self.ledger.settle_promises(&self.residency);
        self.ledger.check_state(self.now, &self.residency)?;
        self.check_progress()
    }

    fn draining(&self) -> Vec<usize> {
        let is_draining = |index: &usize| {
            let state = self.residency.state(&self.ledger.models[*index].name);
            state == Some(galatea_policy::ResidencyState::Draining)
        };
        (0..self.ledger.models.len()).filter(is_draining).collect()
    }

    /// Checks that something will end for which a waiting request waits.
    fn check_progress(&self) -> Check {
        let is_busy = !self.ledger.at(&[ModelPlace::Loading, ModelPlace::Unloading]).is_empty()
            || self.ledger.models.iter().any(|model| model.uses > 0)
            || self.residency.next_wakeup().is_some();
        ensure!(is_busy || self.ledger.waiters.is_empty(), "all wait for nothing");
        Ok(())
    }
}

fn draw_model(number: u64, dependencies: Vec<usize>, random: &mut Random) -> LedgerModel {
    let is_ensemble = !dependencies.is_empty();
    let mut bytes = MemoryByPool::default();
    for pool in POOLS {
        let has_bytes = !is_ensemble && (pool == MemoryPoolId::HOST || random.percent(40));
        bytes = bytes.with(pool, if has_bytes { random.between(10, 80) } else { 0 });
    }
    LedgerModel {
        name: format!("m{number}").into(),
        place: ModelPlace::Absent,
        bytes: MemoryByPool::default(),
        is_measured: false,
        truth: LoadMeasurement { bytes, load_ns: random.between(50, 150) },
        dependencies,
        is_known: false,
        is_pinned: false,
        is_blocked: false,
        uses: 0,
        loaded_at: Time(0),
        load_ns: 0,
        idle_since: Time(0),
        was_promised: false,
        failures: 0,
        retry_at: Time(0),
    }
}

fn pick_some(count: u64, random: &mut Random) -> Vec<usize> {
    let all = 0..usize::try_from(count).expect("small");
    let mut some: Vec<usize> = all.filter(|_| random.percent(40)).collect();
    if some.is_empty() {
        some.push(0);
    }
    some
}

/// Returns estimated bytes, which are less than the true ones.
fn halved(bytes: &MemoryByPool) -> MemoryByPool {
    let mut halved = MemoryByPool::default();
    for (pool, bytes) in bytes.iter() {
        halved = halved.with(pool, bytes - bytes / 4);
    }
    halved
}
