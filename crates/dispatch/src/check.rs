//! The checks of loading a version, without serving it.

use std::sync::{Arc, Weak};

use galatea_backend::{AutoComplete, Host, LoadedVersion, LogLevel, ModelFiles};
use galatea_config::{ConfigErrors, ModelSpec, SchedulingChoice};
use galatea_infer::{ExecutionTimes, Status};
use galatea_policy::InstanceId;

use crate::assembly::Assembly;
use crate::classes::model_classes;
use crate::permits::Permits;
use crate::warmup::Warmup;
use crate::{LogSink, ModelDefinition, RateLimit, instances};

/// What a check of a version found.
#[derive(Debug, Default)]
pub struct CheckedVersion {
    /// The configuration, completed, if there is nothing wrong with it.
    pub spec: Option<Arc<ModelSpec>>,
    /// What is wrong.
    pub problems: Vec<VersionProblem>,
}

/// Why a version would not load.
#[derive(Debug)]
pub enum VersionProblem {
    /// What is wrong with its configuration.
    Config(ConfigErrors),
    /// What is wrong with its files, or its backend.
    Load(Status),
}

/// A server's rate limiter as far as it refuses models that load.
#[derive(Debug)]
pub struct CheckedLimits {
    /// There if resources are limited.
    permits: Option<Permits>,
}

impl CheckedLimits {
    /// Nothing needs any of it so far.
    #[must_use]
    pub fn new(limit: &RateLimit) -> Self {
        Self { permits: Permits::new(limit) }
    }

    /// Adds a model beside those that were added before.
    ///
    /// # Errors
    ///
    /// Why loading it would be refused: it is not added then.
    pub fn add(&self, spec: &ModelSpec) -> Result<(), Status> {
        let Some(permits) = &self.permits else { return Ok(()) };
        let needs = instances::distinct_needs(spec)?;
        let member = permits.join(Weak::new());
        let mut added = Vec::new();
        for (number, needs) in (0..).map(InstanceId).zip(needs) {
            let outcome = permits.register(member, number, needs);
            if outcome.is_err() {
                for number in added {
                    permits.unregister(member, number);
                }
                return outcome;
            }
            added.push(number);
        }
        Ok(())
    }
}

/// Takes what a model tells that only looks.
struct Nobody {
    version: i64,
}

impl Host for Nobody {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}

    fn model_version(&self) -> i64 {
        self.version
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

impl ModelDefinition {
    /// Does what loading a version does, up to the point where instances would be
    /// made: its configuration is completed and checked, files that it names are
    /// read, and its backend loads the model, which is dropped again.
    ///
    /// An ensemble is checked as far as its own configuration goes.
    #[must_use]
    pub fn check(&self, files: &dyn ModelFiles) -> CheckedVersion {
        let mut checked = CheckedVersion::default();
        let is_ensemble = !self.draft.composing_models().is_empty();
        let mut draft = self.draft.clone();
        let auto_complete =
            if self.auto_complete { AutoComplete::Enabled } else { AutoComplete::Disabled };
        let unconfigured = if is_ensemble {
            Ok(None)
        } else {
            self.backend.begin_load(&mut draft, files, auto_complete)
        };
        let spec = match (draft.finish(&self.support), &unconfigured) {
            (Ok(spec), _) => Arc::new(spec),
            (Err(errors), Ok(_)) => {
                checked.problems.push(VersionProblem::Config(errors));
                return checked;
            }
            (Err(errors), Err(status)) => {
                checked.problems.push(VersionProblem::Load(status.clone()));
                // What isn't written anywhere may only be missing because it could
                // not be completed.
                let mut written = errors.diagnostics;
                written.retain(|diagnostic| diagnostic.position.is_some());
                if !written.is_empty() {
                    let errors = ConfigErrors { diagnostics: written };
                    checked.problems.push(VersionProblem::Config(errors));
                }
                return checked;
            }
        };
        let nobody = LogSink::new(|_, _, _| {});
        let assembly = Assembly::new(&spec, files).map(drop);
        let warmup = Warmup::new(&spec, files, &nobody).map(drop);
        let classes = model_classes(&spec, files, None).map(drop);
        let host: Arc<dyn Host> = Arc::new(Nobody { version: files.version() });
        let loaded = unconfigured.and_then(|unconfigured| {
            let model = match unconfigured {
                _ if is_ensemble => return Ok(()),
                Some(unconfigured) => unconfigured.finish_load(spec.clone(), host.clone()),
                None => self.backend.load(spec.clone(), files, host.clone()),
            }?;
            let (spec, model, host) = (&spec, model.as_ref(), &host);
            match spec.scheduling {
                SchedulingChoice::Sequence(_) | SchedulingChoice::Ensemble(_) => Ok(()),
                SchedulingChoice::Default | SchedulingChoice::Dynamic(_) => {
                    let loaded = LoadedVersion { spec, files, model, host };
                    self.backend.batch_rule(&loaded).map(drop)
                }
            }
        });
        let failed = [assembly, warmup, classes, loaded].into_iter().filter_map(Result::err);
        checked.problems.extend(failed.map(VersionProblem::Load));
        checked.spec = Some(spec);
        checked
    }
}
