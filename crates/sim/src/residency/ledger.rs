//! The facts about models and requests that are visible from outside.

use std::collections::{BTreeMap, BTreeSet};

use galatea_policy::{
    LoadMeasurement, MemoryByPool, MemoryPoolId, ModelId, RequestKey, RequestOrigin,
    ResidencySettings, Time,
};

pub(crate) const POOLS: [MemoryPoolId; 2] = [MemoryPoolId::HOST, MemoryPoolId::gpu(0)];

/// The place of a model, as far as the actions tell.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ModelPlace {
    Absent,
    Loading,
    Resident,
    Unloading,
}

/// A model.
#[derive(Clone, Debug)]
pub(crate) struct LedgerModel {
    pub(crate) name: ModelId,
    pub(crate) place: ModelPlace,
    /// The bytes that are known: measured, or else estimated.
    pub(crate) bytes: MemoryByPool,
    pub(crate) is_measured: bool,
    /// The costs of the next load.
    pub(crate) truth: LoadMeasurement,
    pub(crate) dependencies: Vec<usize>,
    pub(crate) is_known: bool,
    pub(crate) is_pinned: bool,
    pub(crate) is_blocked: bool,
    pub(crate) uses: u64,
    pub(crate) loaded_at: Time,
    pub(crate) load_ns: u64,
    pub(crate) idle_since: Time,
    /// True if the model was ever promised, so that it may stay longer than is visible.
    pub(crate) was_promised: bool,
    pub(crate) failures: u32,
    pub(crate) retry_at: Time,
}

/// A request that waits.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LedgerWaiter {
    pub(crate) model: usize,
    pub(crate) deadline: Time,
    /// The origin, or `None` if a client loads the model.
    pub(crate) origin: Option<RequestOrigin>,
    /// The number of the step in which the request came.
    pub(crate) since: u64,
}

/// The models and requests.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) settings: ResidencySettings,
    pub(crate) models: Vec<LedgerModel>,
    pub(crate) waiters: BTreeMap<RequestKey, LedgerWaiter>,
    /// Targets that are loaded because a refused client was told to come back.
    pub(crate) promised: BTreeMap<usize, Time>,
    /// The models that drained before the present step.
    pub(crate) draining: Vec<usize>,
    /// Targets of demands that don't respect stays.
    pub(crate) urgent: BTreeSet<usize>,
    /// The requests that waited before the present step, with the one that came in it.
    pub(crate) waiters_before: BTreeMap<RequestKey, LedgerWaiter>,
}

impl Ledger {
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| &*model.name == name)
    }

    /// Returns a model and all its dependencies.
    pub(crate) fn closure(&self, model: usize) -> Vec<usize> {
        let mut closure = vec![model];
        let mut next = 0;
        while let Some(model) = closure.get(next).copied() {
            next += 1;
            for dependency in &self.models[model].dependencies {
                if !closure.contains(dependency) {
                    closure.push(*dependency);
                }
            }
        }
        closure
    }

    /// Returns the models that requests wait for, or that clients were promised.
    pub(crate) fn wanted(&self) -> Vec<usize> {
        let waiting = self.waiters.values().map(|waiter| waiter.model);
        let mut wanted: Vec<usize> = waiting.chain(self.promised.keys().copied()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Returns true if a request that is executed, or a sequence, needs the model.
    pub(crate) fn is_in_use(&self, model: usize) -> bool {
        let uses = |user: &usize| self.models[*user].uses > 0;
        (0..self.models.len()).filter(uses).any(|user| self.closure(user).contains(&model))
    }

    /// Returns true if a client has loaded the model, or one that depends on it.
    pub(crate) fn is_pinned(&self, model: usize) -> bool {
        let pins = |other: &usize| self.models[*other].is_pinned;
        (0..self.models.len()).filter(pins).any(|other| self.closure(other).contains(&model))
    }

    /// Returns the known bytes of some models in a pool.
    pub(crate) fn bytes(&self, models: &[usize], pool: MemoryPoolId) -> u64 {
        models.iter().map(|model| self.models[*model].bytes.of(pool)).sum()
    }

    /// Returns the models in these places.
    pub(crate) fn at(&self, places: &[ModelPlace]) -> Vec<usize> {
        let is_there = |model: &usize| places.contains(&self.models[*model].place);
        (0..self.models.len()).filter(is_there).collect()
    }

    pub(crate) fn in_memory(&self) -> Vec<usize> {
        self.at(&[ModelPlace::Loading, ModelPlace::Resident, ModelPlace::Unloading])
    }

    pub(crate) fn limit(&self, pool: MemoryPoolId) -> u64 {
        self.settings.budget.limit(pool).unwrap_or(u64::MAX)
    }

    /// Returns true if bytes of these models exceed the budget in a pool in which the model has
    /// bytes.
    pub(crate) fn exceeds(&self, models: &[usize], model: usize) -> bool {
        let exceeds = |pool: &MemoryPoolId| {
            self.models[model].bytes.of(*pool) > 0 && self.bytes(models, *pool) > self.limit(*pool)
        };
        POOLS.iter().any(exceeds)
    }

    /// Returns the time until which a loaded model stays.
    pub(crate) fn stay_until(&self, model: usize) -> Time {
        let model = &self.models[model];
        let factor = self.settings.stay_factor as u64;
        model.loaded_at.saturating_add(model.load_ns.saturating_mul(factor))
    }
}
