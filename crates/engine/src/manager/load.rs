//! Loading one model: all its versions, at the same time, or none of them.
//!
//! Versions are jobs of the pool like models, those that stay and lack instances too.
//! None of them waits for another: the one that is done last puts all of them into
//! service.

use std::sync::{Arc, Mutex, PoisonError};

use galatea_backend::{LogLevel, ModelFiles};
use galatea_dispatch::{ComposingVersions, InstanceChange, LoadedModel};
use galatea_infer::Status;
use galatea_policy::{LoadOutcome, ModelName};

use super::Shared;
use super::plan::{LoadJob, LoadReport};
use crate::LoadFailure;
use crate::composing::PinnedModels;
use crate::retire::ModelHandle;
use crate::tenure::{Claimed, Tenure};

/// A version with what became of it.
type Attempt = (i64, Result<Arc<ModelHandle>, Status>);

/// A version that stays, with what became of the instances that it lacks.
type Growth = (i64, Result<ChangedModel, Status>);

/// A version, and the change of its instances.
type ChangedModel = (Arc<ModelHandle>, InstanceChange);

/// What one job of a load is about.
enum Part {
    /// A version that is loaded.
    Load(Arc<dyn ModelFiles>),
    /// A version that stays and gets more instances.
    Grow(Arc<ModelHandle>),
}

/// A load whose versions are under way.
struct Loading {
    job: LoadJob,
    composing: Option<Arc<PinnedModels>>,
    tenure: Option<Arc<Tenure>>,
    /// Versions that stay.
    kept: Vec<i64>,
    attempts: Mutex<Attempts>,
}

struct Attempts {
    done: Outcomes,
    left: usize,
}

/// What became of the parts of a load, each list by version.
#[derive(Default)]
struct Outcomes {
    loaded: Vec<Attempt>,
    grown: Vec<Growth>,
}

impl Loading {
    /// Adds what became of a part; all of them with the last one.
    fn add(&self, add: impl FnOnce(&mut Outcomes)) -> Option<Outcomes> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut attempts.done);
        attempts.left -= 1;
        if attempts.left > 0 {
            return None;
        }
        let mut done = std::mem::take(&mut attempts.done);
        done.loaded.sort_by_key(|(version, _)| *version);
        done.grown.sort_by_key(|(version, _)| *version);
        Some(done)
    }
}

impl Shared {
    /// Loads a model on this thread and others of the pool. Whoever ends it reports
    /// to the plan.
    pub(super) fn load(self: &Arc<Self>, job: LoadJob) {
        let ready = self.claim(&job).and_then(|tenure| {
            let composing = self.check_versions(&job).and_then(|()| self.pin(&job));
            if composing.is_err() {
                tenure.iter().for_each(|tenure| tenure.load_failed());
            }
            Ok((composing?, tenure))
        });
        match ready {
            Ok((composing, tenure)) => self.load_versions(job, composing, tenure),
            Err(report) => self.report(&job, report),
        }
    }

    fn report(self: &Arc<Self>, job: &LoadJob, report: LoadReport) {
        self.change(|plan, deeds| {
            plan.loaded(job, report, deeds);
            // It may have been given up meanwhile.
            self.dismiss(plan, &job.id);
        });
    }

    /// A model without a version to serve is no reason to take down what serves.
    fn check_versions(&self, job: &LoadJob) -> Result<(), LoadReport> {
        let checked = job.target.definition.check_versions();
        checked.map_err(|status| self.failed(&job.id, LoadOutcome::Failed, status))
    }

    /// What the model needs, if it needs others.
    fn pin(&self, job: &LoadJob) -> Result<Option<Arc<PinnedModels>>, LoadReport> {
        let needed = job.target.definition.needed_models();
        if needed.is_empty() {
            return Ok(None);
        }
        let composing =
            PinnedModels::of(&job.id, &needed, &job.needs, &self.parts.registry.snapshot());
        composing
            .map(|composing| Some(Arc::new(composing)))
            .map_err(|status| self.unfit(&job.id, status))
    }

    /// The model's repository agents, if it has any.
    fn claim(&self, job: &LoadJob) -> Result<Option<Arc<Tenure>>, LoadReport> {
        match job.target.claim.take() {
            Claimed::Nothing => Ok(None),
            Claimed::Agents(tenure) => Ok(Some(tenure)),
            Claimed::Spent => {
                let text = "its repository agents agreed to a load that is over, and have to be \
                            asked again: load it again";
                Err(self.unfit(&job.id, Status::unavailable(text)))
            }
        }
    }

    fn unfit(&self, name: &ModelName, status: Status) -> LoadReport {
        self.failed(name, LoadOutcome::Incompatible, status)
    }

    /// No version was tried.
    fn failed(&self, name: &ModelName, outcome: LoadOutcome, status: Status) -> LoadReport {
        self.refuse(name, status.message());
        let error = status.message().to_owned();
        let failures = vec![LoadFailure { name: name.to_string(), version: None, status }];
        LoadReport { outcome, failures, error }
    }

    /// A version whose files and configuration did not change stays, at most
    /// with other instances.
    fn load_versions(
        self: &Arc<Self>,
        job: LoadJob,
        composing: Option<Arc<PinnedModels>>,
        tenure: Option<Arc<Tenure>>,
    ) {
        let versions = job.target.definition.versions.clone();
        let (kept, fresh): (Vec<_>, Vec<_>) =
            versions.into_iter().partition(|files| self.may_stay(&job, files.version()));
        let kept: Vec<i64> = kept.iter().map(|files| files.version()).collect();
        let numbers: Vec<i64> = fresh.iter().map(|files| files.version()).collect();
        self.parts.registry.begin_load(&job.id, &numbers);
        let growing = self.growing(&job, &kept).into_iter().map(Part::Grow);
        let parts: Vec<Part> = fresh.into_iter().map(Part::Load).chain(growing).collect();
        let attempts = Mutex::new(Attempts { done: Outcomes::default(), left: parts.len() });
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else {
            return self.conclude(&job, Outcomes::default(), &kept, tenure.as_ref());
        };
        let loading = Arc::new(Loading { job, composing, tenure, kept, attempts });
        for part in parts {
            let (shared, loading) = (self.clone(), loading.clone());
            self.pool.submit(Box::new(move || shared.load_part(&loading, part)));
        }
        self.load_part(&loading, first);
    }

    /// Those of the versions that stay which need time, because they lack instances.
    fn growing(&self, job: &LoadJob, kept: &[i64]) -> Vec<Arc<ModelHandle>> {
        let snapshot = self.parts.registry.snapshot();
        let ready = kept.iter().filter_map(|version| snapshot.ready_version(&job.id, *version));
        let definition = &job.target.definition;
        ready
            .filter(|model| self.parts.loader.lacks_instances(model, definition))
            .cloned()
            .collect()
    }

    fn load_part(self: &Arc<Self>, loading: &Loading, part: Part) {
        let Loading { job, composing, tenure, kept, .. } = loading;
        let is_closed = self.lock().closed;
        let exiting = || Status::unavailable("Server exiting");
        let done = match part {
            Part::Load(files) => {
                let load = || {
                    let model = self.load_version(job, &files, composing.as_ref())?;
                    Ok(self.parts.retirer.handle(model, tenure.clone()))
                };
                let outcome = if is_closed { Err(exiting()) } else { load() };
                loading.add(|done| done.loaded.push((files.version(), outcome)))
            }
            Part::Grow(model) => {
                let outcome =
                    if is_closed { Err(exiting()) } else { self.change_instances(job, &model) };
                loading.add(|done| done.grown.push((model.version(), outcome)))
            }
        };
        if let Some(done) = done {
            self.conclude(job, done, kept, tenure.as_ref());
        }
    }

    /// Whether a version that is ready can serve on as it is. One whose repository
    /// agents may have changed its files can't.
    fn may_stay(&self, job: &LoadJob, version: i64) -> bool {
        let Some(serving) = &job.serving else { return false };
        let (old, new) = (&serving.definition, &job.target.definition);
        new.needed_models().is_empty()
            && serving.claim.is_empty()
            && job.target.claim.is_empty()
            && serving.shares_files_with(&job.target)
            && !job.target.modified.version_is_newer_than(version, &serving.modified)
            && new.draft.differs_in_instances_only(&old.draft)
            && self.parts.registry.snapshot().ready_version(&job.id, version).is_some()
    }

    fn load_version(
        &self,
        job: &LoadJob,
        files: &Arc<dyn ModelFiles>,
        composing: Option<&Arc<PinnedModels>>,
    ) -> Result<Arc<LoadedModel>, Status> {
        let log = &self.parts.log;
        let version = files.version();
        log.write(LogLevel::Info, format_args!("loading: {}:{version}", job.id));
        let definition = &job.target.definition;
        let mut retries = self.parts.retries;
        loop {
            let composing =
                composing.cloned().map(|composing| composing as Arc<dyn ComposingVersions>);
            let status = match self.parts.loader.load(definition, files, composing) {
                Ok(model) => return Ok(model),
                Err(status) => status,
            };
            let Some(left) = retries.checked_sub(1) else {
                let line = format_args!("failed to load '{}' version {version}: {status}", job.id);
                log.write(LogLevel::Error, line);
                return Err(status);
            };
            retries = left;
            log.write(
                LogLevel::Warning,
                format_args!(
                    "'{}' version {version} failed to load and is tried again: {status}",
                    job.id
                ),
            );
        }
    }

    /// Puts what was loaded into service, unless something failed or nobody wants it
    /// any more.
    fn conclude(
        self: &Arc<Self>,
        job: &LoadJob,
        done: Outcomes,
        kept: &[i64],
        tenure: Option<&Arc<Tenure>>,
    ) {
        let Outcomes { loaded: attempts, grown } = done;
        let mut failures = [failures(job, &attempts), failures(job, &grown)].concat();
        failures.sort_by_key(|failure| failure.version);
        let is_wanted = self.lock().may_serve(&job.id);
        let mut changes: Vec<ChangedModel> =
            grown.into_iter().filter_map(|(_, outcome)| outcome.ok()).collect();
        if is_wanted && failures.is_empty() {
            failures = self.change_others(job, kept, &mut changes);
        }
        if !is_wanted || !failures.is_empty() {
            changes.into_iter().for_each(|(model, change)| change.undo(&model));
            tenure.iter().for_each(|tenure| tenure.load_failed());
            return self.abandon(job, attempts, failures);
        }
        changes.into_iter().for_each(|(model, change)| self.parts.loader.apply(&model, change));
        self.parts.registry.announce_unload(&job.id, tenure);
        tenure.iter().for_each(|tenure| tenure.loaded());
        if let Err(attempts) = self.serve(job, attempts, kept) {
            tenure.iter().for_each(|tenure| tenure.unloading());
            self.abandon(job, attempts, failures);
        }
    }

    /// Puts versions into service, all at once; gives them back if nobody wants them
    /// any more.
    fn serve(
        self: &Arc<Self>,
        job: &LoadJob,
        attempts: Vec<Attempt>,
        kept: &[i64],
    ) -> Result<(), Vec<Attempt>> {
        let registry = &self.parts.registry;
        let before = registry.snapshot().ready_versions(&job.id);
        let is_same = attempts.is_empty() && before == kept;
        let outcome = if is_same { LoadOutcome::ServesUnchanged } else { LoadOutcome::Serves };
        let report = LoadReport { outcome, failures: Vec::new(), error: String::new() };
        self.change(|plan, deeds| {
            if !plan.may_serve(&job.id) {
                job.target.claim.end();
                return Err(attempts);
            }
            let loaded = attempts.into_iter().filter_map(|(_, outcome)| outcome.ok()).collect();
            registry.finish_load(&job.id, loaded, kept);
            plan.loaded(job, report, deeds);
            Ok(())
        })?;
        let line = format_args!("successfully loaded '{}'", job.id);
        self.parts.log.write(LogLevel::Info, line);
        Ok(())
    }

    /// Gives up what was loaded: because of failures or, if there are none, because
    /// nobody wants it any more.
    fn abandon(
        self: &Arc<Self>,
        job: &LoadJob,
        attempts: Vec<Attempt>,
        failures: Vec<LoadFailure>,
    ) {
        let needs_others = !job.target.definition.needed_models().is_empty();
        let is_given_up = failures.is_empty() && !self.lock().closed;
        let outcome = if is_given_up {
            LoadOutcome::Cancelled
        } else if needs_others {
            LoadOutcome::Incompatible
        } else {
            LoadOutcome::Failed
        };
        let error = failures.iter().map(|failure| self.describe(failure)).collect();
        let reason = |status: &Status| format!("{}: {status}", status.code().label());
        let outcomes = attempts.into_iter();
        let outcomes = outcomes
            .map(|(version, outcome)| (version, outcome.err().map(|status| reason(&status))))
            .collect();
        self.parts.registry.abort_load(&job.id, outcomes);
        self.report(job, LoadReport { outcome, failures, error });
    }

    /// Adds the changes of those versions that stay and lack no instances.
    fn change_others(
        &self,
        job: &LoadJob,
        kept: &[i64],
        changes: &mut Vec<ChangedModel>,
    ) -> Vec<LoadFailure> {
        let snapshot = self.parts.registry.snapshot();
        let ready = kept.iter().filter_map(|version| snapshot.ready_version(&job.id, *version));
        let mut failed: Vec<Growth> = Vec::new();
        for model in ready {
            if changes.iter().any(|(changed, _)| changed.version() == model.version()) {
                continue;
            }
            match self.change_instances(job, model) {
                Ok(change) => changes.push(change),
                Err(status) => failed.push((model.version(), Err(status))),
            }
        }
        failures(job, &failed)
    }

    /// Makes the instances that a version lacks by the configuration, and says which
    /// it has too many.
    fn change_instances(
        &self,
        job: &LoadJob,
        model: &Arc<ModelHandle>,
    ) -> Result<ChangedModel, Status> {
        let change = self.parts.loader.change_instances(model, &job.target.definition);
        change.map(|change| (model.clone(), change)).inspect_err(|status| {
            let line = format_args!(
                "failed to change the instances of '{}' version {}: {status}",
                job.id,
                model.version()
            );
            self.parts.log.write(LogLevel::Error, line);
        })
    }

    /// What clients are told, in the original's words.
    fn describe(&self, failure: &LoadFailure) -> String {
        let LoadFailure { name, version, status } = failure;
        let version = version.unwrap_or_default();
        let snapshot = self.parts.registry.snapshot();
        let is_ready = snapshot.ready_version(name, version).is_some();
        let state = if is_ready { "READY" } else { "UNAVAILABLE" };
        let code = status.code().label();
        format!("version {version} is at {state} state: {code}: {status};")
    }
}

/// Those of the versions that failed.
fn failures<T>(job: &LoadJob, outcomes: &[(i64, Result<T, Status>)]) -> Vec<LoadFailure> {
    let failure = |(version, outcome): &(i64, Result<T, Status>)| {
        let status = outcome.as_ref().err()?.clone();
        Some(LoadFailure { name: job.id.to_string(), version: Some(*version), status })
    };
    outcomes.iter().filter_map(failure).collect()
}
