//! The loads in progress, and the consequences of their results.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{LogLevel, ModelFiles};
use galatea_infer::Status;
use galatea_policy::{LifecycleEvent, LoadOutcome, ModelId, ModelRevision};

use super::{LoggedFailures, Plan};
use crate::LoadFailure;
use crate::handle::ModelHandle;
use crate::manager::ControlMode;
use crate::manager::effect::{
    AbandonNotice, ChangedVersion, Effect, LoadOrder, LoadPreparation, LoadRefusal, LoadResources,
    ManagerEvent, PreparedVersion, StepEffects, VersionWork, VersionWorkKind,
};
use crate::manager::load::{AttemptResult, Load, VersionState};
use crate::registry::RegistryChange;

/// A load in progress.
pub(super) struct ActiveLoad {
    order: Arc<LoadOrder>,
    resources: LoadResources,
    load: Load<Arc<ModelHandle>, ChangedVersion>,
    /// The reason why the load can't begin.
    refusal: Option<(LoadOutcome, Status)>,
    failures: Vec<LoadFailure>,
}

impl ActiveLoad {
    fn work(&self, kind: VersionWorkKind) -> Effect {
        let (order, resources) = (self.order.clone(), self.resources.clone());
        Effect::WorkOnVersion(VersionWork { order, resources, kind })
    }

    /// Marks the load as no longer wanted.
    pub(super) fn stop(&self) {
        self.order.model.definition.stop.cancel();
    }

    /// Abandons the load: none of its versions should serve.
    fn abandon(&mut self, notice: AbandonNotice) -> Effect {
        let changes = self.load.abandon();
        let (order, lease) = (self.order.clone(), self.resources.lease.clone());
        Effect::Abandon { order, lease, changes, notice }
    }

    /// Commits the load: all versions are ready and should serve.
    fn commit(&mut self) -> Effect {
        let changes = self.load.commit();
        let (order, lease) = (self.order.clone(), self.resources.lease.clone());
        Effect::Commit { order, lease, changes }
    }

    /// Describes the failures to clients, in Triton's words. `ready` lists the versions in service.
    fn describe(&self, ready: &[i64]) -> String {
        let describe = |failure: &LoadFailure| {
            let LoadFailure { version, status, .. } = failure;
            let version = version.unwrap_or_default();
            let state = if ready.contains(&version) { "READY" } else { "UNAVAILABLE" };
            let code = status.code().label();
            format!("version {version} is at {state} state: {code}: {status};")
        };
        match &self.refusal {
            Some((_, status)) => status.message().to_owned(),
            None => self.failures.iter().map(describe).collect(),
        }
    }
}

impl Plan {
    pub(super) fn begin_load(
        &mut self,
        id: ModelId,
        revision: ModelRevision,
        step: &mut StepEffects,
    ) {
        let Some(planned) = self.models.get_mut(&id) else { return };
        let Some((desired_revision, model)) = &planned.desired else { return };
        assert_eq!(*desired_revision, revision, "{id} is loaded in its desired revision");
        planned.error = None;
        planned.is_misfit = false;
        planned.is_overtaken = false;
        planned.failures.clear();
        let order = Arc::new(LoadOrder {
            id: id.clone(),
            dependencies: planned.dependencies.clone(),
            model: model.clone(),
            serving: planned.serving.clone(),
        });
        let active = ActiveLoad {
            order: order.clone(),
            resources: LoadResources::default(),
            load: Load::new(),
            refusal: None,
            failures: Vec::new(),
        };
        let other = self.loads.insert(id, active);
        assert!(other.is_none(), "a model has one load at a time");
        step.effects.push(Effect::Prepare(order));
    }

    /// Handles the result of an effect.
    pub(in crate::manager) fn handle(&mut self, event: ManagerEvent, step: &mut StepEffects) {
        match event {
            ManagerEvent::Prepared(id, Ok(preparation)) => self.start_load(&id, preparation, step),
            ManagerEvent::Prepared(id, Err(refusal)) => self.refuse_load(&id, refusal, step),
            ManagerEvent::VersionLoaded(id, files, result) => {
                self.end_attempt(&id, files, result, step);
            }
            ManagerEvent::InstancesAdded(id, version, result) => {
                self.load_mut(&id).load.end_adding(version, result);
                self.conclude_if_complete(&id, step);
            }
            ManagerEvent::VersionSkipped(id, version, status) => {
                self.load_mut(&id).load.skip(version, status);
                self.conclude_if_complete(&id, step);
            }
            ManagerEvent::Committed { id, ready } => self.publish(&id, &ready, step),
            ManagerEvent::Abandoned { id, ready } => self.end_abandoned(&id, &ready, step),
            ManagerEvent::UnloadAnnounced(id) => {
                step.changes.push(RegistryChange::Withdraw(id.clone()));
                self.step_lifecycle(LifecycleEvent::Unloaded(id), step);
            }
        }
    }

    fn load_mut(&mut self, id: &ModelId) -> &mut ActiveLoad {
        self.loads.get_mut(id).unwrap_or_else(|| panic!("{id} is not being loaded"))
    }

    fn take_load(&mut self, id: &ModelId) -> ActiveLoad {
        self.loads.remove(id).unwrap_or_else(|| panic!("{id} is not being loaded"))
    }

    /// Returns true if loaded versions of the model should serve.
    fn may_serve(&self, id: &str) -> bool {
        !self.is_closed && self.is_desired(id)
    }

    fn start_load(&mut self, id: &ModelId, preparation: LoadPreparation, step: &mut StepEffects) {
        let LoadPreparation { resources, versions } = preparation;
        let active = self.load_mut(id);
        active.resources = resources;
        let mut states = BTreeMap::new();
        let (mut loading, mut works) = (Vec::new(), Vec::new());
        for version in versions {
            match version {
                PreparedVersion::Load(files) => {
                    loading.push(files.version());
                    states.insert(files.version(), VersionState::Loading { attempt: 1 });
                    works.push(active.work(VersionWorkKind::Load { files, attempt: 1 }));
                }
                PreparedVersion::AddInstances(model) => {
                    states.insert(model.version(), VersionState::Adding);
                    works.push(active.work(VersionWorkKind::AddInstances(model)));
                }
                PreparedVersion::Keep(version, change) => {
                    states.insert(version, VersionState::Kept(change));
                }
            }
        }
        active.load.start(states);
        step.changes.push(RegistryChange::BeginLoad(id.clone(), loading));
        step.effects.extend(works);
        self.conclude_if_complete(id, step);
    }

    fn refuse_load(&mut self, id: &ModelId, refusal: LoadRefusal, step: &mut StepEffects) {
        let LoadRefusal { outcome, status, lease } = refusal;
        let failure = LoadFailure { name: id.to_string(), version: None, status: status.clone() };
        if !self.is_repeated(id, &failure) {
            let line = format!("failed to load '{id}': {}", status.message());
            step.effects.push(Effect::Log(id.clone(), LogLevel::Error, line));
        }
        if outcome == LoadOutcome::Failed && self.is_desired(id) {
            step.changes.push(RegistryChange::NoVersion(id.clone()));
        }
        let active = self.load_mut(id);
        active.resources.lease = lease;
        active.failures = vec![failure];
        active.refusal = Some((outcome, status));
        step.effects.push(active.abandon(AbandonNotice::LoadFailed));
    }

    fn end_attempt(
        &mut self,
        id: &ModelId,
        files: Arc<dyn ModelFiles>,
        result: Result<Arc<ModelHandle>, Status>,
        step: &mut StepEffects,
    ) {
        let (version, attempts_max) = (files.version(), self.attempts_max);
        let status = result.as_ref().err().cloned();
        let active = self.load_mut(id);
        let end = active.load.end_attempt(version, result, attempts_max);
        let log = |level, line| Effect::Log(id.clone(), level, line);
        match (end, status) {
            (AttemptResult::Retry(attempt), status) => {
                let status = status.unwrap_or_else(|| panic!("only failures are retried"));
                let line =
                    format!("'{id}' version {version} failed to load and is tried again: {status}");
                let failure = LoadFailure { name: id.to_string(), version: Some(version), status };
                let is_repeated = self.is_repeated(id, &failure);
                let active = self.load_mut(id);
                if !is_repeated {
                    step.effects.push(log(LogLevel::Warning, line));
                }
                step.effects.push(active.work(VersionWorkKind::Load { files, attempt }));
            }
            (AttemptResult::Ended, Some(status)) => {
                let line = format!("failed to load '{id}' version {version}: {status}");
                let failure = LoadFailure { name: id.to_string(), version: Some(version), status };
                if !self.is_repeated(id, &failure) {
                    step.effects.push(log(LogLevel::Error, line));
                }
                self.conclude_if_complete(id, step);
            }
            (AttemptResult::Ended, None) => self.conclude_if_complete(id, step),
        }
    }

    /// Returns true if a poll tried the same files as the previous load and failed the same way.
    fn is_repeated(&self, id: &ModelId, failure: &LoadFailure) -> bool {
        let (Some(planned), Some(active)) = (self.models.get(id), self.loads.get(id)) else {
            return false;
        };
        self.mode == ControlMode::Poll
            && planned.logged.files == active.order.model.modified
            && planned.logged.failures.contains(failure)
    }

    /// Concludes a load once no version is being worked on: all versions should serve, unless one
    /// has failed or the model is no longer desired.
    fn conclude_if_complete(&mut self, id: &ModelId, step: &mut StepEffects) {
        let may_serve = self.may_serve(id);
        let active = self.load_mut(id);
        if !active.load.is_complete() {
            return;
        }
        let failure = |(version, status): (i64, &Status)| LoadFailure {
            name: id.to_string(),
            version: Some(version),
            status: status.clone(),
        };
        active.failures = active.load.failures().map(failure).collect();
        let effect = if may_serve && active.failures.is_empty() {
            active.commit()
        } else {
            active.abandon(AbandonNotice::LoadFailed)
        };
        step.effects.push(effect);
    }

    /// Puts a load's versions into service, all at once. `ready` lists those already in service.
    fn publish(&mut self, id: &ModelId, ready: &[i64], step: &mut StepEffects) {
        if !self.may_serve(id) {
            let active = self.load_mut(id);
            active.order.model.agents.expire();
            step.effects.push(active.abandon(AbandonNotice::Unloading));
            return;
        }
        let ActiveLoad { order, load, .. } = self.take_load(id);
        let versions = load.publish();
        let is_unchanged = versions.loaded.is_empty() && versions.kept == ready;
        let outcome = if is_unchanged { LoadOutcome::ServesUnchanged } else { LoadOutcome::Serves };
        let (loaded, kept) = (versions.loaded, versions.kept);
        step.changes.push(RegistryChange::Publish { id: id.clone(), loaded, kept });
        let line = format!("successfully loaded '{id}'");
        step.effects.push(Effect::Log(id.clone(), LogLevel::Info, line));
        let planned = self.models.entry(id.clone()).or_default();
        planned.serving = Some(order.model.clone());
        planned.error = None;
        planned.failures = Vec::new();
        planned.logged = LoggedFailures::default();
        step.ended.push(order);
        self.step_lifecycle(LifecycleEvent::Loaded(id.clone(), outcome), step);
    }

    /// Ends a load without success. `ready` lists the versions in service.
    fn end_abandoned(&mut self, id: &ModelId, ready: &[i64], step: &mut StepEffects) {
        let active = self.take_load(id);
        let error = active.describe(ready);
        let outcome = self.outcome_of(&active);
        let is_overtaken = active.order.is_overtaken(&active.failures);
        let ActiveLoad { order, load, failures, refusal, .. } = active;
        let files = order.model.modified.clone();
        step.ended.push(order);
        let tried = load.end_unsuccessfully();
        if refusal.is_none() {
            let reason = |status: Status| format!("{}: {status}", status.code().label());
            let reasons = tried.into_iter().map(|(version, status)| (version, status.map(reason)));
            step.changes.push(RegistryChange::AbortLoad(id.clone(), reasons.collect()));
        }
        let planned = self.models.entry(id.clone()).or_default();
        planned.error = Some(error).filter(|error| !error.is_empty());
        planned.is_misfit = matches!(refusal, Some((LoadOutcome::Incompatible, _)));
        planned.is_overtaken = is_overtaken;
        planned.logged = LoggedFailures { files, failures: failures.clone(), block: None };
        planned.failures = failures;
        self.step_lifecycle(LifecycleEvent::Loaded(id.clone(), outcome), step);
        self.forget_failure(id, step);
    }

    /// Returns the outcome of an abandoned load: its failures, or if it has none, the note that the
    /// model is no longer desired.
    fn outcome_of(&self, active: &ActiveLoad) -> LoadOutcome {
        if let Some((outcome, _)) = &active.refusal {
            return *outcome;
        }
        let has_dependencies = active.order.model.dependency_names().next().is_some();
        if active.failures.is_empty() && !self.is_closed {
            LoadOutcome::Cancelled
        } else if has_dependencies {
            LoadOutcome::Incompatible
        } else {
            LoadOutcome::Failed
        }
    }
}
