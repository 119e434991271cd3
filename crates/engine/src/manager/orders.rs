//! Orders from clients and from the program to load, unload and register.

use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_control::{LoadParameters, ModelNameMapping};
use galatea_dispatch::ModelDefinition;
use galatea_infer::Status;
use galatea_policy::{LifecycleStatus, LoadReason, ModelId};
use galatea_repository::{
    InvalidName, ListedModel, MODEL_NAME_BYTES_MAX, check_model_name, check_uploaded_model_name,
};
use galatea_stdx::Guard;

use super::candidate::CandidateModel;
use super::defined_model::DefinedModel;
use super::driver::Driver;
use super::plan::{Plan, UnusedModels};
use super::search::{OrderedModels, UnreadableModel};
use super::{ControlMode, Manager};
use crate::LoadFailure;

/// The maximum number of remembered models that failed to load and are in no repository. An unload
/// removes them.
const FAILED_MODELS_MAX: usize = 1000;

impl Manager {
    /// The names of all models.
    pub(crate) fn names(&self) -> Vec<ListedModel> {
        self.catalog.names()
    }

    /// Loads a model on a client's order. Returns when the model is serving or has failed.
    pub(crate) fn load(&self, name: &str, parameters: LoadParameters) -> Result<(), Status> {
        self.check_mode()?;
        self.load_evictable(name, parameters)
    }

    /// Loads a model on the order of a client or of a request.
    pub(crate) fn load_evictable(
        &self,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        check_name(name)?;
        let brings_files = !parameters.files.is_empty();
        if brings_files {
            self.check_new_name(name)?;
        }
        let name: ModelId = name.into();
        let _order = OrderInProgress::begin(&self.driver, &name)?;
        let OrderedModels { named, all, is_complete } =
            self.searcher().load(&name, parameters).map_err(|UnreadableModel| not_polled(&name))?;
        let plan =
            self.driver.wait_until(|plan| all.iter().all(|id| plan.is_settled_with_related(id)))?;
        let is_absent = |id: &ModelId| plan.status(id) == LifecycleStatus::Absent;
        if named.iter().any(is_absent) {
            return Err(not_loaded(&name, "unexpected miss in global map"));
        }
        let failure = |id: &ModelId| match plan.status(id) {
            LifecycleStatus::Serving | LifecycleStatus::InProgress => None,
            // In Triton the unload would wait for the load, so the response is the same as for a
            // load followed by an unload.
            LifecycleStatus::Failed if plan.is_overtaken(id) => None,
            LifecycleStatus::Failed | LifecycleStatus::Blocked(_) | LifecycleStatus::Absent => {
                let error = plan.error(id).unwrap_or_default();
                Some(format!("load failed for model '{id}': {error}\n"))
            }
        };
        let failures: String = named.iter().filter_map(failure).collect();
        if failures.is_empty() {
            return if is_complete { Ok(()) } else { Err(not_polled(&name)) };
        }
        if brings_files {
            let dropped = self.driver.step(plan, |plan, step| plan.drop_failed_files(&named, step));
            // The files are removed outside the lock.
            drop(dropped);
        }
        Err(Status::invalid_argument(failures))
    }

    /// Checks the name of a model whose files come with an order.
    fn check_new_name(&self, name: &str) -> Result<(), Status> {
        let invalid = |error: InvalidName| Status::invalid_argument(error.to_string());
        check_uploaded_model_name(name).map_err(invalid)?;
        let snapshot = self.driver.worker.registry.snapshot();
        if snapshot.failed_count() < FAILED_MODELS_MAX || snapshot.has_model(name) {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "{} models failed to load: some of them must be unloaded before others are loaded",
            FAILED_MODELS_MAX
        )))
    }

    /// Unloads a model on a client's order. Returns when it is out of service. The models that need
    /// it go out of service with it.
    pub(crate) fn unload(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        self.check_mode()?;
        self.unload_with(name, unload_dependents)
    }

    /// Unloads a model to free its memory. The models that it needs stay.
    pub(crate) fn unload_evicted(&self, name: &str) -> Result<(), Status> {
        self.unload_with(name, false)
    }

    fn unload_with(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        let name: ModelId = name.into();
        let _order = OrderInProgress::begin_unload(&self.driver, &name)?;
        // The lock stays held, so no load begins before the models have been removed.
        let plan = self.driver.wait_without_loads(&name, |plan| {
            plan.ids_of(&name).iter().all(|id| plan.is_at_rest(id))
        })?;
        let mut ids = plan.ids_of(&name);
        // With namespaces, a model whose order failed at startup is known by its bare name.
        if !ids.contains(&name) {
            ids.push(name);
        }
        let unused = if unload_dependents { UnusedModels::Remove } else { UnusedModels::Keep };
        let removed = self.driver.step(plan, |plan, step| {
            let removed = plan.remove_desired(&ids, unused, step);
            step.drop_block_reasons();
            removed
        });
        ids.extend(removed);
        // Another order may already have begun to take them out of service.
        let is_done = |plan: &Plan| ids.iter().all(|id| plan.is_out_of_service(id));
        self.driver.wait_until(is_done).map(drop)
    }

    fn check_mode(&self) -> Result<(), Status> {
        if self.mode == ControlMode::Explicit {
            return Ok(());
        }
        Err(Status::unavailable(
            "explicit model load / unload is not allowed if polling is enabled",
        ))
    }

    /// Adds a repository.
    pub(crate) fn register(&self, path: &str, names: &[ModelNameMapping]) -> Result<(), Status> {
        self.check_registration("registration")?;
        self.catalog.register(path, names)?;
        let line = format_args!("model repository registered: {path}");
        self.driver.log.write(LogLevel::Info, line);
        Ok(())
    }

    /// Removes a repository, but none of the models loaded from it.
    pub(crate) fn unregister(&self, path: &str) -> Result<(), Status> {
        self.check_registration("unregistration")?;
        self.catalog.unregister(path)?;
        let line = format_args!("model repository unregistered: {path}");
        self.driver.log.write(LogLevel::Info, line);
        Ok(())
    }

    fn check_registration(&self, what: &str) -> Result<(), Status> {
        if self.mode == ControlMode::Explicit {
            return Ok(());
        }
        Err(Status::unsupported(format!(
            "repository {what} is not allowed if model control mode is not EXPLICIT"
        )))
    }

    /// Loads models by name. Returns true if all of them are serving.
    pub(crate) fn load_named(&self, names: &[String]) -> bool {
        let mut all_found = true;
        for name in names {
            let ordered = self.searcher().load(name, LoadParameters::default());
            all_found &= ordered.is_ok_and(|ordered| ordered.is_complete);
        }
        self.wait_for_all() && all_found
    }

    /// Loads models that are not in the catalog. Returns the failures.
    pub(crate) fn load_definitions(&self, definitions: Vec<ModelDefinition>) -> Vec<LoadFailure> {
        let candidates = definitions.into_iter().map(|definition| {
            let (id, name) = (definition.id(), definition.name.clone());
            let model = DefinedModel::without_catalog(definition, &self.driver.worker.reaper);
            CandidateModel::defined(id, name, LoadReason::Direct, model)
        });
        let candidates = candidates.collect();
        let plan = self.driver.lock("load definitions");
        // Defined candidates are never returned.
        let _ = self.driver.step(plan, |plan, step| plan.set_desired(candidates, step));
        self.wait_for_all();
        let mut failures = self.driver.lock("read what failed").failures();
        failures.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        failures
    }

    /// Waits until no work is left. Returns true if every desired model is serving.
    pub(super) fn wait_for_all(&self) -> bool {
        let Ok(plan) = self.driver.wait_until(Plan::is_settled) else { return false };
        plan.desired().all(|id| plan.status(id) == LifecycleStatus::Serving)
    }
}

/// The error for an ordered model that can't be read. The reason is in the log.
fn not_polled(name: &str) -> Status {
    not_loaded(name, "failed to poll from model repository")
}

fn not_loaded(name: &str, reason: &str) -> Status {
    Status::internal(format!("failed to load '{name}', {reason}"))
}

/// Checks a name from a client. The messages are Triton's.
fn check_name(name: &str) -> Result<(), Status> {
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(Status::invalid_argument(
            "Model name cannot be empty. Please enter a valid name to deploy.",
        ));
    }
    if trimmed == ".." || trimmed.contains('/') {
        return Err(Status::invalid_argument(format!(
            "invalid model name '{name}', model name must not contain path traversal characters"
        )));
    }
    if name.len() > MODEL_NAME_BYTES_MAX || name.contains(char::is_control) {
        let invalid = |error: InvalidName| Status::invalid_argument(error.to_string());
        return check_model_name(name).map_err(invalid);
    }
    Ok(())
}

/// A client's order for a name. Each name has at most one order at a time.
struct OrderInProgress {
    driver: Arc<Driver>,
    name: ModelId,
}

impl OrderInProgress {
    fn begin(driver: &Arc<Driver>, name: &ModelId) -> Result<Self, Status> {
        Ok(Self::begun(driver, name, driver.wait_until(|plan| !plan.is_ordered(name))?))
    }

    /// Begins an unload. Loads of the model that are warming up or waiting for a thread would delay
    /// the unload, so they are stopped. Loads on behalf of a model that needs this one continue.
    fn begin_unload(driver: &Arc<Driver>, name: &ModelId) -> Result<Self, Status> {
        let plan = driver.wait_without_loads(name, |plan| !plan.is_ordered(name))?;
        Ok(Self::begun(driver, name, plan))
    }

    fn begun(driver: &Arc<Driver>, name: &ModelId, mut plan: Guard<'_, Plan>) -> Self {
        plan.begin_order(name);
        drop(plan);
        Self { driver: driver.clone(), name: name.clone() }
    }
}

impl Drop for OrderInProgress {
    fn drop(&mut self) {
        self.driver.lock("end an order").end_order(&self.name);
        self.driver.notify();
    }
}
