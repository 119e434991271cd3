//! The desired models, and how their names are resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_policy::{
    DesiredModel, LifecycleEvent, LifecycleStatus, LoadReason, ModelId, ModelIdsByName,
    ModelRevision,
};

use super::Plan;
use crate::catalog::{CatalogModel, LoadOverride};
use crate::manager::candidate::{CandidateContent, CandidateModel};
use crate::manager::defined_model::DefinedModel;
use crate::manager::effect::StepEffects;
use crate::registry::RegistryChange;

/// The treatment of models that only a removed model needed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::manager) enum UnusedModels {
    Keep,
    Remove,
}

/// Returns the ids of the models that a model needs, keyed by name.
fn resolve_dependencies(
    model: &DefinedModel,
    names: Option<&ModelIdsByName>,
) -> BTreeMap<String, ModelId> {
    let namespace = model.definition.namespace.as_deref().unwrap_or_default();
    let resolve = |name: &str| match names {
        Some(names) => names.resolve(namespace, name),
        None => name.into(),
    };
    model.dependency_names().map(|name| (name.clone(), resolve(&name))).collect()
}

impl Plan {
    /// Returns the names of the models that a model needs, provided that defining and loading the
    /// model again would change nothing.
    pub(in crate::manager) fn current_dependencies(
        &self,
        id: &str,
        found: &CatalogModel,
    ) -> Option<BTreeSet<String>> {
        let planned = self.models.get(id)?;
        let (_, model) = planned.desired.as_ref()?;
        let is_kept = match model.overrides {
            // As in Triton, a configuration that came with a load stays in effect until the
            // repository's model changes or the model is unloaded.
            LoadOverride::None | LoadOverride::Configuration => true,
            LoadOverride::Files => false,
        };
        let is_current = is_kept
            && model.is_current(found)
            && self.lifecycle.status(id) != LifecycleStatus::Failed;
        is_current.then(|| planned.dependencies.keys().cloned().collect())
    }

    /// Makes all candidates desired, unless the plan has changed since one was looked up. In that
    /// case, no candidate becomes desired, and the candidates are returned.
    pub(in crate::manager) fn set_desired(
        &mut self,
        candidates: Vec<CandidateModel>,
        step: &mut StepEffects,
    ) -> Result<(), Vec<CandidateModel>> {
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

    fn is_outdated(&self, candidate: &CandidateModel) -> bool {
        let CandidateModel { id, content, .. } = candidate;
        match content {
            CandidateContent::Unchanged(found) => self.current_dependencies(id, found).is_none(),
            CandidateContent::Defined(_) => false,
        }
    }

    /// Makes dependencies desired before the models that need them, so that they are never reported
    /// as missing.
    fn insert_dependencies_first(
        &mut self,
        mut candidates: Vec<CandidateModel>,
        step: &mut StepEffects,
    ) {
        while !candidates.is_empty() {
            let names: BTreeSet<String> = candidates.iter().map(|one| one.name.clone()).collect();
            let is_next = |candidate: &CandidateModel| {
                let mut needed = candidate.dependencies.iter();
                needed.all(|name| *name == candidate.name || !names.contains(name))
            };
            let (mut next, mut rest): (Vec<CandidateModel>, Vec<CandidateModel>) =
                candidates.into_iter().partition(is_next);
            // The models form a dependency cycle, which the lifecycle reports.
            if next.is_empty() {
                std::mem::swap(&mut next, &mut rest);
            }
            next.into_iter().for_each(|candidate| self.insert(candidate, step));
            candidates = rest;
        }
    }

    fn insert(&mut self, candidate: CandidateModel, step: &mut StepEffects) {
        let planned = self.models.entry(candidate.id.clone()).or_default();
        if let CandidateContent::Defined(model) = candidate.content {
            self.revision_count += 1;
            planned.dependencies = resolve_dependencies(&model, self.names.as_ref());
            planned.desired = Some((ModelRevision(self.revision_count), model));
        }
        self.update_desired(&candidate.id, candidate.reason, step);
    }

    fn update_desired(&mut self, id: &ModelId, reason: LoadReason, step: &mut StepEffects) {
        let Some(planned) = self.models.get(id) else { return };
        let Some((revision, _)) = planned.desired else { return };
        let dependencies = planned.dependencies.values().cloned().collect();
        let desired = DesiredModel { revision, dependencies, reason };
        self.step_lifecycle(LifecycleEvent::SetDesired(id.clone(), desired), step);
    }

    /// Resolves dependency names again. If a name now refers to another model, the model that uses
    /// the name gets a new revision.
    fn resolve_names(&mut self, step: &mut StepEffects) {
        let Some(names) = &self.names else { return };
        let desired: BTreeSet<&ModelId> = self.lifecycle.desired().collect();
        let mut changed = Vec::new();
        for (id, planned) in &mut self.models {
            let Some((revision, model)) = &mut planned.desired else { continue };
            let dependencies = resolve_dependencies(model, Some(names));
            if dependencies != planned.dependencies && desired.contains(id) {
                self.revision_count += 1;
                *revision = ModelRevision(self.revision_count);
                planned.dependencies = dependencies;
                changed.push(id.clone());
            }
        }
        // A model that is already desired keeps its reason.
        changed.iter().for_each(|id| self.update_desired(id, LoadReason::Dependency, step));
    }

    /// Removes models from the desired models, together with the reasons for their failures.
    /// `unused` decides what happens to models that only the removed ones need. Models that can use
    /// another model of the same name are first resolved to it, so that they keep serving. Returns
    /// the models that are no longer desired.
    pub(in crate::manager) fn remove_desired(
        &mut self,
        ids: &[ModelId],
        unused: UnusedModels,
        step: &mut StepEffects,
    ) -> Vec<ModelId> {
        let namesakes = match unused {
            UnusedModels::Keep => Vec::new(),
            UnusedModels::Remove => self.namesakes_of_dependencies(ids),
        };
        self.remove_names(ids);
        self.resolve_names(step);
        let before: BTreeSet<ModelId> = self.desired().cloned().collect();
        for id in ids {
            let event = match unused {
                UnusedModels::Keep => LifecycleEvent::RemoveDesired(id.clone()),
                UnusedModels::Remove => LifecycleEvent::RemoveDesiredAndUnused(id.clone()),
            };
            self.step_lifecycle(event, step);
        }
        let mut removed = self.remove_undesired_names(&before, step);
        for id in namesakes {
            // Another model may need it by now.
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

    /// Gives up failed models whose files came with an order, so that the files can be removed.
    /// Their failures are remembered until the models are unloaded. Returns the definitions, which
    /// own the files.
    pub(in crate::manager) fn drop_failed_files(
        &mut self,
        ids: &[ModelId],
        step: &mut StepEffects,
    ) -> Vec<Arc<DefinedModel>> {
        let mut dropped = Vec::new();
        for id in ids {
            let is_over = match self.lifecycle.status(id) {
                LifecycleStatus::Failed | LifecycleStatus::Blocked(_) => true,
                LifecycleStatus::Serving
                | LifecycleStatus::InProgress
                | LifecycleStatus::Absent => false,
            };
            let Some(planned) = self.models.get(id) else { continue };
            let Some((_, model)) = &planned.desired else { continue };
            if is_over && model.overrides == LoadOverride::Files && planned.serving.is_none() {
                dropped.push(model.clone());
                self.remove_names(std::slice::from_ref(id));
                self.step_lifecycle(LifecycleEvent::RemoveDesired(id.clone()), step);
            }
        }
        self.resolve_names(step);
        dropped
    }

    /// Removes the names that belong to undesired models, and returns the models.
    fn remove_undesired_names(
        &mut self,
        ids: &BTreeSet<ModelId>,
        step: &mut StepEffects,
    ) -> Vec<ModelId> {
        let removed: Vec<ModelId> = ids.iter().filter(|id| !self.is_desired(id)).cloned().collect();
        self.remove_names(&removed);
        self.resolve_names(step);
        removed
    }

    /// Returns all models whose names these models use, directly or indirectly. An order loads all
    /// of them, because names can be resolved only afterwards.
    fn namesakes_of_dependencies(&self, ids: &[ModelId]) -> Vec<ModelId> {
        let Some(names) = &self.names else { return Vec::new() };
        let mut found: Vec<ModelId> = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut pending: Vec<&ModelId> = ids.iter().collect();
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

    /// Forgets the reason for a model's failure, unless the model is desired.
    pub(super) fn forget_failure(&self, id: &ModelId, step: &mut StepEffects) {
        if !self.is_desired(id) {
            step.changes.push(RegistryChange::ForgetFailure(id.clone()));
        }
    }

    fn insert_names(&mut self, ids: impl Iterator<Item = ModelId>) {
        if let Some(names) = &mut self.names {
            ids.for_each(|id| names.insert(id));
        }
    }

    fn remove_names(&mut self, ids: &[ModelId]) {
        if let Some(names) = &mut self.names {
            ids.iter().for_each(|id| names.remove(id));
        }
    }
}
