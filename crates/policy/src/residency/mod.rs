//! The models that are in memory: which are loaded when a request needs them, which are unloaded
//! when the memory is full, and which requests wait or are refused.
//!
//! A *demand* is a model that is needed and isn't resident, with the requests that wait for it. The
//! demands form a queue. A demand takes its memory as a whole: the model and its dependencies are
//! either all reserved, or none of them. A demand that has its memory only waits for loads, which
//! end, so demands never wait for each other in a circle. A younger demand may pass over an older
//! one only with memory that the older one doesn't need.
//!
//! - A model that is in use, or that a client has loaded explicitly, isn't unloaded. If all others
//!   have been unloaded and the memory isn't sufficient, the least valuable model in use drains:
//!   further requests wait behind the demand, and the model is unloaded when it is idle.
//! - A model that was loaded stays for a multiple of its load time
//!   ([`ResidencySettings::stay_factor`]) while other models can be unloaded or it is in use.
//! - A request that can't wait is refused with the predicted time at which it would be admitted.
//!   Its model is loaded all the same, and stays until then, so the prediction comes true.
//! - Explicit loads and unloads by clients take precedence.
//!
//! The driver reports each end of a load or unload, and each end of a use. Memory is counted by
//! estimate until a model has been loaded for the first time, and as measured from then on.
//!
//! # Bounds
//!
//! [`ResidencySettings::waiting_per_model_max`] and [`ResidencySettings::waiting_max`] bound the
//! waiting requests. There is at most one demand per model. A request to a resident model costs
//! O(log n) in known models; a change of a demand costs O(models + demands).
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let settings = ResidencySettings { budget: MemoryBudget::host(100), ..ResidencySettings::default() };
//! let mut residency = Residency::new(settings);
//! let mut actions = Vec::new();
//! let estimate = ModelEstimate { bytes: MemoryByPool::host(60), load_ns: 1_000, dependencies: Vec::new() };
//! residency.step(Time(0), ResidencyEvent::Known("net".into(), estimate), &mut actions);
//! let request = ResidencyRequest { key: RequestKey(1), model: "net".into(), deadline: Time::MAX, origin: RequestOrigin::Client };
//! residency.step(Time(0), ResidencyEvent::Request(request), &mut actions);
//! assert_eq!(actions[0], ResidencyAction::Load("net".into()));
//! assert!(matches!(actions[1], ResidencyAction::Wait { key: RequestKey(1), .. }));
//! actions.clear();
//! let measured = LoadMeasurement { bytes: MemoryByPool::host(64), load_ns: 900 };
//! residency.step(Time(900), ResidencyEvent::Loaded("net".into(), measured), &mut actions);
//! assert_eq!(actions, [ResidencyAction::Admit(RequestKey(1))]);
//! ```

mod demand;
mod event;
mod eviction;
mod model;
mod order;
mod plan;
mod pools;
mod prediction;
mod requests;
#[cfg(test)]
mod tests;
mod worth;

use std::collections::{BTreeMap, BTreeSet};

pub use event::{
    LoadMeasurement, ModelEstimate, RefusalReason, RequestOrigin, ResidencyAction, ResidencyEvent,
    ResidencyRefusal, ResidencyRequest, ResidencySettings, ResidencyState, ResidencyStatus,
};
pub use pools::{MemoryBudget, MemoryByPool, MemoryPoolId};

use crate::ids::RequestKey;
use crate::lifecycle::ModelId;
use crate::time::Time;
use demand::{Demand, Waiter};
use model::{ManagedModel, ModelIndex};
use order::DemandOrder;
use worth::Experts;

/// The models in memory and the requests that wait for them.
#[derive(Clone, Debug)]
pub struct Residency {
    settings: ResidencySettings,
    models: Vec<ManagedModel>,
    /// The indices of models that were deleted.
    free: Vec<ModelIndex>,
    by_name: BTreeMap<ModelId, ModelIndex>,
    /// The counted memory of all models.
    used: MemoryByPool,
    experts: Experts,
    demands: BTreeMap<DemandOrder, Demand>,
    next_order: u64,
    waiters: BTreeMap<RequestKey, Waiter>,
    deadlines: BTreeSet<(Time, RequestKey)>,
    /// The time at which a model may be evicted for which a demand waits.
    eviction_at: Option<Time>,
    /// True if the predicted times of the demands are out of date.
    is_prediction_stale: bool,
    /// The longest recent duration of an unload, and of a use.
    unload_ns: u64,
    use_ns: u64,
}

impl Residency {
    /// Creates a value without models.
    #[must_use]
    pub fn new(settings: ResidencySettings) -> Self {
        Self {
            settings,
            models: Vec::new(),
            free: Vec::new(),
            by_name: BTreeMap::new(),
            used: MemoryByPool::default(),
            experts: Experts::default(),
            demands: BTreeMap::new(),
            next_order: 0,
            waiters: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            eviction_at: None,
            is_prediction_stale: false,
            unload_ns: 0,
            use_ns: 0,
        }
    }

    /// Processes an event and pushes the resulting actions.
    ///
    /// # Panics
    ///
    /// Panics if the driver reports the end of a load, an unload or a use that hasn't begun.
    pub fn step(&mut self, now: Time, event: ResidencyEvent, out: &mut Vec<ResidencyAction>) {
        self.refuse_expired(now, out);
        match event {
            ResidencyEvent::Known(name, estimate) => self.known(name, estimate, out),
            ResidencyEvent::Forgotten(name) => self.forgotten(&name, out),
            ResidencyEvent::Request(request) => return self.request(now, request, out),
            ResidencyEvent::Cancelled(key) => self.cancelled(key),
            ResidencyEvent::Used(name, uses) => return self.used_meanwhile(now, &name, uses),
            ResidencyEvent::Held(name) => return self.held(&name),
            ResidencyEvent::Released(name) => self.released(now, &name),
            ResidencyEvent::ClientLoad { key, model, origin } => {
                return self.client_load(now, key, model, origin, out);
            }
            ResidencyEvent::ClientUnload(name) => self.client_unload(&name, out),
            ResidencyEvent::Loaded(name, measured) => self.loaded(now, &name, &measured),
            ResidencyEvent::LoadFailed(name) => self.load_failed(now, &name, out),
            ResidencyEvent::Unloaded(name) => self.unloaded(now, &name),
            ResidencyEvent::Measured(name, bytes) => self.measured(&name, bytes),
            ResidencyEvent::Budget(budget) => self.set_budget(budget),
            ResidencyEvent::Tick => {}
        }
        self.plan(now, out);
    }

    /// Returns the time at which `Tick` is due.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(time, _)| *time);
        deadline.into_iter().chain(self.eviction_at).min()
    }

    /// Returns the state of a model, if it is known.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<ResidencyState> {
        self.index(name).map(|index| self.models[index].state)
    }

    /// Returns the status of all known models, by name.
    pub fn status(&self) -> impl Iterator<Item = ResidencyStatus> + '_ {
        self.by_name.values().map(|index| self.status_of(*index))
    }

    /// Returns the memory of all models that are resident, being loaded or being unloaded.
    #[must_use]
    pub fn used(&self) -> &MemoryByPool {
        &self.used
    }

    /// Returns the limits.
    #[must_use]
    pub fn settings(&self) -> &ResidencySettings {
        &self.settings
    }

    /// Returns the number of requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    fn status_of(&self, index: ModelIndex) -> ResidencyStatus {
        let model = &self.models[index];
        let demand = model.demand.and_then(|order| self.demands.get(&order));
        ResidencyStatus {
            model: model.name.clone(),
            state: model.state,
            bytes: model.bytes.clone(),
            is_measured: model.is_measured,
            load_ns: model.load.expected_ns(),
            uses: model.uses,
            waiting: demand.map_or(0, |demand| demand.waiters.len()),
            is_pinned: model.is_pinned,
            is_unloaded_by_client: model.is_blocked,
            ready_at: demand.map(|demand| demand.ready_at),
            worth: self.experts.worth(&model.worth),
        }
    }

    fn index(&self, name: &str) -> Option<ModelIndex> {
        self.by_name.get(name).copied()
    }

    fn set_budget(&mut self, budget: MemoryBudget) {
        self.settings.budget = budget;
        (0..self.models.len()).for_each(|index| self.set_cost(index));
    }

    /// Tells the experts the bytes and the load time of a model.
    fn set_cost(&mut self, index: ModelIndex) {
        let model = &mut self.models[index];
        let load_ns = model.load.expected_ns();
        let budget = &self.settings.budget;
        self.experts.set_cost(&mut model.worth, &model.bytes, load_ns, budget);
    }

    /// Counts `bytes` in place of the memory that is counted for a model.
    fn count(&mut self, index: ModelIndex, bytes: MemoryByPool) {
        let model = &mut self.models[index];
        self.used.subtract(&model.counted);
        self.used.add(&bytes);
        model.counted = bytes;
    }
}
