//! Checks a version for `galatea check` with a load that stops before instances are created.

use std::mem;
use std::sync::{Arc, Weak};

use galatea_backend::{AutoCompletePermission, LoadedVersion, LogLevel, ModelFiles, ModelHost};
use galatea_config::{ConfigErrors, ModelSpec, SchedulingChoice};
use galatea_infer::{ExecutionTimes, Status};
use galatea_policy::InstanceId;
use galatea_stdx::Lock;

use super::ModelDefinition;
use crate::LogSink;
use crate::batch::SequenceAssembler;
use crate::classes::read_classes;
use crate::dispatcher::Dispatcher;
use crate::instances::distinct_requirements;
use crate::rate_limiter::{RateLimiterDriver, RateLimiterMode};
use crate::warmup::Warmup;

/// The result of checking a version.
#[derive(Debug, Default)]
pub struct LoadCheckResult {
    /// The completed configuration, if it has no errors.
    pub spec: Option<Arc<ModelSpec>>,
    /// The problems.
    pub problems: Vec<LoadProblem>,
    /// The warnings of the backend, as the server would log them.
    pub warnings: Vec<String>,
}

/// A reason why a version would not load.
#[derive(Debug)]
pub enum LoadProblem {
    /// Errors in the configuration.
    Config(ConfigErrors),
    /// An error in the files or from the backend.
    Load(Status),
}

/// Checks models against the server's resource limits.
#[derive(Debug)]
pub struct ResourceLimitCheck {
    /// The rate limiter; `None` if resources are not limited.
    driver: Option<RateLimiterDriver>,
}

impl ResourceLimitCheck {
    /// Creates a check without any models.
    #[must_use]
    pub fn new(limit: &RateLimiterMode) -> Self {
        Self { driver: RateLimiterDriver::new(limit, &LogSink::new(|_, _, _| {})) }
    }

    /// Adds a model to the check.
    ///
    /// # Errors
    ///
    /// The reason why the model would be refused. In that case, the model is not added.
    pub fn try_add(&self, spec: &ModelSpec) -> Result<(), Status> {
        let Some(driver) = &self.driver else { return Ok(()) };
        let requirements = distinct_requirements(spec)?;
        let receiver = driver.add_receiver(Weak::<Dispatcher>::new());
        let mut added = Vec::new();
        for (instance, requirements) in (0..).map(InstanceId).zip(requirements) {
            if let Err(status) = driver.register(receiver, instance, requirements) {
                for instance in added {
                    driver.unregister(receiver, instance);
                }
                return Err(status);
            }
            added.push(instance);
        }
        Ok(())
    }
}

/// The host of a model that is only being checked. It collects the backend's warnings.
struct CheckHost {
    version: i64,
    warnings: Lock<Vec<String>>,
}

impl ModelHost for CheckHost {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}

    fn model_version(&self) -> i64 {
        self.version
    }

    fn log(&self, level: LogLevel, message: &str) {
        if level == LogLevel::Warning {
            self.warnings.lock("keep a backend's warning").push(message.to_owned());
        }
    }
}

impl ModelDefinition {
    /// Loads a version up to the point where instances would be created. Completes and checks its
    /// configuration, reads the files that the configuration names, and lets the backend load the
    /// model, which is then dropped.
    ///
    /// For an ensemble, checks only the configuration.
    #[must_use]
    pub fn check_load(&self, files: &dyn ModelFiles) -> LoadCheckResult {
        let mut checked = LoadCheckResult::default();
        if let Err(status) = files.fetch() {
            checked.problems.push(LoadProblem::Load(status));
            return checked;
        }
        let is_ensemble = !self.draft.composing_models().is_empty();
        let mut draft = self.draft.clone();
        let auto_complete = if self.auto_complete {
            AutoCompletePermission::Granted
        } else {
            AutoCompletePermission::Denied
        };
        let unconfigured = if is_ensemble {
            Ok(None)
        } else {
            self.backend.begin_load(&mut draft, files, auto_complete)
        };
        let spec = match (draft.into_validated_spec(&self.support), &unconfigured) {
            (Ok(spec), _) => Arc::new(spec),
            (Err(errors), Ok(_)) => {
                checked.problems.push(LoadProblem::Config(errors));
                return checked;
            }
            (Err(errors), Err(status)) => {
                checked.problems.push(LoadProblem::Load(status.clone()));
                // A setting without a position may be missing only because the configuration could
                // not be completed.
                let mut written = errors.diagnostics;
                written.retain(|diagnostic| diagnostic.position.is_some());
                if !written.is_empty() {
                    let errors = ConfigErrors { diagnostics: written };
                    checked.problems.push(LoadProblem::Config(errors));
                }
                return checked;
            }
        };
        let discarded = LogSink::new(|_, _, _| {});
        let assembler = SequenceAssembler::new(&spec, files).map(drop);
        let warmup = Warmup::new(&spec, files, &discarded).map(drop);
        let classes = read_classes(&spec, files, None).map(drop);
        let check_host =
            Arc::new(CheckHost { version: files.version(), warnings: Lock::default() });
        let host: Arc<dyn ModelHost> = check_host.clone();
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
        let failed = [assembler, warmup, classes, loaded].into_iter().filter_map(Result::err);
        checked.problems.extend(failed.map(LoadProblem::Load));
        checked.warnings = mem::take(&mut *check_host.warnings.lock("take the warnings"));
        checked.spec = Some(spec);
        checked
    }
}
