//! Models that contend, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use galatea_policy::{
    Action, Actions, BatchEntry, BatchKey, Event, InstanceId, PermitEvent, PermitHolder, PermitUse,
    RateLimiter, Release, RequestInfo, RequestKey, ResourceId, SequenceKey, SequencePosition, Time,
};

use super::checks::check_asking;
use super::naive::NaiveLimiter;
use crate::batching::Scheduler;
use crate::check::{Check, ensure};
use crate::permits::PermitBook;
use crate::random::Random;
use crate::setup::Setup;
use crate::specs::random_setup;

/// Something that happens to a model.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Happening {
    Send,
    Cancel(u64),
    Finish(u32),
    Release(u64),
    /// A permit is delivered: a while after it was granted.
    Granted(u32),
    Join,
    Leave,
    Tick,
}

/// A model, its scheduler and what it has to do.
struct Contender {
    setup: Setup,
    scheduler: Scheduler,
    book: PermitBook,
    /// Instances that nobody has told to go.
    present: Vec<u32>,
    /// Requests without an outcome.
    open: BTreeSet<u64>,
    to_send: u64,
    executed: u64,
    instances: u32,
    keys: u64,
    /// The longest execution.
    duration_max: u64,
    priority: u32,
    /// What its instances need, in turns: as if they were on several devices.
    needs: Vec<Vec<(ResourceId, u64)>>,
    is_drained: bool,
}

struct Sharing {
    random: Random,
    models: Vec<Contender>,
    limiter: RateLimiter,
    naive: NaiveLimiter,
    agenda: BinaryHeap<Reverse<(Time, u64, usize, Happening)>>,
    planned: u64,
    now: Time,
    /// How late a permit may be delivered.
    lateness_max: u64,
}

/// How many batches two busy models execute while they contend.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Shares(pub u64, pub u64);

impl Shares {
    /// Lets two models of these priorities contend for one resource until one of
    /// them has nothing left.
    pub fn of(priorities: [u32; 2]) -> Result<Self, String> {
        let mut random = Random::new(0);
        let lateness_max = 0;
        let models = priorities.map(|priority| Contender {
            setup: random_setup(&mut random, Some(crate::Mode::Default)),
            priority,
            to_send: 0,
            duration_max: 1,
            needs: vec![vec![(ResourceId(0), 1)]],
            ..Contender::new(&mut random, Some(crate::Mode::Default), &[1])
        });
        let mut sharing = Sharing::new(random, Vec::from(models), &[1], lateness_max);
        for model in 0..2 {
            sharing.join(model)?;
        }
        for _ in 0..600 {
            sharing.send(0)?;
            sharing.send(1)?;
        }
        while sharing.models.iter().all(|model| !model.open.is_empty()) {
            sharing.go_on()?;
        }
        Ok(Shares(sharing.models[0].executed, sharing.models[1].executed))
    }
}

/// Lives through the sharing of a seed.
pub fn check_sharing(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let resources = random.between(1, 3);
    let capacities: Vec<u64> = (0..resources).map(|_| random.between(1, 4)).collect();
    let models = (0..random.between(2, 4)).map(|_| Contender::new(&mut random, None, &capacities));
    let models: Vec<Contender> = models.collect();
    let lateness_max = random.pick(&[0, 0, 2, 10]);
    let mut sharing = Sharing::new(random, models, &capacities, lateness_max);
    sharing.live().map_err(|message| format!("sharing: {message}, at {:?}", sharing.now))
}

impl Contender {
    fn new(random: &mut Random, mode: Option<crate::Mode>, capacities: &[u64]) -> Self {
        let mut setup = random_setup(random, mode);
        setup.spec.hold_until_queued = 0;
        setup.spec.hold_until_backlogged = 0;
        let devices = random.pick(&[1, 1, 2, 3]);
        let needs = (0..devices).map(|_| {
            let numbered = (0..).map(ResourceId).zip(capacities);
            numbered.map(|(resource, most)| (resource, random.between(0, *most))).collect()
        });
        let needs = needs.collect();
        Contender {
            scheduler: setup.scheduler().with_permits(),
            setup,
            book: PermitBook::default(),
            present: Vec::new(),
            open: BTreeSet::new(),
            to_send: random.between(1, 20),
            executed: 0,
            instances: 0,
            keys: 0,
            duration_max: random.pick(&[0, 3, 20]),
            priority: random.pick(&[0, 1, 1, 2, 5]),
            needs,
            is_drained: false,
        }
    }
}

fn holder(model: usize, instance: u32) -> PermitHolder {
    PermitHolder(u64::try_from(model).expect("few models") << 32 | u64::from(instance))
}

fn model_of(holder: PermitHolder) -> (usize, u32) {
    let instance = u32::try_from(holder.0 & u64::from(u32::MAX)).expect("the low half");
    (usize::try_from(holder.0 >> 32).expect("few models"), instance)
}

impl Sharing {
    fn new(random: Random, models: Vec<Contender>, capacities: &[u64], lateness_max: u64) -> Self {
        let mut limiter = RateLimiter::default();
        let mut naive = NaiveLimiter::default();
        for (resource, capacity) in (0..).map(ResourceId).zip(capacities) {
            limiter.set_capacity(resource, *capacity);
            naive.capacities.insert(resource, *capacity);
        }
        Sharing {
            random,
            models,
            limiter,
            naive,
            agenda: BinaryHeap::new(),
            planned: 0,
            now: Time(0),
            lateness_max,
        }
    }

    fn live(&mut self) -> Check {
        for model in 0..self.models.len() {
            for _ in 0..self.random.between(1, 3) {
                self.plan(model, 10, Happening::Join);
            }
            self.plan(model, 10, Happening::Send);
            if self.random.percent(30) {
                self.plan(model, 100, Happening::Leave);
                self.plan(model, 100, Happening::Join);
            }
        }
        while self.go_on()? {}
        for model in 0..self.models.len() {
            self.join(model)?;
            self.step(model, Event::Drain)?;
        }
        while self.go_on()? {}
        self.check_end()
    }

    fn check_end(&mut self) -> Check {
        for model in 0..self.models.len() {
            let open = &self.models[model].open;
            ensure!(open.is_empty(), "{open:?} of model {model} have no outcome");
            ensure!(self.models[model].is_drained, "model {model} is not drained");
            for instance in std::mem::take(&mut self.models[model].present) {
                self.step(model, Event::RemoveInstance(InstanceId(instance)))?;
            }
        }
        while self.go_on()? {}
        let open: usize = self.models.iter().map(|model| model.book.open()).sum();
        ensure!(open == 0, "{open} permits were neither returned nor withdrawn");
        ensure!(self.limiter.waiting().next().is_none(), "all is over, but somebody waits");
        for (model, contender) in self.models.iter().enumerate() {
            let known = (0..contender.instances).map(|instance| holder(model, instance));
            let mut known = known.filter(|holder| self.limiter.knows(*holder));
            ensure!(known.next().is_none(), "an instance of model {model} is gone and known");
        }
        ensure!(self.naive.is_idle(), "all are gone, but somebody is known");
        Ok(())
    }

    fn plan(&mut self, model: usize, within: u64, happening: Happening) {
        let time = self.now.saturating_add(self.random.between(0, within));
        self.planned += 1;
        self.agenda.push(Reverse((time, self.planned, model, happening)));
    }

    /// One thing happens; false if nothing ever will.
    fn go_on(&mut self) -> Result<bool, String> {
        let wakeups = self.models.iter().enumerate();
        let wakeups =
            wakeups.filter_map(|(model, one)| Some((one.scheduler.next_wakeup()?, model)));
        let wakeup = wakeups.min().filter(|(time, _)| time.0 < u64::MAX / 2);
        let next = self.agenda.peek().map(|Reverse((time, ..))| *time);
        match (wakeup, next) {
            (None, None) => return Ok(false),
            (Some((time, model)), next) if next.is_none_or(|next| time < next) => {
                self.now = time;
                self.happen(model, Happening::Tick)?;
            }
            _ => {
                if let Some(Reverse((time, _, model, happening))) = self.agenda.pop() {
                    self.now = self.now.max(time);
                    self.happen(model, happening)?;
                }
            }
        }
        Ok(true)
    }

    fn happen(&mut self, model: usize, happening: Happening) -> Check {
        match happening {
            Happening::Send => {
                if self.models[model].to_send > 0 {
                    self.models[model].to_send -= 1;
                    self.plan(model, 10, Happening::Send);
                    self.send(model)?;
                }
                Ok(())
            }
            Happening::Cancel(key) => self.step(model, Event::Cancel(RequestKey(key))),
            Happening::Finish(instance) => self.step(model, Event::LaneFree(InstanceId(instance))),
            Happening::Release(key) => {
                self.settle(model, key);
                let release = Release::Done;
                self.step(model, Event::Released { key: RequestKey(key), release })
            }
            Happening::Granted(instance) => {
                let instance = InstanceId(instance);
                self.models[model].book.grant(instance)?;
                self.step(model, Event::PermitGranted(instance))
            }
            Happening::Join => self.join(model),
            Happening::Leave => match self.models[model].present.pop() {
                Some(instance) => self.step(model, Event::RemoveInstance(InstanceId(instance))),
                None => Ok(()),
            },
            Happening::Tick => self.step(model, Event::Tick),
        }
    }

    fn join(&mut self, model: usize) -> Check {
        let contender = &mut self.models[model];
        let instance = contender.instances;
        contender.instances += 1;
        contender.present.push(instance);
        let turn = usize::try_from(instance).expect("few instances") % contender.needs.len();
        let (needs, priority) = (contender.needs[turn].clone(), contender.priority);
        self.limiter.register(holder(model, instance), &needs, priority);
        self.naive.register(holder(model, instance), &needs, priority);
        self.step(model, Event::AddInstance(InstanceId(instance)))
    }

    fn send(&mut self, model: usize) -> Check {
        let contender = &mut self.models[model];
        let key = contender.keys;
        contender.keys += 1;
        contender.open.insert(key);
        let is_sequential = contender.setup.is_sequential();
        let sequence = SequencePosition { sequence: SequenceKey(key), start: true, end: true };
        let ticket = RequestInfo {
            key: RequestKey(key),
            batch_size: 1,
            batch_key: BatchKey(self.random.between_u32(0, 1)),
            priority: 0,
            timeout_ns: 0,
            sequence: is_sequential.then_some(sequence),
        };
        if self.models[model].to_send > 0 && self.random.percent(10) {
            self.plan(model, 20, Happening::Cancel(key));
        }
        self.step(model, Event::Enqueue(ticket))
    }

    /// An instance that must wait for its permit is told so at once.
    fn step(&mut self, model: usize, event: Event) -> Check {
        let mut delayed = self.step_once(model, event)?;
        while let Some(instance) = delayed.pop() {
            self.models[model].book.delay(instance)?;
            delayed.extend(self.step_once(model, Event::PermitDelayed(instance))?);
        }
        let Contender { scheduler, book, .. } = &self.models[model];
        check_asking(scheduler, book)
    }

    /// Returns which instances of the model must wait.
    fn step_once(&mut self, model: usize, event: Event) -> Result<Vec<InstanceId>, String> {
        let mut actions = Actions::default();
        let contender = &mut self.models[model];
        contender.scheduler.step(self.now, event, &mut actions);
        let mut permits = Vec::new();
        let mut gone = Vec::new();
        for action in actions.drain() {
            let asks = self.models[model].book.enter(&event, &action)?;
            let Contender { setup, scheduler, book, .. } = &self.models[model];
            // Instances of sequences ask for themselves.
            if asks.is_some() && !setup.is_sequential() {
                let (asked, queued) = (book.hopeful(), scheduler.queued());
                ensure!(asked <= queued, "{asked} permits are asked for, {queued} requests wait");
            }
            self.perform(model, action, &mut permits, &mut gone);
        }
        self.models[model].book.check_nobody_sits_on_one()?;
        self.limit(&permits, &gone)?;
        let asked = permits.iter().filter_map(|event| match event {
            PermitEvent::Request(holder) => Some(*holder),
            PermitEvent::Withdraw(_) | PermitEvent::Return { .. } => None,
        });
        let waiting = asked.filter(|holder| self.naive.waits(*holder));
        Ok(waiting.map(|holder| InstanceId(model_of(holder).1)).collect())
    }

    fn perform(
        &mut self,
        model: usize,
        action: Action,
        permits: &mut Vec<PermitEvent>,
        gone: &mut Vec<PermitHolder>,
    ) {
        match action {
            Action::Dispatch { instance, batch } => {
                self.execute(model, instance.0, batch.entries());
            }
            Action::Fail { key, .. } => self.settle(model, key.0),
            Action::RequestPermit(instance) => {
                permits.push(PermitEvent::Request(holder(model, instance.0)));
            }
            Action::ReturnPermit { instance, used } => {
                let used_for = if used { PermitUse::Executed } else { PermitUse::Unused };
                permits.push(PermitEvent::Return { holder: holder(model, instance.0), used_for });
            }
            Action::WithdrawPermit(instance) => {
                permits.push(PermitEvent::Withdraw(holder(model, instance.0)));
            }
            Action::InstanceRemoved(instance) => gone.push(holder(model, instance.0)),
            Action::Drained => self.models[model].is_drained = true,
            Action::SequenceClosed(_) | Action::SequenceEnded(_) => {}
        }
    }

    fn execute(&mut self, model: usize, instance: u32, entries: &[BatchEntry]) {
        let duration = self.models[model].duration_max;
        self.models[model].executed += 1;
        self.plan(model, duration, Happening::Finish(instance));
        for entry in entries {
            match entry {
                BatchEntry::Step(step) => {
                    self.plan(model, duration, Happening::Release(step.key.0))
                }
                BatchEntry::Request(key) => self.settle(model, key.0),
                BatchEntry::Padding => {}
            }
        }
    }

    /// A request has its outcome.
    fn settle(&mut self, model: usize, key: u64) {
        self.models[model].open.remove(&key);
    }

    /// Tells the limiters, and delivers what they grant a while later.
    fn limit(&mut self, events: &[PermitEvent], gone: &[PermitHolder]) -> Check {
        let mut granted = Vec::new();
        self.limiter.step_all(events, &mut granted);
        for event in events {
            match *event {
                PermitEvent::Request(holder) => self.naive.request(holder),
                PermitEvent::Return { holder, used_for } => self.naive.give_back(holder, used_for),
                PermitEvent::Withdraw(holder) => self.naive.withdraw(holder),
            }
        }
        self.compare(&granted)?;
        for holder in gone {
            let mut more = Vec::new();
            self.limiter.unregister(*holder, &mut more);
            self.naive.unregister(*holder);
            self.compare(&more)?;
            granted.extend(more);
        }
        for holder in granted {
            let (model, instance) = model_of(holder);
            self.plan(model, self.lateness_max, Happening::Granted(instance));
        }
        Ok(())
    }

    fn compare(&mut self, granted: &[PermitHolder]) -> Check {
        let expected = self.naive.expected();
        ensure!(granted == expected, "{granted:?} got permits, not {expected:?}");
        self.naive.check_capacities()
    }
}
