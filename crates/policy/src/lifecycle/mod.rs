//! Model loads and unloads: decides when and in which order they happen.
//!
//! The inputs of [`LifecyclePlanner`] are the *desired models*: the models that should serve, their
//! revisions, and their dependencies on other models (an ensemble depends on its composing models).
//! The outputs are loads and unloads, at most one at a time per model, and concurrent for different
//! models. The driver reports how each one ended, and the plan continues until the serving models
//! are the desired ones. Startup, reloading, polling, client requests and failures are therefore
//! all handled in the same way. Setting a desired model again without a change has no effect.
//!
//! - A model is loaded once all of its dependencies serve. A dependency that can't serve blocks the
//!   model, and unloads it if it is serving.
//! - A new revision is loaded alongside the serving one. If the load fails, the old revision
//!   continues to serve, and the new one isn't tried again.
//! - After a model is reloaded, its dependents are reloaded. A dependent that is incompatible with
//!   the new revision is unloaded.
//! - A model is desired either directly or as a dependency. A model that is desired only as a
//!   dependency can be removed together with its last dependent.
//!
//! # Example
//!
//! ```
//! use galatea_policy::*;
//!
//! let mut lifecycle = LifecyclePlanner::default();
//! let mut actions = Vec::new();
//! let desired = |revision, dependencies: &[&str]| DesiredModel {
//!     revision: ModelRevision(revision),
//!     reason: LoadReason::Direct,
//!     dependencies: dependencies.iter().map(|name| (*name).into()).collect(),
//! };
//! let (pipeline, net) = (desired(1, &["net"]), desired(1, &[]));
//! lifecycle.step(LifecycleEvent::SetDesired("pipeline".into(), pipeline), &mut actions);
//! lifecycle.step(LifecycleEvent::SetDesired("net".into(), net), &mut actions);
//! assert_eq!(actions.pop(), Some(LifecycleAction::Load("net".into(), ModelRevision(1))));
//! lifecycle.step(LifecycleEvent::Loaded("net".into(), LoadOutcome::Serves), &mut actions);
//! assert_eq!(actions.pop(), Some(LifecycleAction::Load("pipeline".into(), ModelRevision(1))));
//! ```

mod modification_times;
mod names;

use std::collections::{BTreeMap, BTreeSet};

pub use modification_times::ModificationTimes;
pub use names::{ModelId, ModelIdsByName, can_have_namespace, model_id, name_of_model_id};

/// A state of a model's files and configuration. Each change creates a new revision, which the
/// driver numbers.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModelRevision(pub u64);

/// A model that should serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DesiredModel {
    /// The revision to load.
    pub revision: ModelRevision,
    /// The reason why the model is desired. A directly desired model stays so until it is removed.
    pub reason: LoadReason,
    /// Models that must serve before it can.
    pub dependencies: BTreeSet<ModelId>,
}

/// The reason why a model is desired.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LoadReason {
    /// The model was requested by name.
    Direct,
    /// Other models depend on the model.
    Dependency,
}

/// An input of a [`LifecyclePlanner`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleEvent {
    /// The model should serve.
    SetDesired(ModelId, DesiredModel),
    /// The model should no longer serve.
    RemoveDesired(ModelId),
    /// The model should no longer serve, and neither should its direct and indirect dependencies
    /// that aren't desired directly and have no other dependent.
    RemoveDesiredAndUnused(ModelId),
    /// A failed revision should be tried again even though it hasn't changed.
    Retry(ModelId),
    /// The load requested by [`LifecycleAction::Load`] has ended.
    Loaded(ModelId, LoadOutcome),
    /// The unload requested by [`LifecycleAction::Unload`] has ended: the model is out of service.
    /// Its requests may still be executing.
    Unloaded(ModelId),
}

/// The result of a load.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LoadOutcome {
    /// The revision serves and has replaced any earlier one.
    Serves,
    /// The revision serves, and dependents see no difference from the earlier one.
    ServesUnchanged,
    /// The revision failed. An earlier one continues to serve.
    Failed,
    /// The load was cancelled because the model was no longer desired. If the model is desired
    /// again, it is loaded again.
    Cancelled,
    /// The revision is incompatible with its dependencies. An earlier one, which was built for
    /// other dependencies, must be unloaded.
    Incompatible,
}

/// An output of a [`LifecyclePlanner`], which the driver performs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleAction {
    /// Load this revision alongside the serving one, and replace the serving one when the load is
    /// complete. `Loaded` follows.
    Load(ModelId, ModelRevision),
    /// Take the model out of service. `Unloaded` follows.
    Unload(ModelId),
    /// Report that the model can't be loaded, and the reason.
    Block(ModelId, LoadBlockReason),
}

/// The reason why a desired model can't be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadBlockReason {
    /// This dependency doesn't exist or doesn't serve.
    MissingDependency(ModelId),
    /// The model depends on itself, perhaps indirectly.
    DependencyCycle,
}

/// The status of a model in the plan.
///
/// Absent → InProgress → Serving, Failed or Blocked. An event moves any of these back to
/// InProgress. The end of an unload moves InProgress to Absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LifecycleStatus {
    /// The model isn't desired and is unloaded.
    Absent,
    /// The model is being loaded or unloaded, or is waiting for a dependency that is.
    InProgress,
    /// The desired revision serves.
    Serving,
    /// The desired revision couldn't be loaded; an earlier one may be serving.
    Failed,
    /// The model can't be loaded.
    Blocked(LoadBlockReason),
}

/// The plan. A single plan covers all models of a server.
#[derive(Clone, Debug, Default)]
pub struct LifecyclePlanner {
    models: BTreeMap<ModelId, ModelLife>,
    /// Models to replan because they or their dependencies have changed.
    dirty: BTreeSet<ModelId>,
}

#[derive(Clone, Debug, Default)]
struct ModelLife {
    desired: Option<DesiredModel>,
    serving: Option<ModelRevision>,
    /// True if a dependency was reloaded since the model was loaded.
    stale: bool,
    state: LoadState,
    failed: Option<ModelRevision>,
    /// True if the serving revision was built for dependencies other than the current ones.
    incompatible: bool,
    blocked: Option<LoadBlockReason>,
}

/// Idle → Loading (by `Load`) → Idle (by `Loaded`), and Idle → Unloading (by `Unload`) → Idle (by
/// `Unloaded`). An idle model that is neither desired nor serving is deleted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum LoadState {
    #[default]
    Idle,
    Loading(ModelRevision),
    Unloading,
}

impl ModelLife {
    /// Returns true if no load or unload remains for the model, apart from its dependencies.
    fn is_settled(&self) -> bool {
        let Some(desired) = &self.desired else {
            return self.state == LoadState::Idle && self.serving.is_none();
        };
        let is_current = self.serving == Some(desired.revision) && !self.stale;
        let can_not_load = self.failed == Some(desired.revision) || self.blocked.is_some();
        self.state == LoadState::Idle && !self.incompatible && (is_current || can_not_load)
    }

    fn set_serving(&mut self, revision: ModelRevision) {
        self.serving = Some(revision);
        self.failed = None;
        self.incompatible = false;
    }
}

impl LifecyclePlanner {
    /// Processes an event and pushes the resulting actions.
    ///
    /// # Panics
    ///
    /// Panics if the driver reports the end of a load or unload that hasn't begun.
    pub fn step(&mut self, event: LifecycleEvent, out: &mut Vec<LifecycleAction>) {
        match event {
            LifecycleEvent::SetDesired(name, desired) => self.set_desired(&name, desired),
            LifecycleEvent::RemoveDesired(name) => self.remove_desired(&name),
            LifecycleEvent::RemoveDesiredAndUnused(name) => self.remove_desired_and_unused(name),
            LifecycleEvent::Retry(name) => {
                if let Some(model) = self.models.get_mut(&name) {
                    model.failed = None;
                    self.mark_dirty(&name);
                }
            }
            LifecycleEvent::Loaded(name, outcome) => self.loaded(&name, outcome),
            LifecycleEvent::Unloaded(name) => self.unloaded(&name),
        }
        while let Some(name) = self.dirty.pop_first() {
            self.plan(&name, out);
        }
    }

    /// Returns the status of a model.
    pub fn status(&self, name: &str) -> LifecycleStatus {
        let Some(model) = self.models.get(name) else { return LifecycleStatus::Absent };
        if !model.is_settled() {
            return LifecycleStatus::InProgress;
        }
        match (&model.desired, &model.blocked) {
            (None, _) => LifecycleStatus::Absent,
            (Some(_), Some(reason)) => LifecycleStatus::Blocked(reason.clone()),
            (Some(desired), None) if model.failed == Some(desired.revision) => {
                LifecycleStatus::Failed
            }
            (Some(_), None) => LifecycleStatus::Serving,
        }
    }

    /// Returns the serving revision.
    pub fn serving_revision(&self, name: &str) -> Option<ModelRevision> {
        self.models.get(name).and_then(|model| model.serving)
    }

    /// Returns true if a revision is being loaded.
    pub fn is_loading(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(|model| matches!(model.state, LoadState::Loading(_)))
    }

    /// Returns true if the model is being unloaded.
    pub fn is_unloading(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(|model| model.state == LoadState::Unloading)
    }

    /// Returns the desired models.
    pub fn desired(&self) -> impl Iterator<Item = &ModelId> {
        self.models.iter().filter(|(_, model)| model.desired.is_some()).map(|(name, _)| name)
    }

    /// Returns true if no load or unload remains for a model and its direct and indirect
    /// dependencies and dependents.
    pub fn is_settled_with_related(&self, name: &str) -> bool {
        let settled = |name: &ModelId| self.models.get(name).is_none_or(ModelLife::is_settled);
        let name = name.into();
        !self.is_pending(&name) && self.with_dependents(&name).iter().all(settled)
    }

    /// Returns the model with its direct and indirect dependencies and dependents.
    pub fn related_to(&self, name: &str) -> BTreeSet<ModelId> {
        let name = ModelId::from(name);
        let mut related = self.with_dependents(&name);
        let mut dependencies = BTreeSet::new();
        let mut unvisited = vec![name];
        while let Some(name) = unvisited.pop() {
            let direct = self.dependencies_of(&name).into_iter();
            unvisited.extend(direct.filter(|name| dependencies.insert(name.clone())));
        }
        related.extend(dependencies);
        related
    }

    /// Returns the desired models that depend directly on this one.
    pub fn dependents_of(&self, name: &str) -> impl Iterator<Item = &ModelId> {
        let depends = move |model: &&ModelLife| {
            model.desired.as_ref().is_some_and(|desired| desired.dependencies.contains(name))
        };
        self.models.iter().filter(move |(_, model)| depends(model)).map(|(name, _)| name)
    }

    /// Returns the direct dependencies of a desired model.
    pub fn dependencies_of(&self, name: &str) -> BTreeSet<ModelId> {
        let desired = self.models.get(name).and_then(|model| model.desired.as_ref());
        desired.map(|desired| desired.dependencies.clone()).unwrap_or_default()
    }

    /// Returns true if no load or unload remains for any model.
    pub fn is_settled(&self) -> bool {
        self.models.values().all(ModelLife::is_settled)
    }

    fn set_desired(&mut self, name: &ModelId, mut desired: DesiredModel) {
        let model = self.models.entry(name.clone()).or_default();
        if model.desired.as_ref().is_some_and(|earlier| earlier.reason == LoadReason::Direct) {
            desired.reason = LoadReason::Direct;
        }
        if model.desired.as_ref() != Some(&desired) {
            model.desired = Some(desired);
            model.blocked = None;
            self.mark_dirty(name);
        }
    }

    fn remove_desired(&mut self, name: &ModelId) {
        if let Some(model) = self.models.get_mut(name) {
            model.desired = None;
            model.blocked = None;
            model.failed = None;
            self.mark_dirty(name);
        }
    }

    /// Removes the model and its unused dependencies. Each iteration removes a model, so the loop
    /// ends.
    fn remove_desired_and_unused(&mut self, name: ModelId) {
        let mut unused = vec![name];
        while let Some(name) = unused.pop() {
            let dependencies = self.dependencies_of(&name);
            self.remove_desired(&name);
            unused.extend(dependencies.into_iter().filter(|name| self.is_unused(name)));
        }
    }

    /// Returns true if the model is desired only as a dependency and no longer has any dependents.
    pub fn is_unused(&self, name: &str) -> bool {
        let desired = self.models.get(name).and_then(|model| model.desired.as_ref());
        desired.is_some_and(|desired| desired.reason == LoadReason::Dependency)
            && self.dependents_of(name).next().is_none()
    }

    fn loaded(&mut self, name: &ModelId, outcome: LoadOutcome) {
        let model = self.models.get_mut(name).unwrap_or_else(|| panic!("{name} is unknown"));
        let LoadState::Loading(revision) = model.state else {
            panic!("{name} was not being loaded")
        };
        model.state = LoadState::Idle;
        match outcome {
            LoadOutcome::Serves => {
                model.set_serving(revision);
                self.mark_dependents_stale(name);
            }
            LoadOutcome::ServesUnchanged => model.set_serving(revision),
            // A dependency was reloaded in the meantime, so the failure is meaningless.
            LoadOutcome::Failed | LoadOutcome::Incompatible if model.stale => {}
            // The serving revision may be the same but built for earlier dependencies.
            LoadOutcome::Cancelled => model.stale = true,
            LoadOutcome::Failed => model.failed = Some(revision),
            LoadOutcome::Incompatible => {
                model.failed = Some(revision);
                model.incompatible = model.serving.is_some();
            }
        }
        self.mark_dirty(name);
    }

    /// Marks the dependents of a reloaded model for reloading, even if they failed with its earlier
    /// revision.
    fn mark_dependents_stale(&mut self, name: &str) {
        let dependents: Vec<ModelId> = self.dependents_of(name).cloned().collect();
        for dependent in dependents {
            if let Some(dependent) = self.models.get_mut(&dependent) {
                dependent.stale = true;
                dependent.failed = None;
            }
        }
    }

    fn unloaded(&mut self, name: &ModelId) {
        let model = self.models.get_mut(name).unwrap_or_else(|| panic!("{name} is unknown"));
        assert_eq!(model.state, LoadState::Unloading, "{name} was not being unloaded");
        model.state = LoadState::Idle;
        self.mark_dirty(name);
    }

    /// Marks the model and its direct and indirect dependents for replanning.
    fn mark_dirty(&mut self, name: &ModelId) {
        let dirty = self.with_dependents(name);
        self.dirty.extend(dirty);
    }

    fn with_dependents(&self, name: &ModelId) -> BTreeSet<ModelId> {
        let mut unvisited = vec![name.clone()];
        let mut visited = BTreeSet::new();
        while let Some(name) = unvisited.pop() {
            if visited.insert(name.clone()) {
                unvisited.extend(self.dependents_of(&name).cloned());
            }
        }
        visited
    }

    /// Decides on the next action for a model, if one is due.
    fn plan(&mut self, name: &ModelId, out: &mut Vec<LifecycleAction>) {
        let Some(model) = self.models.get(name) else { return };
        if model.state != LoadState::Idle {
            return;
        }
        let Some(desired) = &model.desired else {
            if model.serving.is_some() {
                self.unload(name, out);
            } else {
                self.models.remove(name);
            }
            return;
        };
        let revision = desired.revision;
        if model.incompatible {
            return self.unload_incompatible(name, out);
        }
        match self.dependency_state(name) {
            DependencyState::Pending => self.set_blocked(name, None, out),
            DependencyState::Blocked(reason) => self.set_blocked(name, Some(reason), out),
            DependencyState::Ready => {
                self.set_blocked(name, None, out);
                let model = self.models.get_mut(name).expect("the model is planned");
                let is_current = model.serving == Some(revision) && !model.stale;
                if !is_current && model.failed != Some(revision) {
                    model.state = LoadState::Loading(revision);
                    model.stale = false;
                    out.push(LifecycleAction::Load(name.clone(), revision));
                }
            }
        }
    }

    /// Sets the reason why the model is blocked. A blocked model is unloaded.
    fn set_blocked(
        &mut self,
        name: &ModelId,
        reason: Option<LoadBlockReason>,
        out: &mut Vec<LifecycleAction>,
    ) {
        let model = self.models.get_mut(name).expect("the model is planned");
        if model.blocked == reason {
            return;
        }
        model.blocked.clone_from(&reason);
        let is_serving = model.serving.is_some();
        if let Some(reason) = reason {
            out.push(LifecycleAction::Block(name.clone(), reason));
            if is_serving {
                self.unload(name, out);
            }
        }
        self.mark_dirty(name);
        self.dirty.remove(name);
    }

    /// Unloads an incompatible model and keeps its failure, because a retry would fail again.
    fn unload_incompatible(&mut self, name: &ModelId, out: &mut Vec<LifecycleAction>) {
        let failed = self.models.get(name).and_then(|model| model.failed);
        self.unload(name, out);
        if let Some(model) = self.models.get_mut(name) {
            model.failed = failed;
        }
    }

    fn unload(&mut self, name: &ModelId, out: &mut Vec<LifecycleAction>) {
        let model = self.models.get_mut(name).expect("the model is planned");
        model.serving = None;
        model.failed = None;
        model.incompatible = false;
        model.state = LoadState::Unloading;
        out.push(LifecycleAction::Unload(name.clone()));
        self.mark_dirty(name);
        self.dirty.remove(name);
    }

    fn dependency_state(&self, name: &ModelId) -> DependencyState {
        if self.depends_on_itself(name) {
            return DependencyState::Blocked(LoadBlockReason::DependencyCycle);
        }
        let mut state = DependencyState::Ready;
        for dependency in self.dependencies_of(name) {
            let missing =
                || DependencyState::Blocked(LoadBlockReason::MissingDependency(dependency.clone()));
            let Some(model) = self.models.get(&dependency) else { return missing() };
            if model.desired.is_none() || model.blocked.is_some() {
                return missing();
            }
            match (self.is_pending(&dependency), model.serving) {
                (true, _) => state = DependencyState::Pending,
                (false, Some(_)) => {}
                (false, None) => return missing(),
            }
        }
        state
    }

    /// Returns true if a load or unload remains for the model or one of its dependencies.
    fn is_pending(&self, name: &ModelId) -> bool {
        let mut unvisited = vec![name.clone()];
        let mut visited = BTreeSet::new();
        while let Some(name) = unvisited.pop() {
            let Some(model) = self.models.get(&name) else { continue };
            if !model.is_settled() {
                return true;
            }
            if model.blocked.is_none() && visited.insert(name.clone()) {
                unvisited.extend(self.dependencies_of(&name));
            }
        }
        false
    }

    fn depends_on_itself(&self, name: &ModelId) -> bool {
        let mut unvisited: Vec<ModelId> = self.dependencies_of(name).into_iter().collect();
        let mut visited = BTreeSet::new();
        while let Some(dependency) = unvisited.pop() {
            if dependency == *name {
                return true;
            }
            if visited.insert(dependency.clone()) {
                unvisited.extend(self.dependencies_of(&dependency));
            }
        }
        false
    }
}

/// The combined state of a model's dependencies, as far as it affects the model's load.
enum DependencyState {
    /// All dependencies serve.
    Ready,
    /// A dependency is being loaded or unloaded.
    Pending,
    /// The model can't be loaded.
    Blocked(LoadBlockReason),
}

#[cfg(test)]
mod tests;
