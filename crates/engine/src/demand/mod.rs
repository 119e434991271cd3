//! Models that are loaded when a request needs them, and unloaded when the memory is full.
//!
//! The pure [`Residency`] decides; this module drives it. The driver holds the only lock, reads the
//! clock, and performs the decisions with the manager: a load here is an order like a client's.
//!
//! # The life of a waiting request
//!
//! 1. A lookup fails in the registry. Only then does a request reach this module: requests that
//!    find their model cost nothing here.
//! 2. [`Demand::wait`] keeps a [`Waiter`], whose hook continues the request. The request stays with
//!    its owner, along with its memory charges.
//! 3. `Residency` admits it, lets it wait, or refuses it. The first waiter of a model causes its
//!    load. Further waiters share this load.
//! 4. A load thread orders the load from the manager and reports its result.
//! 5. `Residency` admits the waiters. Each hook gets the model's handle, which keeps the version in
//!    service until the request is queued.
//!
//! A wait ends early if the client disconnects ([`CancelToken`]), the deadline passes, or the
//! server stops. Each waiter is in one map, and the code that removes it calls its hook, so a hook
//! is called once.
//!
//! # Uses
//!
//! Requests that find their model are not counted here. The driver derives a model's uses from
//! counts that exist anyway ([`uses`]), before each decision that may evict a model, and tells
//! `Residency` the differences.
//!
//! # Sizes
//!
//! A model counts with the size of its files until a load has been measured. The watching thread
//! measures again while models serve ([`sizes`]).
//!
//! # Unloads
//!
//! An evicted model goes out of service at once, executes its requests, and is destroyed by the
//! reaper. Only then is its memory free ([`Demand::version_destroyed`]). If all models are in use,
//! `Residency` lets one drain: that model is taken out of service early, so that further requests
//! wait behind the demand instead of keeping the model busy. A model with live sequences stays in
//! service until they end.
//!
//! [`CancelToken`]: galatea_infer::CancelToken

mod journal;
mod load;
mod memory;
mod orders;
mod refusal;
mod report;
mod sizes;
mod state;
mod threads;
mod uses;
mod waiter;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use galatea_control::ResidencyChangeKind;
use galatea_infer::Status;
use galatea_policy::{
    ModelEstimate, ModelId, RequestKey, Residency, ResidencyAction, ResidencyEvent,
    ResidencyRequest, ResidencySettings, Time,
};
use galatea_stdx::{Condvar, Inbox, Lock};

pub use self::memory::{DemandOptions, GpuMemory, ProcessMemory};
pub use self::report::{GpuMemoryReading, ModelMemoryReading};
use self::state::{DemandState, Effect};
use self::threads::BlockingJob;
use self::waiter::Purpose;
pub(crate) use self::waiter::Waiter;
use crate::catalog::{LoadableModels, ModelOutline};
use crate::manager::Manager;
use crate::registry::Registry;

/// The maximum time for which a request without a deadline waits. Models that call each other may
/// wait for each other; this ends their wait.
const WAIT_MAX_NS: u64 = 15 * 60 * 1_000_000_000;
/// The maximum number of requests whose models are being looked up in the repositories.
const LOOKUPS_MAX: usize = 1024;

/// Loads models on demand. Dropping the last handle ends its threads.
pub(crate) struct Demand {
    manager: Arc<Manager>,
    registry: Arc<Registry>,
    catalog: Arc<dyn LoadableModels>,
    options: DemandOptions,
    epoch: Instant,
    state: Lock<DemandState>,
    /// Notified when the time of the next decision may have changed.
    changed: Condvar,
    /// Lookups of models that are not known yet.
    lookups: Arc<Inbox<BlockingJob>>,
    /// Unloads, in order: the models that need a model come before it.
    unloads: Arc<Inbox<BlockingJob>>,
}

impl Demand {
    /// Creates the driver, and starts its threads.
    ///
    /// # Errors
    ///
    /// `Internal` if a thread can't be started.
    pub(crate) fn start(
        options: DemandOptions,
        load_threads: usize,
        manager: Arc<Manager>,
        registry: Arc<Registry>,
        catalog: Arc<dyn LoadableModels>,
    ) -> Result<Arc<Self>, Status> {
        let settings = ResidencySettings {
            budget: options.budget(),
            concurrent_loads_max: load_threads.max(1),
            ..ResidencySettings::default()
        };
        let demand = Arc::new(Self {
            manager,
            registry,
            catalog,
            options,
            epoch: Instant::now(),
            state: Lock::new(DemandState::new(Residency::new(settings))),
            changed: Condvar::new(),
            lookups: Arc::default(),
            unloads: Arc::default(),
        });
        threads::start(&demand)?;
        Ok(demand)
    }

    /// Makes the models in the repositories known.
    pub(crate) fn discover(self: &Arc<Self>) {
        for listed in self.catalog.names() {
            if !listed.is_duplicate {
                self.look_up(&listed.name);
            }
        }
    }

    /// Looks up a model and the models that it needs in the repositories. Returns true if the model
    /// exists.
    fn look_up(self: &Arc<Self>, name: &str) -> bool {
        let mut pending = vec![name.to_owned()];
        let mut seen = BTreeSet::new();
        let mut exists = false;
        while let Some(next) = pending.pop() {
            if !seen.insert(next.clone()) {
                continue;
            }
            let Some(outline) = self.catalog.outline(&next) else { continue };
            exists |= next == name;
            pending.extend(outline.dependencies.iter().cloned());
            self.know(next.as_str().into(), &outline);
        }
        exists
    }

    /// Tells the decision a model's estimated cost and the models that it needs.
    fn know(self: &Arc<Self>, model: ModelId, outline: &ModelOutline) {
        let needed: Vec<ModelId> =
            outline.dependencies.iter().map(|name| name.as_str().into()).collect();
        let estimate = ModelEstimate {
            bytes: outline.memory(),
            load_ns: load::estimated_ns(outline.bytes),
            dependencies: needed.clone(),
        };
        let mut state = self.state.lock("learn of a model");
        state.dependencies.insert(model.clone(), needed);
        let effects = self.step_locked(&mut state, ResidencyEvent::Known(model, estimate));
        drop(state);
        self.perform(effects);
    }

    /// Lets a request wait for its model. Returns immediately.
    pub(crate) fn wait(self: &Arc<Self>, waiter: Waiter) {
        let mut state = self.state.lock("let a request wait");
        if state.is_closed {
            drop(state);
            return waiter.refuse(waiter::stopping());
        }
        if state.residency.state(&waiter.model).is_none() {
            let is_full = state.lookups >= LOOKUPS_MAX;
            state.lookups += usize::from(!is_full);
            drop(state);
            if is_full {
                return waiter.refuse(refusal::too_many_lookups());
            }
            // A closed inbox drops the waiter, whose hook then reports the stop.
            let _ = self.lookups.push_and_wake(BlockingJob::LookUp(Box::new(waiter)));
            return;
        }
        drop(state);
        self.submit(waiter);
    }

    /// Hands the wait for a known model to the decision.
    fn submit(self: &Arc<Self>, waiter: Waiter) {
        let (cancel, model) = (waiter.cancel.clone(), waiter.model.clone());
        let is_first = self.state.lock("look for other waiters").waiting_for(&model) == 0;
        if is_first {
            self.update_uses();
        }
        let mut state = self.state.lock("let a request wait");
        if state.is_closed {
            drop(state);
            return waiter.refuse(waiter::stopping());
        }
        if state.leaving.contains_key(&model) {
            let refused = state.park(waiter);
            drop(state);
            if let Some(waiter) = refused {
                waiter.refuse(refusal::too_many_behind(&model));
            }
            return;
        }
        let (purpose, origin) = (waiter.purpose, waiter.origin);
        let latest = self.now().saturating_add(WAIT_MAX_NS);
        let deadline = waiter.deadline.instant().map_or(latest, |at| self.time_of(at).min(latest));
        let key = state.insert(waiter);
        let event = match purpose {
            Purpose::Request => {
                let request = ResidencyRequest { key, model, deadline, origin };
                ResidencyEvent::Request(request)
            }
            Purpose::ClientLoad => {
                state.unloaded_by_client.remove(&model);
                ResidencyEvent::ClientLoad { key, model, origin }
            }
        };
        let effects = self.step_locked(&mut state, event);
        let is_waiting = state.is_waiting(key);
        drop(state);
        if is_waiting && is_first {
            self.changed.notify_all();
        }
        self.perform(effects);
        if is_waiting {
            let this = Arc::downgrade(self);
            cancel.on_cancel(move || {
                if let Some(demand) = this.upgrade() {
                    demand.cancel(key);
                }
            });
        }
    }

    fn cancel(self: &Arc<Self>, key: RequestKey) {
        let mut state = self.state.lock("cancel a wait");
        let Some(waiter) = state.remove(key) else { return };
        let effects = self.step_locked(&mut state, ResidencyEvent::Cancelled(key));
        drop(state);
        self.perform(effects);
        waiter.refuse(Status::cancelled("Request cancelled"));
    }

    /// Refuses the waiting requests and all later ones, and ends the threads.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock("close");
        state.is_closed = true;
        let waiters = state.take_waiters();
        drop(state);
        self.changed.notify_all();
        self.lookups.close();
        self.unloads.close();
        waiters.into_iter().for_each(|waiter| waiter.refuse(waiter::stopping()));
    }

    fn step(self: &Arc<Self>, event: ResidencyEvent) {
        let mut state = self.state.lock("step the residency");
        let effects = self.step_locked(&mut state, event);
        drop(state);
        self.perform(effects);
    }

    /// Steps the decision, and finds the models of admitted requests while they are certainly in
    /// service.
    fn step_locked(&self, state: &mut DemandState, event: ResidencyEvent) -> Vec<Effect> {
        let mut actions = Vec::new();
        state.residency.step(self.now(), event, &mut actions);
        self.effects(state, actions)
    }

    fn effects(&self, state: &mut DemandState, actions: Vec<ResidencyAction>) -> Vec<Effect> {
        actions.into_iter().filter_map(|action| self.effect(state, action)).collect()
    }

    fn effect(&self, state: &mut DemandState, action: ResidencyAction) -> Option<Effect> {
        match action {
            ResidencyAction::Wait { .. } => None,
            ResidencyAction::Admit(key) => {
                let waiter = state.remove(key)?;
                if waiter.purpose == Purpose::Request {
                    *state.uses.entry(waiter.model.clone()).or_default() += 1;
                }
                let snapshot = self.registry.snapshot();
                let found = snapshot.find(&waiter.name, waiter.version).cloned();
                Some(Effect::Continue(waiter, found))
            }
            ResidencyAction::Refuse(key, refusal) => {
                let waiter = state.remove(key)?;
                let status = self.refusal_status(state, &waiter, refusal);
                Some(Effect::Continue(waiter, Err(status)))
            }
            ResidencyAction::Load(model) => {
                state.counts.loads += 1;
                let (bytes, reason) = (state.bytes_of(&model), state.load_reason(&model));
                let kind = ResidencyChangeKind::LoadBegan;
                state.journal.add(self.now(), &model, kind, bytes, reason);
                let is_alone = state.begin_load(&model);
                let parameters = state.parameters.remove(&model).unwrap_or_default();
                Some(Effect::Load { model, parameters, is_alone })
            }
            ResidencyAction::Unload(model) => {
                state.counts.unloads += 1;
                let (bytes, reason) = (state.bytes_of(&model), state.unload_reason(&model));
                let kind = ResidencyChangeKind::UnloadBegan;
                state.journal.add(self.now(), &model, kind, bytes, &reason);
                state.disturb_loads();
                // A draining model has left already.
                let is_left = state.leaving.contains_key(&model);
                state.unloading.insert(model.clone());
                (!is_left).then_some(Effect::Unload(model))
            }
        }
    }

    /// Performs effects without the lock.
    fn perform(self: &Arc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Continue(waiter, result) => waiter.finish(result),
                Effect::Load { model, parameters, is_alone } => {
                    self.begin_load(model, parameters, is_alone);
                }
                Effect::Unload(model) => {
                    let _ = self.unloads.push_and_wake(BlockingJob::Unload(model));
                }
            }
        }
    }

    fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    fn time_of(&self, at: Instant) -> Time {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        Time(u64::try_from(since).unwrap_or(u64::MAX))
    }
}
