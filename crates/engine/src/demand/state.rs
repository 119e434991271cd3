//! The state that the driver's lock guards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_control::LoadParameters;
use galatea_infer::Status;
use galatea_policy::{
    MemoryPoolId, ModelId, RequestKey, Residency, ResidencyState, ResidencyStatus,
};

use super::journal::Journal;
use super::report::RefusalLabel;
use super::sizes::ModelSizes;
use super::waiter::{Purpose, Waiter};
use crate::handle::ModelHandle;

/// The consequences of a step, performed without the lock.
pub(super) enum Effect {
    /// Continue a request, or refuse it.
    Continue(Waiter, Result<Arc<ModelHandle>, Status>),
    /// Load a model on a thread of its own.
    Load { model: ModelId, parameters: LoadParameters, is_alone: bool },
    /// Take a model out of service, behind earlier unloads.
    Unload(ModelId),
}

/// The counts since the server's start.
#[derive(Clone, Debug, Default)]
pub(super) struct DemandCounts {
    pub(super) loads: u64,
    pub(super) failed_loads: u64,
    pub(super) unloads: u64,
    pub(super) refusals: BTreeMap<RefusalLabel, u64>,
}

/// The decision, and everything that its keys identify.
pub(super) struct DemandState {
    pub(super) residency: Residency,
    waiters: BTreeMap<RequestKey, Waiter>,
    next_key: u64,
    /// The number of requests whose models are being looked up.
    pub(super) lookups: usize,
    /// The models that each known model needs.
    pub(super) dependencies: BTreeMap<ModelId, Vec<ModelId>>,
    /// The uses that the decision knows of, by model.
    pub(super) uses: BTreeMap<ModelId, u64>,
    /// The numbers of requests that had ended at the last reading, by model.
    pub(super) finished: BTreeMap<ModelId, u64>,
    /// The models that clients have unloaded explicitly.
    pub(super) unloaded_by_client: BTreeSet<ModelId>,
    /// The parameters of explicit loads that haven't begun.
    pub(super) parameters: BTreeMap<ModelId, LoadParameters>,
    /// The errors of the last loads that failed.
    pub(super) errors: BTreeMap<ModelId, Status>,
    /// The loads in progress. The value is true if no other load or unload has run beside it, so
    /// that the growth of the process's memory is the model's.
    loads: BTreeMap<ModelId, bool>,
    /// The number of times that a load or an unload began or ended.
    pub(super) changes: u64,
    pub(super) sizes: ModelSizes,
    pub(super) journal: Journal,
    /// The models that are being unloaded.
    pub(super) unloading: BTreeSet<ModelId>,
    /// The models whose unload has left the manager. Their memory is free once they are destroyed.
    pub(super) withdrawn: BTreeSet<ModelId>,
    /// The draining models that were taken out of service early, with the requests that wait until
    /// they are gone.
    pub(super) leaving: BTreeMap<ModelId, Vec<Waiter>>,
    pub(super) counts: DemandCounts,
    /// Set once, when the server stops.
    pub(super) is_closed: bool,
}

impl DemandState {
    pub(super) fn new(residency: Residency) -> Self {
        Self {
            residency,
            waiters: BTreeMap::new(),
            next_key: 0,
            lookups: 0,
            dependencies: BTreeMap::new(),
            uses: BTreeMap::new(),
            finished: BTreeMap::new(),
            unloaded_by_client: BTreeSet::new(),
            parameters: BTreeMap::new(),
            errors: BTreeMap::new(),
            loads: BTreeMap::new(),
            changes: 0,
            sizes: ModelSizes::default(),
            journal: Journal::default(),
            unloading: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            leaving: BTreeMap::new(),
            counts: DemandCounts::default(),
            is_closed: false,
        }
    }

    /// A key that no request has had.
    pub(super) fn new_key(&mut self) -> RequestKey {
        let key = RequestKey(self.next_key);
        self.next_key += 1;
        key
    }

    /// Adds a waiter under a new key.
    pub(super) fn insert(&mut self, waiter: Waiter) -> RequestKey {
        let key = self.new_key();
        self.waiters.insert(key, waiter);
        key
    }

    /// Removes a waiter. Its remover must call its hook.
    pub(super) fn remove(&mut self, key: RequestKey) -> Option<Waiter> {
        self.waiters.remove(&key)
    }

    pub(super) fn is_waiting(&self, key: RequestKey) -> bool {
        self.waiters.contains_key(&key)
    }

    /// The number of requests that wait for a model.
    pub(super) fn waiting_for(&self, model: &str) -> usize {
        self.waiters.values().filter(|waiter| *waiter.model == *model).count()
    }

    /// The purposes of the waits for a model.
    fn purposes_of(&self, model: &str) -> impl Iterator<Item = Purpose> {
        let waiters = self.waiters.values().filter(move |waiter| *waiter.model == *model);
        waiters.map(|waiter| waiter.purpose)
    }

    /// The models that requests and clients wait for.
    fn waiting_models(&self) -> impl Iterator<Item = &ModelId> {
        self.waiters.values().map(|waiter| &waiter.model)
    }

    /// The bytes that count for a model.
    pub(super) fn bytes_of(&self, model: &str) -> u64 {
        let mut all = self.residency.status();
        let status = all.find(|status| *status.model == *model);
        status.map_or(0, |status| status.bytes.of(MemoryPoolId::HOST))
    }

    /// The reason for a load.
    pub(super) fn load_reason(&self, model: &str) -> &'static str {
        let mut purposes = self.purposes_of(model).peekable();
        if purposes.peek().is_none() {
            return "another model needs it";
        }
        if purposes.any(|purpose| purpose == Purpose::ClientLoad) {
            "a client loads it"
        } else {
            "a request needs it"
        }
    }

    /// The reason for an unload.
    pub(super) fn unload_reason(&self, model: &str) -> String {
        if self.unloaded_by_client.contains(model) {
            return String::from("a client unloaded it");
        }
        let waits = |name: &&ModelId| self.residency.state(name) == Some(ResidencyState::Absent);
        match self.waiting_models().find(waits) {
            Some(name) => format!("makes room for '{name}'"),
            None => String::from("the models take more than the limit"),
        }
    }

    /// The number of waiting requests.
    pub(super) fn waiting(&self) -> usize {
        self.waiters.len() + self.leaving.values().map(Vec::len).sum::<usize>()
    }

    /// Removes all waiters.
    pub(super) fn take_waiters(&mut self) -> Vec<Waiter> {
        let parked = std::mem::take(&mut self.leaving).into_values().flatten();
        std::mem::take(&mut self.waiters).into_values().chain(parked).collect()
    }

    /// Lets a request wait until its model, which is out of service, is gone. Returns the request
    /// if too many wait already.
    pub(super) fn park(&mut self, waiter: Waiter) -> Option<Waiter> {
        let (all, settings) = (self.waiting(), self.residency.settings());
        let (of_model, of_all) = (settings.waiting_per_model_max, settings.waiting_max);
        let parked = self.leaving.entry(waiter.model.clone()).or_default();
        if parked.len() >= of_model || all >= of_all {
            return Some(waiter);
        }
        parked.push(waiter);
        None
    }

    /// The models whose unloads are in progress.
    pub(super) fn unloads_in_progress(&self) -> BTreeSet<ModelId> {
        self.unloading.iter().chain(self.leaving.keys()).cloned().collect()
    }

    /// Returns the draining models that must leave service now, behind the models that need them.
    pub(super) fn take_draining(&mut self, with_sequences: &BTreeSet<ModelId>) -> Vec<ModelId> {
        let is_draining = |status: &ResidencyStatus| status.state == ResidencyState::Draining;
        let draining = self.residency.status().filter(is_draining).map(|status| status.model);
        let mut leaving = Vec::new();
        for model in draining.collect::<Vec<_>>() {
            let closure = self.dependents_first(&model);
            if closure.iter().any(|one| with_sequences.contains(one)) {
                continue;
            }
            for one in closure {
                if !self.leaving.contains_key(&one) && !self.unloading.contains(&one) {
                    self.leaving.insert(one.clone(), Vec::new());
                    leaving.push(one);
                }
            }
        }
        leaving
    }

    /// A model behind the resident models that need it, directly or indirectly.
    fn dependents_first(&self, model: &ModelId) -> Vec<ModelId> {
        let mut found = vec![model.clone()];
        let mut next = 0;
        while let Some(one) = found.get(next).cloned() {
            for (dependent, needed) in &self.dependencies {
                let is_resident = matches!(
                    self.residency.state(dependent),
                    Some(ResidencyState::Resident | ResidencyState::Draining)
                );
                if is_resident && needed.contains(&one) && !found.contains(dependent) {
                    found.push(dependent.clone());
                }
            }
            next += 1;
        }
        found.reverse();
        found
    }

    /// Counts a load that begins. Returns true if no other load or unload is in progress.
    pub(super) fn begin_load(&mut self, model: &ModelId) -> bool {
        let is_alone = self.loads.is_empty() && self.unloading.is_empty();
        self.disturb_loads();
        self.loads.insert(model.clone(), is_alone);
        is_alone
    }

    /// Notes that the memory of the loads in progress can't be measured.
    pub(super) fn disturb_loads(&mut self) {
        self.note_change();
        self.loads.values_mut().for_each(|is_alone| *is_alone = false);
    }

    /// Ends a load. Returns true if no other load or unload has run beside it.
    pub(super) fn end_load(&mut self, model: &ModelId) -> bool {
        self.note_change();
        self.loads.remove(model).unwrap_or(false)
    }

    /// Notes that the memory changes for another reason than requests.
    pub(super) fn note_change(&mut self) {
        self.changes += 1;
        self.sizes.interrupt();
    }

    /// Returns true if no load and no unload is in progress.
    pub(super) fn is_quiet(&self) -> bool {
        self.loads.is_empty() && self.unloading.is_empty() && self.leaving.is_empty()
    }
}
