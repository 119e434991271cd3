//! Loading one model: all its versions, at the same time, or none of them.
//!
//! Versions are jobs of the pool like models. None of them waits for another: the
//! one that is done last puts all of them into service.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use galatea_backend::{LogLevel, ModelFiles};
use galatea_infer::Status;
use galatea_policy::{LoadOutcome, ModelName};

use super::Shared;
use super::plan::{LoadJob, LoadReport};
use crate::composing::PinnedModels;
use crate::loader::InstanceChange;
use crate::retire::ModelHandle;
use crate::tenure::{Claimed, Tenure};
use crate::{LoadFailure, LoadedModel};

/// A version with what became of it.
type Attempt = (i64, Result<Arc<ModelHandle>, Status>);

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
    done: Vec<Attempt>,
    left: usize,
}

impl Loading {
    /// Adds what became of a version; all of them, ascending, with the last one.
    fn add(&self, attempt: Attempt) -> Option<Vec<Attempt>> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.done.push(attempt);
        attempts.left -= 1;
        if attempts.left > 0 {
            return None;
        }
        let mut done = std::mem::take(&mut attempts.done);
        done.sort_by_key(|(version, _)| *version);
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
        self.failed(name, LoadOutcome::Unfit, status)
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
        let mut fresh = fresh.into_iter();
        let Some(first) = fresh.next() else {
            return self.conclude(&job, Vec::new(), &kept, tenure.as_ref());
        };
        let attempts = Mutex::new(Attempts { done: Vec::new(), left: numbers.len() });
        let loading = Arc::new(Loading { job, composing, tenure, kept, attempts });
        for files in fresh {
            let (shared, loading) = (self.clone(), loading.clone());
            self.pool.submit(Box::new(move || shared.load_one(&loading, &files)));
        }
        self.load_one(&loading, &first);
    }

    fn load_one(self: &Arc<Self>, loading: &Loading, files: &Arc<dyn ModelFiles>) {
        let Loading { job, composing, tenure, kept, .. } = loading;
        let outcome = if self.lock().closed {
            Err(Status::unavailable("Server exiting"))
        } else {
            let model = self.load_version(job, files, composing.as_ref());
            model.map(|model| self.parts.retirer.handle(model, tenure.clone()))
        };
        if let Some(attempts) = loading.add((files.version(), outcome)) {
            self.conclude(job, attempts, kept, tenure.as_ref());
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
            && !job.target.stamp.version_is_newer_than(version, &serving.stamp)
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
            let attempt = || self.parts.loader.load(definition, files, composing.cloned());
            let outcome = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|_| {
                Err(Status::internal("the backend failed while it loaded the model"))
            });
            let status = match outcome {
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
        attempts: Vec<Attempt>,
        kept: &[i64],
        tenure: Option<&Arc<Tenure>>,
    ) {
        let mut failures = self.failures(job, &attempts);
        let is_wanted = self.lock().may_serve(&job.id);
        if is_wanted && failures.is_empty() {
            failures = self.update_kept(job, kept);
        }
        if !is_wanted || !failures.is_empty() {
            tenure.iter().for_each(|tenure| tenure.load_failed());
            return self.abandon(job, attempts, failures);
        }
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
        let outcome = if is_same { LoadOutcome::ServesAsBefore } else { LoadOutcome::Serves };
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
            LoadOutcome::GivenUp
        } else if needs_others {
            LoadOutcome::Unfit
        } else {
            LoadOutcome::Failed
        };
        let error = failures.iter().map(|failure| self.describe(failure)).collect();
        let reason = |status: &Status| format!("{}: {status}", status.code().words());
        let outcomes = attempts.into_iter();
        let outcomes = outcomes
            .map(|(version, outcome)| (version, outcome.err().map(|status| reason(&status))))
            .collect();
        self.parts.registry.abort_load(&job.id, outcomes);
        self.report(job, LoadReport { outcome, failures, error });
    }

    fn failures(&self, job: &LoadJob, attempts: &[Attempt]) -> Vec<LoadFailure> {
        let failure = |(version, outcome): &Attempt| {
            let status = outcome.as_ref().err()?.clone();
            Some(LoadFailure { name: job.id.to_string(), version: Some(*version), status })
        };
        attempts.iter().filter_map(failure).collect()
    }

    /// Gives versions that stay the instances that the configuration wants, all of them
    /// or none.
    fn update_kept(&self, job: &LoadJob, kept: &[i64]) -> Vec<LoadFailure> {
        let snapshot = self.parts.registry.snapshot();
        let loader = &self.parts.loader;
        let mut changes = Vec::new();
        let mut failures = Vec::new();
        for version in kept {
            let Some(model) = snapshot.ready_version(&job.id, *version) else { continue };
            match loader.change_instances(model, &job.target.definition) {
                Ok(change) => changes.push(change),
                Err(status) => {
                    let line = format_args!(
                        "failed to change the instances of '{}' version {version}: {status}",
                        job.id
                    );
                    self.parts.log.write(LogLevel::Error, line);
                    let name = job.id.to_string();
                    failures.push(LoadFailure { name, version: Some(*version), status });
                }
            }
        }
        if failures.is_empty() {
            changes.into_iter().for_each(|change| loader.apply(change));
        } else {
            changes.into_iter().for_each(InstanceChange::undo);
        }
        failures
    }

    /// What clients are told, in the original's words.
    fn describe(&self, failure: &LoadFailure) -> String {
        let LoadFailure { name, version, status } = failure;
        let version = version.unwrap_or_default();
        let snapshot = self.parts.registry.snapshot();
        let is_ready = snapshot.ready_version(name, version).is_some();
        let state = if is_ready { "READY" } else { "UNAVAILABLE" };
        let code = status.code().words();
        format!("version {version} is at {state} state: {code}: {status};")
    }
}
