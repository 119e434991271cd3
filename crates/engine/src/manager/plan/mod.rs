//! The plan: which models shall serve, and the loads that bring them into service.
//!
//! Which models shall serve, in which revision and for which reason goes into the pure
//! [`Lifecycle`]; out of it come loads and unloads, one at a time per model. Start, reload,
//! poll, order and failure are one case. The plan adds what the names and revisions of the
//! lifecycle stand for, and the state of each load under way. It is stepped by orders
//! ([`Plan::set_desired`], [`Plan::remove_desired`]) and by the results of effects
//! ([`Plan::handle`]), and puts what follows into a [`Step`]. It calls nothing.
//!
//! # Names
//!
//! Where repositories may hold models of the same name, the plan knows models by ids of
//! namespace and name. The meaning of a name in an ensemble is part of the plan: when it
//! changes, the ensemble is desired in another revision, before the model that the name
//! meant goes.

mod loads;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_policy::{
    DesiredModel, Lifecycle, LifecycleAction, LifecycleEvent, LifecycleStatus, LoadReason,
    ModelName, ModelNames, Revision,
};

use self::loads::ActiveLoad;
use super::candidate::{Candidate, CandidateContent};
use super::defined_model::DefinedModel;
use super::effect::{Effect, Step};
use crate::LoadFailure;
use crate::agent_lease::AgentLease;
use crate::catalog::{CatalogModel, LoadOverride};
use crate::registry::RegistryChange;

/// What the manager's lock guards. Models are known here by their ids.
pub(super) struct Plan {
    lifecycle: Lifecycle,
    /// The desired models by name; only with namespaces, without which an id is a name.
    names: Option<ModelNames>,
    models: BTreeMap<ModelName, PlannedModel>,
    loads: BTreeMap<ModelName, ActiveLoad>,
    revision_count: u64,
    /// The number of times that a version is tried.
    attempts_max: u32,
    /// Models that an order is changing.
    ordered: BTreeSet<ModelName>,
    /// The number of effects that are being performed, by model.
    effects: BTreeMap<ModelName, usize>,
    /// Set once: nothing is loaded any more.
    pub(super) is_closed: bool,
}

/// Models that only a removed model needed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum UnusedModels {
    Keep,
    Remove,
}

#[derive(Default)]
struct PlannedModel {
    /// What shall serve. The revision changes with the model, and with the models that it
    /// needs.
    desired: Option<(Revision, Arc<DefinedModel>)>,
    /// The ids of the models that it needs, by the names that it has for them.
    dependencies: BTreeMap<String, ModelName>,
    serving: Option<Arc<DefinedModel>>,
    /// What failed in the last load.
    failures: Vec<LoadFailure>,
    /// The same as a text for clients.
    error: Option<String>,
}

/// The ids of the models that a model needs, by name.
fn resolve_dependencies(
    model: &DefinedModel,
    names: Option<&ModelNames>,
) -> BTreeMap<String, ModelName> {
    let namespace = model.definition.namespace.as_deref().unwrap_or_default();
    let resolve = |name: &str| match names {
        Some(names) => names.resolve(namespace, name),
        None => name.into(),
    };
    model.dependency_names().map(|name| (name.clone(), resolve(&name))).collect()
}

/// Orders.
impl Plan {
    pub(super) fn new(names: Option<ModelNames>, attempts_max: u32) -> Self {
        Self {
            lifecycle: Lifecycle::default(),
            names,
            models: BTreeMap::new(),
            loads: BTreeMap::new(),
            revision_count: 0,
            attempts_max,
            ordered: BTreeSet::new(),
            effects: BTreeMap::new(),
            is_closed: false,
        }
    }

    /// The names of the models that a model needs, if defining and loading it again for
    /// this reason would change nothing.
    pub(super) fn current_dependencies(
        &self,
        id: &str,
        found: &CatalogModel,
        reason: LoadReason,
    ) -> Option<BTreeSet<String>> {
        let planned = self.models.get(id)?;
        let (_, model) = planned.desired.as_ref()?;
        let is_kept = match model.overrides {
            LoadOverride::None => true,
            // As in Triton, only an order for the model itself reverts an override.
            LoadOverride::Configuration => reason == LoadReason::Dependency,
            LoadOverride::Files => false,
        };
        let is_current = is_kept
            && model.is_current(found)
            && self.lifecycle.status(id) != LifecycleStatus::Failed;
        is_current.then(|| planned.dependencies.keys().cloned().collect())
    }

    /// Makes candidates desired: all of them or, if the plan has changed since one was
    /// looked up, none. Then they are given back.
    pub(super) fn set_desired(
        &mut self,
        candidates: Vec<Candidate>,
        step: &mut Step,
    ) -> Result<(), Vec<Candidate>> {
        if self.is_closed {
            return Ok(());
        }
        if candidates.iter().any(|candidate| self.is_outdated(candidate)) {
            return Err(candidates);
        }
        self.insert_names(candidates.iter().map(|candidate| candidate.id.clone()));
        self.insert_dependencies_first(candidates, step);
        self.resolve_names(step);
        step.keep_last_block_reasons();
        Ok(())
    }

    fn is_outdated(&self, candidate: &Candidate) -> bool {
        let Candidate { id, reason, content, .. } = candidate;
        match content {
            CandidateContent::Unchanged(found) => {
                self.current_dependencies(id, found, *reason).is_none()
            }
            CandidateContent::Defined(_) => false,
        }
    }

    /// What others need becomes desired first, so that it is never reported as missing.
    fn insert_dependencies_first(&mut self, mut candidates: Vec<Candidate>, step: &mut Step) {
        while !candidates.is_empty() {
            let names: BTreeSet<String> = candidates.iter().map(|one| one.name.clone()).collect();
            let is_next = |candidate: &Candidate| {
                let mut needed = candidate.dependencies.iter();
                needed.all(|name| *name == candidate.name || !names.contains(name))
            };
            let (mut next, mut rest): (Vec<Candidate>, Vec<Candidate>) =
                candidates.into_iter().partition(is_next);
            // Models that need each other in a cycle. The lifecycle reports that.
            if next.is_empty() {
                std::mem::swap(&mut next, &mut rest);
            }
            next.into_iter().for_each(|candidate| self.insert(candidate, step));
            candidates = rest;
        }
    }

    fn insert(&mut self, candidate: Candidate, step: &mut Step) {
        let planned = self.models.entry(candidate.id.clone()).or_default();
        if let CandidateContent::Defined(model) = candidate.content {
            self.revision_count += 1;
            planned.dependencies = resolve_dependencies(&model, self.names.as_ref());
            planned.desired = Some((Revision(self.revision_count), model));
        }
        self.update_desired(&candidate.id, candidate.reason, step);
    }

    fn update_desired(&mut self, id: &ModelName, reason: LoadReason, step: &mut Step) {
        let Some(planned) = self.models.get(id) else { return };
        let Some((revision, _)) = planned.desired else { return };
        let dependencies = planned.dependencies.values().cloned().collect();
        let desired = DesiredModel { revision, dependencies, reason };
        self.step_lifecycle(LifecycleEvent::SetDesired(id.clone(), desired), step);
    }

    /// Resolves the names of needed models again. A model for which one of them means
    /// another model now is desired in another revision.
    fn resolve_names(&mut self, step: &mut Step) {
        let Some(names) = &self.names else { return };
        let desired: BTreeSet<&ModelName> = self.lifecycle.desired().collect();
        let mut changed = Vec::new();
        for (id, planned) in &mut self.models {
            let Some((revision, model)) = &mut planned.desired else { continue };
            let dependencies = resolve_dependencies(model, Some(names));
            if dependencies != planned.dependencies && desired.contains(id) {
                self.revision_count += 1;
                *revision = Revision(self.revision_count);
                planned.dependencies = dependencies;
                changed.push(id.clone());
            }
        }
        // The reason of a desired model stays what it was.
        changed.iter().for_each(|id| self.update_desired(id, LoadReason::Dependency, step));
    }

    /// Removes models from the desired ones, and why they failed. `unused` says what
    /// happens to models that only they need. Models that need others of the same name are
    /// resolved to these first, so that they serve on. Returns the models that are not
    /// desired any more.
    pub(super) fn remove_desired(
        &mut self,
        ids: &[ModelName],
        unused: UnusedModels,
        step: &mut Step,
    ) -> Vec<ModelName> {
        let namesakes = match unused {
            UnusedModels::Keep => Vec::new(),
            UnusedModels::Remove => self.namesakes_of_dependencies(ids),
        };
        self.remove_names(ids);
        self.resolve_names(step);
        let before: BTreeSet<ModelName> = self.desired().cloned().collect();
        for id in ids {
            let event = match unused {
                UnusedModels::Keep => LifecycleEvent::RemoveDesired(id.clone()),
                UnusedModels::Remove => LifecycleEvent::RemoveDesiredAndUnused(id.clone()),
            };
            self.step_lifecycle(event, step);
        }
        let mut removed = self.remove_undesired_names(&before, step);
        for id in namesakes {
            // Another model may need it now.
            if self.lifecycle.is_unused(&id) {
                self.step_lifecycle(LifecycleEvent::RemoveDesiredAndUnused(id), step);
            }
        }
        if self.names.is_some() {
            removed = self.remove_undesired_names(&before, step);
        }
        ids.iter().chain(&removed).for_each(|id| self.forget_failure(id, step));
        removed
    }

    /// Removes the names of those models that are not desired; returns the models.
    fn remove_undesired_names(
        &mut self,
        ids: &BTreeSet<ModelName>,
        step: &mut Step,
    ) -> Vec<ModelName> {
        let removed: Vec<ModelName> =
            ids.iter().filter(|id| !self.is_desired(id)).cloned().collect();
        self.remove_names(&removed);
        self.resolve_names(step);
        removed
    }

    /// All models of the names that these need, directly or not. An order loads all of
    /// them, because only then their names can be resolved.
    fn namesakes_of_dependencies(&self, ids: &[ModelName]) -> Vec<ModelName> {
        let Some(names) = &self.names else { return Vec::new() };
        let mut found: Vec<ModelName> = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut pending: Vec<&ModelName> = ids.iter().collect();
        while let Some(id) = pending.pop() {
            let planned = self.models.get(id).into_iter();
            let needed = planned.flat_map(|planned| planned.dependencies.keys());
            for name in needed.filter(|name| seen.insert(name.as_str())) {
                found.extend(names.ids_of(name).cloned());
                pending.extend(names.ids_of(name));
            }
        }
        found
    }

    /// Forgets why a model failed, unless it is desired.
    fn forget_failure(&self, id: &ModelName, step: &mut Step) {
        if !self.is_desired(id) {
            step.changes.push(RegistryChange::ForgetFailure(id.clone()));
        }
    }

    fn insert_names(&mut self, ids: impl Iterator<Item = ModelName>) {
        if let Some(names) = &mut self.names {
            ids.for_each(|id| names.insert(id));
        }
    }

    fn remove_names(&mut self, ids: &[ModelName]) {
        if let Some(names) = &mut self.names {
            ids.iter().for_each(|id| names.remove(id));
        }
    }
}

/// Steps of the lifecycle.
impl Plan {
    fn step_lifecycle(&mut self, event: LifecycleEvent, step: &mut Step) {
        let mut actions = Vec::new();
        self.lifecycle.step(event, &mut actions);
        let mut blocked: Option<(ModelName, String)> = None;
        for action in actions {
            match action {
                LifecycleAction::Load(id, revision) => self.begin_load(id, revision, step),
                LifecycleAction::Unload(id) => {
                    let reason = match blocked.take() {
                        Some((blocked_id, text)) if blocked_id == id => Some(text),
                        _ => self.failure_text(&id),
                    };
                    self.begin_unload(id, reason, step);
                }
                LifecycleAction::Block(id, reason) => {
                    let text = self.block_text(&id, &reason);
                    self.models.entry(id.clone()).or_default().error = Some(text.clone());
                    blocked = Some((id.clone(), text.clone()));
                    step.effects.push(Effect::ReportBlocked(id, text));
                }
            }
        }
        self.forget_absent_models();
    }

    fn begin_unload(&mut self, id: ModelName, reason: Option<String>, step: &mut Step) {
        // A load that is ordered before the agents are told must ask other agents.
        let planned = self.models.get(&id);
        let serving = planned.and_then(|planned| planned.serving.as_ref());
        serving.iter().for_each(|model| model.agents.expire());
        step.effects.push(Effect::AnnounceUnload(id, reason));
    }

    /// Forgets models of which nothing is left, and definitions that don't serve any more:
    /// they may keep files.
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

/// What is known of models.
impl Plan {
    /// The models that a name in an order means.
    pub(super) fn ids_of(&self, name: &str) -> Vec<ModelName> {
        match &self.names {
            Some(names) => names.ids_of(name).cloned().collect(),
            None => vec![name.into()],
        }
    }

    pub(super) fn status(&self, id: &str) -> LifecycleStatus {
        self.lifecycle.status(id)
    }

    pub(super) fn desired(&self) -> impl Iterator<Item = &ModelName> {
        self.lifecycle.desired()
    }

    pub(super) fn is_desired(&self, id: &str) -> bool {
        self.lifecycle.desired().any(|desired| **desired == *id)
    }

    /// Whether a revision of the model serves.
    #[cfg(test)]
    pub(super) fn is_serving(&self, id: &str) -> bool {
        self.lifecycle.serving_revision(id).is_some()
    }

    pub(super) fn is_loading(&self, id: &str) -> bool {
        self.lifecycle.is_loading(id)
    }

    /// Whether a removed model is out of service, with the models that need it. If it is
    /// desired again, it is enough that what served before is out of service.
    pub(super) fn is_out_of_service(&self, id: &str) -> bool {
        if self.is_desired(id) {
            return !self.lifecycle.is_unloading(id);
        }
        self.is_settled_with_related(id)
    }

    /// Whether everything is done for the model, what it needs and the models that need it.
    pub(super) fn is_settled_with_related(&self, id: &str) -> bool {
        let is_idle = |id: &ModelName| !self.effects.contains_key(id);
        self.lifecycle.is_settled_with_related(id)
            && self.lifecycle.related_to(id).iter().all(is_idle)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.effects.is_empty() && self.lifecycle.is_settled()
    }

    /// Why a model does not serve, or not in its desired revision.
    pub(super) fn error(&self, id: &str) -> Option<&str> {
        self.models.get(id)?.error.as_deref()
    }

    /// Everything that failed in the last loads of all models.
    pub(super) fn failures(&self) -> Vec<LoadFailure> {
        self.models.values().flat_map(|planned| planned.failures.clone()).collect()
    }

    /// The leases of repository agents whose models were not loaded yet.
    pub(super) fn take_waiting_leases(&self) -> Vec<Arc<AgentLease>> {
        let desired = self.models.values().filter_map(|planned| planned.desired.as_ref());
        desired.filter_map(|(_, model)| model.agents.take_waiting()).collect()
    }

    /// An order begins to change a model. No other order may.
    pub(super) fn begin_order(&mut self, name: &ModelName) {
        assert!(self.ordered.insert(name.clone()), "another order is changing '{name}'");
    }

    pub(super) fn is_ordered(&self, name: &str) -> bool {
        self.ordered.contains(name)
    }

    pub(super) fn end_order(&mut self, name: &str) {
        self.ordered.remove(name);
    }

    /// An effect for a model is about to be performed.
    pub(super) fn begin_effect(&mut self, id: &ModelName) {
        *self.effects.entry(id.clone()).or_default() += 1;
    }

    /// An effect for a model was performed.
    pub(super) fn end_effect(&mut self, id: &ModelName) {
        if let Some(count) = self.effects.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                self.effects.remove(id);
            }
        }
    }
}
