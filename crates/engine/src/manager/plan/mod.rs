//! The plan: the models that should serve, and the loads that bring them into service.
//!
//! The pure [`LifecyclePlanner`] takes the models that should serve, their revisions and their
//! reasons, and issues loads and unloads, one at a time per model. Startup, reload, poll, order and
//! failure are all handled the same way. The plan adds the models behind the lifecycle's names and
//! revisions, and the state of each load in progress. It is stepped by orders
//! ([`Plan::set_desired`], [`Plan::remove_desired`]) and by the results of effects
//! ([`Plan::handle`]), and puts the consequences into a [`StepEffects`]. The plan makes no external
//! calls.
//!
//! # Names
//!
//! Several repositories may contain models with the same name. In that case the plan identifies
//! models by ids, which consist of a namespace and a name. The meaning of a name in an ensemble is
//! part of the plan: when it changes, the ensemble becomes desired in another revision before the
//! model that the name referred to is removed.

mod desired;
mod loads;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_policy::{
    LifecycleAction, LifecycleEvent, LifecyclePlanner, LifecycleStatus, ModelId, ModelIdsByName,
    ModelRevision, ModificationTimes,
};

pub(super) use self::desired::UnusedModels;
use self::loads::ActiveLoad;
use super::ControlMode;
use super::defined_model::DefinedModel;
use super::effect::{Effect, StepEffects};
use crate::LoadFailure;
use crate::agent_lease::AgentLease;

/// The progress of an order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum OrderPhase {
    Begun,
    /// The models that the order loads have become desired.
    Loads,
}

/// The state guarded by the manager's lock. It identifies models by their ids.
pub(super) struct Plan {
    mode: ControlMode,
    lifecycle: LifecyclePlanner,
    /// The desired models by name; `None` without namespaces, where an id is a name.
    names: Option<ModelIdsByName>,
    models: BTreeMap<ModelId, PlannedModel>,
    loads: BTreeMap<ModelId, ActiveLoad>,
    revision_count: u64,
    /// The maximum number of attempts to load a version.
    attempts_max: u32,
    /// The models that an order is changing.
    ordered: BTreeMap<ModelId, OrderPhase>,
    /// The number of effects in progress, by model.
    effects: BTreeMap<ModelId, usize>,
    /// Set once loading has ended permanently.
    pub(super) is_closed: bool,
}

#[derive(Default)]
struct PlannedModel {
    /// The model that should serve. The revision changes with the model, and with the models that
    /// it needs.
    desired: Option<(ModelRevision, Arc<DefinedModel>)>,
    /// The ids of the models that the model needs, keyed by the names that it uses for them.
    dependencies: BTreeMap<String, ModelId>,
    serving: Option<Arc<DefinedModel>>,
    /// The failures of the last load.
    failures: Vec<LoadFailure>,
    logged: LoggedFailures,
    /// The failures, as a message for clients.
    error: Option<String>,
    /// True if the last load failed because the models that it needs don't fit together.
    is_misfit: bool,
    /// Set if an unload overtook the last load.
    is_overtaken: bool,
}

/// The last logged failures of a model that isn't serving. A poll does not log them again.
#[derive(Default)]
struct LoggedFailures {
    /// The state of the files at the last load.
    files: ModificationTimes,
    failures: Vec<LoadFailure>,
    /// The reason why the model can't be loaded yet.
    block: Option<String>,
}

impl Plan {
    pub(super) fn new(names: Option<ModelIdsByName>, attempts_max: u32, mode: ControlMode) -> Self {
        Self {
            mode,
            lifecycle: LifecyclePlanner::default(),
            names,
            models: BTreeMap::new(),
            loads: BTreeMap::new(),
            revision_count: 0,
            attempts_max,
            ordered: BTreeMap::new(),
            effects: BTreeMap::new(),
            is_closed: false,
        }
    }
}

/// The steps of the lifecycle.
impl Plan {
    fn step_lifecycle(&mut self, event: LifecycleEvent, step: &mut StepEffects) {
        let mut actions = Vec::new();
        self.lifecycle.step(event, &mut actions);
        for action in actions {
            match action {
                LifecycleAction::Load(id, revision) => self.begin_load(id, revision, step),
                LifecycleAction::Unload(id) => self.begin_unload(id, step),
                LifecycleAction::Block(id, reason) => {
                    let text = self.block_text(&id, &reason);
                    let planned = self.models.entry(id.clone()).or_default();
                    planned.error = Some(text.clone());
                    let logged = planned.logged.block.replace(text.clone());
                    if self.mode != ControlMode::Poll || logged.as_ref() != Some(&text) {
                        step.effects.push(Effect::ReportBlocked(id, text));
                    }
                }
            }
        }
        self.forget_absent_models();
    }

    fn begin_unload(&mut self, id: ModelId, step: &mut StepEffects) {
        // A load that is requested before the agents are notified must ask new agents.
        let planned = self.models.get(&id);
        let serving = planned.and_then(|planned| planned.serving.as_ref());
        serving.iter().for_each(|model| model.agents.expire());
        step.effects.push(Effect::AnnounceUnload(id));
    }

    /// Forgets models without remaining state, and unused definitions that may own files.
    fn forget_absent_models(&mut self) {
        let lifecycle = &self.lifecycle;
        self.models.retain(|id, planned| {
            let is_loading = lifecycle.is_loading(id);
            if lifecycle.serving_revision(id).is_none() && !is_loading {
                planned.serving = None;
            }
            is_loading || lifecycle.status(id) != LifecycleStatus::Absent
        });
    }
}

/// Queries about models.
impl Plan {
    /// The models that a name in an order refers to.
    pub(super) fn ids_of(&self, name: &str) -> Vec<ModelId> {
        match &self.names {
            Some(names) => names.ids_of(name).cloned().collect(),
            None => vec![name.into()],
        }
    }

    pub(super) fn status(&self, id: &str) -> LifecycleStatus {
        self.lifecycle.status(id)
    }

    pub(super) fn desired(&self) -> impl Iterator<Item = &ModelId> {
        self.lifecycle.desired()
    }

    pub(super) fn is_desired(&self, id: &str) -> bool {
        self.lifecycle.desired().any(|desired| **desired == *id)
    }

    /// Returns true if a revision of the model is serving.
    #[cfg(test)]
    pub(super) fn is_serving(&self, id: &str) -> bool {
        self.lifecycle.serving_revision(id).is_some()
    }

    #[cfg(test)]
    pub(super) fn is_loading(&self, id: &str) -> bool {
        self.lifecycle.is_loading(id)
    }

    /// Returns true if neither the model nor any model that needs it is being loaded or unloaded,
    /// and no order to load a model that needs it is pending. As in Triton, a model's unload waits
    /// for an ensemble load that has begun.
    pub(super) fn is_at_rest(&self, id: &str) -> bool {
        let (mut dependents, mut unvisited) = (BTreeSet::new(), vec![id]);
        while let Some(id) = unvisited.pop() {
            let direct = self.lifecycle.dependents_of(id).map(|name| &**name);
            unvisited.extend(direct.filter(|name| dependents.insert(*name)));
        }
        let loads = self.ordered.iter().filter(|(_, phase)| **phase == OrderPhase::Loads);
        let mut loaded = loads.flat_map(|(name, _)| self.ids_of(name));
        self.lifecycle.is_settled_with_related(id) && !loaded.any(|id| dependents.contains(&*id))
    }

    /// Returns true if a removed model is out of service, along with the models that need it. If it
    /// is desired again, only its earlier versions have to be out of service.
    pub(super) fn is_out_of_service(&self, id: &str) -> bool {
        if self.is_desired(id) {
            return !self.lifecycle.is_unloading(id);
        }
        self.is_settled_with_related(id)
    }

    /// Returns true if no work is left for the model, the models that it needs, and the models that
    /// need it.
    pub(super) fn is_settled_with_related(&self, id: &str) -> bool {
        let is_idle = |id: &ModelId| !self.effects.contains_key(id);
        self.lifecycle.is_settled_with_related(id)
            && self.lifecycle.related_to(id).iter().all(is_idle)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.effects.is_empty() && self.lifecycle.is_settled()
    }

    /// The reason why a model, or its desired revision, is not serving.
    pub(super) fn error(&self, id: &str) -> Option<&str> {
        self.models.get(id)?.error.as_deref()
    }

    /// Returns true if an unload overtook the last load of a model.
    pub(super) fn is_overtaken(&self, id: &str) -> bool {
        self.models.get(id).is_some_and(|planned| planned.is_overtaken)
    }

    /// All failures of the last loads of all models.
    pub(super) fn failures(&self) -> Vec<LoadFailure> {
        self.models.values().flat_map(|planned| planned.failures.clone()).collect()
    }

    /// Takes the leases of repository agents whose models have not been loaded yet.
    pub(super) fn take_unclaimed_leases(&self) -> Vec<Arc<AgentLease>> {
        let desired = self.models.values().filter_map(|planned| planned.desired.as_ref());
        desired.filter_map(|(_, model)| model.agents.take_unclaimed()).collect()
    }

    /// Stops the loads in progress for a name, unless a model that needs it has begun to load, in
    /// which case the unload must come after that load. Returns the ids of the stopped loads.
    pub(super) fn stop_independent_loads(&self, name: &str) -> Vec<ModelId> {
        let mut ids = self.ids_of(name);
        ids.retain(|id| {
            let active = self.loads.get(id);
            let is_needed = self.lifecycle.dependents_of(id).next().is_some();
            active.filter(|_| !is_needed).inspect(|active| active.stop()).is_some()
        });
        ids
    }

    /// Ends the warmup of all loads in progress.
    pub(super) fn stop_all_loads(&self) {
        self.loads.values().for_each(ActiveLoad::stop);
    }

    /// Begins an order for a model. No other order for it may be in progress.
    pub(super) fn begin_order(&mut self, name: &ModelId) {
        let other = self.ordered.insert(name.clone(), OrderPhase::Begun);
        assert!(other.is_none(), "another order is changing '{name}'");
    }

    /// Records that the order for this name, if any, has made its models desired.
    pub(super) fn note_ordered_load(&mut self, name: &str) {
        self.ordered.entry(name.into()).and_modify(|phase| *phase = OrderPhase::Loads);
    }

    pub(super) fn is_ordered(&self, name: &str) -> bool {
        self.ordered.contains_key(name)
    }

    pub(super) fn end_order(&mut self, name: &str) {
        self.ordered.remove(name);
    }

    /// Begins an effect for a model.
    pub(super) fn begin_effect(&mut self, id: &ModelId) {
        *self.effects.entry(id.clone()).or_default() += 1;
    }

    /// Ends an effect for a model.
    pub(super) fn end_effect(&mut self, id: &ModelId) {
        if let Some(count) = self.effects.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                self.effects.remove(id);
            }
        }
    }
}
