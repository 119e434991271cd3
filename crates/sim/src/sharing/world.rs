//! Models that contend for resources in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use galatea_policy::{
    BatchEntry, InstanceId, PermitEvent, PermitHolder, PermitUse, RateLimiter, RequestInfo,
    RequestKey, RequestRelease, ResourceId, SchedulerAction, SchedulerActions, SchedulerEvent,
    SequenceKey, SequencePosition, ShapeClassId, Time,
};

use super::checks::check_permit_requests;
use super::naive::NaiveLimiter;
use crate::check::{Check, ensure};
use crate::custom_batching::Scheduler;
use crate::permit_ledger::PermitLedger;
use crate::random::Random;
use crate::random_setup::random_setup;
use crate::setup::SchedulerSetup;

/// A planned event of a model.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PlannedEvent {
    Send,
    Cancel(u64),
    Finish(u32),
    Release(u64),
    /// A granted permit is delivered.
    Granted(u32),
    AddInstance,
    RemoveInstance,
    Tick,
}

/// A model with its scheduler and workload.
struct SharingModel {
    setup: SchedulerSetup,
    scheduler: Scheduler,
    book: PermitLedger,
    /// Instances for which no `RemoveInstance` was sent.
    present: Vec<u32>,
    /// Requests that have neither failed nor finished.
    open: BTreeSet<u64>,
    to_send: u64,
    executed: u64,
    instances: u32,
    keys: u64,
    /// The maximum duration of an execution.
    duration_max: u64,
    priority: u32,
    /// The resources that the model's instances need, assigned in rotation, as on several devices.
    needs: Vec<Vec<(ResourceId, u64)>>,
    is_drained: bool,
}

struct SharingWorld {
    random: Random,
    models: Vec<SharingModel>,
    limiter: RateLimiter,
    naive: NaiveLimiter,
    schedule: BinaryHeap<Reverse<(Time, u64, usize, PlannedEvent)>>,
    planned: u64,
    now: Time,
    /// The maximum delay until a permit is delivered.
    lateness_max: u64,
}

/// The number of batches that each of two busy models executes while they contend for a resource.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ContendedBatchCounts(pub u64, pub u64);

impl ContendedBatchCounts {
    /// Lets two models with these priorities contend for one resource until one of them has no
    /// requests left.
    pub fn measure(priorities: [u32; 2]) -> Result<Self, String> {
        let mut random = Random::new(0);
        let lateness_max = 0;
        let models = priorities.map(|priority| SharingModel {
            setup: random_setup(&mut random, Some(crate::SchedulerMode::Default)),
            priority,
            to_send: 0,
            duration_max: 1,
            needs: vec![vec![(ResourceId(0), 1)]],
            ..SharingModel::new(&mut random, Some(crate::SchedulerMode::Default), &[1])
        });
        let mut sharing = SharingWorld::new(random, Vec::from(models), &[1], lateness_max);
        for model in 0..2 {
            sharing.add_instance(model)?;
        }
        for _ in 0..600 {
            sharing.send(0)?;
            sharing.send(1)?;
        }
        while sharing.models.iter().all(|model| !model.open.is_empty()) {
            sharing.run_next()?;
        }
        Ok(ContendedBatchCounts(sharing.models[0].executed, sharing.models[1].executed))
    }
}

/// Runs the models of a seed with a single rate limiter.
pub fn fuzz_rate_limiter(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let resources = random.between(1, 3);
    let capacities: Vec<u64> = (0..resources).map(|_| random.between(1, 4)).collect();
    let models =
        (0..random.between(2, 4)).map(|_| SharingModel::new(&mut random, None, &capacities));
    let models: Vec<SharingModel> = models.collect();
    let lateness_max = random.pick(&[0, 0, 2, 10]);
    let mut sharing = SharingWorld::new(random, models, &capacities, lateness_max);
    sharing.run().map_err(|message| format!("sharing: {message}, at {:?}", sharing.now))
}

impl SharingModel {
    fn new(random: &mut Random, mode: Option<crate::SchedulerMode>, capacities: &[u64]) -> Self {
        let mut setup = random_setup(random, mode);
        setup.spec.hold_until_queued = 0;
        setup.spec.hold_until_backlogged = 0;
        let devices = random.pick(&[1, 1, 2, 3]);
        let needs = (0..devices).map(|_| {
            let numbered = (0..).map(ResourceId).zip(capacities);
            numbered.map(|(resource, most)| (resource, random.between(0, *most))).collect()
        });
        let needs = needs.collect();
        SharingModel {
            scheduler: setup.scheduler().with_permits(),
            setup,
            book: PermitLedger::default(),
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

impl SharingWorld {
    fn new(
        random: Random,
        models: Vec<SharingModel>,
        capacities: &[u64],
        lateness_max: u64,
    ) -> Self {
        let mut limiter = RateLimiter::default();
        let mut naive = NaiveLimiter::default();
        for (resource, capacity) in (0..).map(ResourceId).zip(capacities) {
            limiter.set_capacity(resource, *capacity);
            naive.capacities.insert(resource, *capacity);
        }
        SharingWorld {
            random,
            models,
            limiter,
            naive,
            schedule: BinaryHeap::new(),
            planned: 0,
            now: Time(0),
            lateness_max,
        }
    }

    fn run(&mut self) -> Check {
        for model in 0..self.models.len() {
            for _ in 0..self.random.between(1, 3) {
                self.plan(model, 10, PlannedEvent::AddInstance);
            }
            self.plan(model, 10, PlannedEvent::Send);
            if self.random.percent(30) {
                self.plan(model, 100, PlannedEvent::RemoveInstance);
                self.plan(model, 100, PlannedEvent::AddInstance);
            }
        }
        while self.run_next()? {}
        for model in 0..self.models.len() {
            self.add_instance(model)?;
            self.step(model, SchedulerEvent::Drain)?;
        }
        while self.run_next()? {}
        self.check_end()
    }

    fn check_end(&mut self) -> Check {
        for model in 0..self.models.len() {
            let open = &self.models[model].open;
            ensure!(open.is_empty(), "{open:?} of model {model} neither failed nor finished");
            ensure!(self.models[model].is_drained, "model {model} is not drained");
            for instance in std::mem::take(&mut self.models[model].present) {
                self.step(model, SchedulerEvent::RemoveInstance(InstanceId(instance)))?;
            }
        }
        while self.run_next()? {}
        let open: usize = self.models.iter().map(|model| model.book.open()).sum();
        ensure!(open == 0, "{open} permits were neither returned nor withdrawn");
        ensure!(self.limiter.waiting().next().is_none(), "no request is left, but a holder waits");
        for (model, sharing_model) in self.models.iter().enumerate() {
            let known = (0..sharing_model.instances).map(|instance| holder(model, instance));
            let mut known = known.filter(|holder| self.limiter.knows(*holder));
            ensure!(known.next().is_none(), "a removed instance of model {model} is known");
        }
        ensure!(self.naive.is_idle(), "all instances are removed, but a holder is known");
        Ok(())
    }

    fn plan(&mut self, model: usize, within: u64, planned: PlannedEvent) {
        let time = self.now.saturating_add(self.random.between(0, within));
        self.planned += 1;
        self.schedule.push(Reverse((time, self.planned, model, planned)));
    }

    /// Performs the next event. Returns false if there is none.
    fn run_next(&mut self) -> Result<bool, String> {
        let wakeups = self.models.iter().enumerate();
        let wakeups =
            wakeups.filter_map(|(model, one)| Some((one.scheduler.next_wakeup()?, model)));
        let wakeup = wakeups.min().filter(|(time, _)| time.0 < u64::MAX / 2);
        let next = self.schedule.peek().map(|Reverse((time, ..))| *time);
        match (wakeup, next) {
            (None, None) => return Ok(false),
            (Some((time, model)), next) if next.is_none_or(|next| time < next) => {
                self.now = time;
                self.perform_planned(model, PlannedEvent::Tick)?;
            }
            _ => {
                if let Some(Reverse((time, _, model, planned))) = self.schedule.pop() {
                    self.now = self.now.max(time);
                    self.perform_planned(model, planned)?;
                }
            }
        }
        Ok(true)
    }

    fn perform_planned(&mut self, model: usize, planned: PlannedEvent) -> Check {
        match planned {
            PlannedEvent::Send => {
                if self.models[model].to_send > 0 {
                    self.models[model].to_send -= 1;
                    self.plan(model, 10, PlannedEvent::Send);
                    self.send(model)?;
                }
                Ok(())
            }
            PlannedEvent::Cancel(key) => self.step(model, SchedulerEvent::Cancel(RequestKey(key))),
            PlannedEvent::Finish(instance) => {
                self.step(model, SchedulerEvent::LaneFree(InstanceId(instance)))
            }
            PlannedEvent::Release(key) => {
                self.settle(model, key);
                let release = RequestRelease::Done;
                self.step(model, SchedulerEvent::Released { key: RequestKey(key), release })
            }
            PlannedEvent::Granted(instance) => {
                let instance = InstanceId(instance);
                self.models[model].book.grant(instance)?;
                self.step(model, SchedulerEvent::PermitGranted(instance))
            }
            PlannedEvent::AddInstance => self.add_instance(model),
            PlannedEvent::RemoveInstance => match self.models[model].present.pop() {
                Some(instance) => {
                    self.step(model, SchedulerEvent::RemoveInstance(InstanceId(instance)))
                }
                None => Ok(()),
            },
            PlannedEvent::Tick => self.step(model, SchedulerEvent::Tick),
        }
    }

    fn add_instance(&mut self, model: usize) -> Check {
        let sharing_model = &mut self.models[model];
        let instance = sharing_model.instances;
        sharing_model.instances += 1;
        sharing_model.present.push(instance);
        let device = usize::try_from(instance).expect("few instances") % sharing_model.needs.len();
        let (needs, priority) = (sharing_model.needs[device].clone(), sharing_model.priority);
        self.limiter.register(holder(model, instance), &needs, priority);
        self.naive.register(holder(model, instance), &needs, priority);
        self.step(model, SchedulerEvent::AddInstance(InstanceId(instance)))
    }

    fn send(&mut self, model: usize) -> Check {
        let sharing_model = &mut self.models[model];
        let key = sharing_model.keys;
        sharing_model.keys += 1;
        sharing_model.open.insert(key);
        let is_sequential = sharing_model.setup.is_sequential();
        let sequence = SequencePosition { sequence: SequenceKey(key), start: true, end: true };
        let info = RequestInfo {
            key: RequestKey(key),
            batch_size: 1,
            shape_class: ShapeClassId(self.random.between_u32(0, 1)),
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 0,
            sequence: is_sequential.then_some(sequence),
        };
        if self.models[model].to_send > 0 && self.random.percent(10) {
            self.plan(model, 20, PlannedEvent::Cancel(key));
        }
        self.step(model, SchedulerEvent::Enqueue(info))
    }

    /// Steps a scheduler and immediately delays the instances that get no permit.
    fn step(&mut self, model: usize, event: SchedulerEvent) -> Check {
        let mut delayed = self.step_once(model, event)?;
        while let Some(instance) = delayed.pop() {
            self.models[model].book.delay(instance)?;
            delayed.extend(self.step_once(model, SchedulerEvent::PermitDelayed(instance))?);
        }
        let SharingModel { scheduler, book, .. } = &self.models[model];
        check_permit_requests(scheduler, book)
    }

    /// Steps a scheduler once. Returns the model's instances with delayed permits.
    fn step_once(
        &mut self,
        model: usize,
        event: SchedulerEvent,
    ) -> Result<Vec<InstanceId>, String> {
        let mut actions = SchedulerActions::default();
        let sharing_model = &mut self.models[model];
        sharing_model.scheduler.step(self.now, event, &mut actions);
        let mut permits = Vec::new();
        let mut removed = Vec::new();
        for action in actions.drain() {
            let requesting = self.models[model].book.record(&event, &action)?;
            let SharingModel { setup, scheduler, book, .. } = &self.models[model];
            // With sequences, each instance requests its own permit.
            if requesting.is_some() && !setup.is_sequential() {
                let (requested, queued) = (book.undelayed_requests(), scheduler.queued());
                ensure!(
                    requested <= queued,
                    "{requested} permits are requested, {queued} requests wait"
                );
            }
            self.perform(model, action, &mut permits, &mut removed);
        }
        self.models[model].book.check_no_permit_is_held()?;
        self.limit(&permits, &removed)?;
        let requested = permits.iter().filter_map(|event| match event {
            PermitEvent::Request(holder) => Some(*holder),
            PermitEvent::Withdraw(_) | PermitEvent::Return { .. } => None,
        });
        let waiting = requested.filter(|holder| self.naive.waits(*holder));
        Ok(waiting.map(|holder| InstanceId(model_of(holder).1)).collect())
    }

    fn perform(
        &mut self,
        model: usize,
        action: SchedulerAction,
        permits: &mut Vec<PermitEvent>,
        removed: &mut Vec<PermitHolder>,
    ) {
        match action {
            SchedulerAction::Dispatch { instance, batch } => {
                self.execute(model, instance.0, batch.entries());
            }
            SchedulerAction::Fail { key, .. } => self.settle(model, key.0),
            SchedulerAction::RequestPermit(instance) => {
                permits.push(PermitEvent::Request(holder(model, instance.0)));
            }
            SchedulerAction::ReturnPermit { instance, used } => {
                let used_for = if used { PermitUse::Executed } else { PermitUse::Unused };
                permits.push(PermitEvent::Return { holder: holder(model, instance.0), used_for });
            }
            SchedulerAction::WithdrawPermit(instance) => {
                permits.push(PermitEvent::Withdraw(holder(model, instance.0)));
            }
            SchedulerAction::InstanceRemoved(instance) => removed.push(holder(model, instance.0)),
            SchedulerAction::Drained => self.models[model].is_drained = true,
            SchedulerAction::SequenceClosed(_) | SchedulerAction::SequenceEnded(_) => {}
        }
    }

    fn execute(&mut self, model: usize, instance: u32, entries: &[BatchEntry]) {
        let duration = self.models[model].duration_max;
        self.models[model].executed += 1;
        self.plan(model, duration, PlannedEvent::Finish(instance));
        for entry in entries {
            match entry {
                BatchEntry::Step(step) => {
                    self.plan(model, duration, PlannedEvent::Release(step.key.0))
                }
                BatchEntry::Request(key) => self.settle(model, key.0),
                BatchEntry::Padding => {}
            }
        }
    }

    /// Records that a request has failed or finished.
    fn settle(&mut self, model: usize, key: u64) {
        self.models[model].open.remove(&key);
    }

    /// Steps both limiters and schedules the delivery of the permits.
    fn limit(&mut self, events: &[PermitEvent], removed: &[PermitHolder]) -> Check {
        let mut granted = Vec::new();
        self.limiter.step_all(events, &mut granted);
        for event in events {
            match *event {
                PermitEvent::Request(holder) => self.naive.request(holder),
                PermitEvent::Return { holder, used_for } => {
                    self.naive.return_permit(holder, used_for)
                }
                PermitEvent::Withdraw(holder) => self.naive.withdraw(holder),
            }
        }
        self.compare(&granted)?;
        for holder in removed {
            let mut more = Vec::new();
            self.limiter.unregister(*holder, &mut more);
            self.naive.unregister(*holder);
            self.compare(&more)?;
            granted.extend(more);
        }
        for holder in granted {
            let (model, instance) = model_of(holder);
            self.plan(model, self.lateness_max, PlannedEvent::Granted(instance));
        }
        Ok(())
    }

    fn compare(&mut self, granted: &[PermitHolder]) -> Check {
        let expected = self.naive.expected();
        ensure!(granted == expected, "{granted:?} got permits, not {expected:?}");
        self.naive.check_capacities()
    }
}
