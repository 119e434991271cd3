//! Changes to a loaded version's instances, which can be added and removed while the version is
//! serving.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_config::ModelSpec;
use galatea_control::ModelConfigDocument;
use galatea_infer::{RequestObserver, Status};
use galatea_policy::InstanceId;

use super::{ModelDefinition, VersionLoader, config_document};
use crate::instances::{
    BuiltInstances, InstanceBuilder, InstanceKey, PassiveInstance, PlannedInstance,
    distinct_requirements, planned_instances,
};
use crate::rate_limiter::ResourceRequirements;
use crate::version::LoadedModel;
use crate::warmup::{InstanceWarmup, Warmup};

/// A prepared change to a version's instances. The new instances have already been added.
/// [`VersionLoader::apply_instance_change`] or [`InstanceChange::undo`] finishes the change.
pub struct InstanceChange {
    kept: Vec<IdentifiedInstance>,
    added: Vec<IdentifiedInstance>,
    added_passive: Vec<PassiveInstance>,
    surplus: Vec<IdentifiedInstance>,
    surplus_passive: Vec<InstanceKey>,
    config: ModelConfigDocument,
}

/// An executing instance of a loaded version.
type IdentifiedInstance = (InstanceId, InstanceKey);

/// The differences between a version's instances and a configuration.
struct InstanceDiff<'a> {
    kept: Vec<IdentifiedInstance>,
    missing: Vec<PlannedInstance<'a>>,
    surplus: Vec<IdentifiedInstance>,
    surplus_passive: Vec<InstanceKey>,
}

impl InstanceChange {
    /// Removes the added instances.
    pub fn undo(self, model: &LoadedModel) {
        model.dispatcher.remove_lanes(&ids(&self.added));
    }
}

fn ids(instances: &[IdentifiedInstance]) -> Vec<InstanceId> {
    instances.iter().map(|(instance, _)| *instance).collect()
}

impl VersionLoader {
    /// Returns true if a definition differs from the loaded model only in its instances. Settings
    /// that the backend completed, and defaults, are treated as if they were specified.
    #[must_use]
    pub fn differs_in_instances_only(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> bool {
        definition.draft.matches_loaded_except_instances(&model.spec, &definition.support)
    }

    /// Returns true if the instances that a definition requests can be added to a loaded version. A
    /// version loaded without rate limiter resources can't start to require them.
    #[must_use]
    pub fn can_change_instances(&self, model: &LoadedModel, definition: &ModelDefinition) -> bool {
        if self.rate_limiter.is_none() || model.dispatcher.needs_permits() {
            return true;
        }
        self.changed_spec(model, definition)
            .and_then(|spec| distinct_requirements(&spec))
            .is_ok_and(|requirements| requirements.iter().all(ResourceRequirements::is_empty))
    }

    /// Returns true if a loaded version lacks instances that a definition requests, or if that
    /// can't be determined.
    #[must_use]
    pub fn lacks_instances(&self, model: &LoadedModel, definition: &ModelDefinition) -> bool {
        let spec = self.changed_spec(model, definition);
        let diff = spec.and_then(|spec| self.compare(model, &spec).map(|d| !d.missing.is_empty()));
        diff.unwrap_or(true)
    }

    /// Adds the instances that a definition requests and a loaded version lacks. Surplus instances
    /// stay until the change is applied.
    ///
    /// # Errors
    ///
    /// Returns an error if an instance can't be created, in which case the version is unchanged. A
    /// panic in the backend is also an error.
    pub fn change_instances(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> Result<InstanceChange, Status> {
        let change = || {
            let spec = self.changed_spec(model, definition)?;
            let InstanceDiff { kept, missing, surplus, surplus_passive } =
                self.compare(model, &spec)?;
            let (added, added_passive) = self.add_instances(model, &spec, definition, missing)?;
            let config = config_document(&spec);
            Ok(InstanceChange { kept, added, added_passive, surplus, surplus_passive, config })
        };
        catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_| {
            Err(Status::internal("the backend failed while it made an instance"))
        })
    }

    /// Finishes a change by publishing the configuration and removing the surplus instances. Like
    /// Triton, waits until the surplus instances have executed their batches and are destroyed,
    /// unless they serve sequences. A surplus instance stays if all other instances need GPUs that
    /// have been lost in the meantime.
    pub fn apply_instance_change(&self, model: &LoadedModel, change: InstanceChange) {
        let InstanceChange { kept, added, added_passive, mut surplus, surplus_passive, config } =
            change;
        let staying = model.set_instances(kept.into_iter().chain(added.clone()).collect(), config);
        surplus.retain(|(instance, _)| Some(*instance) != staying);
        let added_count = added.len().saturating_add(added_passive.len());
        let removed_count = surplus.len().saturating_add(surplus_passive.len());
        model.retire_lost_gpus();
        if staying.is_some() {
            let line = format_args!(
                "'{}' version {}: one instance stays that would have been removed, because the \
                 others are on lost GPUs",
                model.id, model.version
            );
            self.log.write(LogLevel::Warning, line);
        }
        model.passive.change(added_passive, &surplus_passive);
        let surplus = ids(&surplus);
        model.dispatcher.remove_lanes(&surplus);
        if !model.dispatcher.has_sequences() {
            model.dispatcher.wait_for_removed(&surplus);
        }
        if (added_count, removed_count) != (0, 0) {
            let line = format_args!(
                "'{}' version {}: {added_count} instances were added and {removed_count} removed",
                model.id, model.version
            );
            self.log.write(LogLevel::Info, line);
        }
    }

    fn compare(&self, model: &LoadedModel, spec: &ModelSpec) -> Result<InstanceDiff<'_>, Status> {
        let mut surplus = model.instances();
        let mut surplus_passive = model.passive.keys();
        let mut kept = Vec::new();
        let mut missing = Vec::new();
        for planned in planned_instances(spec, &self.host_policies)? {
            if planned.is_passive {
                match surplus_passive.iter().position(|key| *key == planned.key) {
                    Some(index) => drop(surplus_passive.remove(index)),
                    None => missing.push(planned),
                }
                continue;
            }
            match surplus.iter().position(|(_, key)| *key == planned.key) {
                Some(index) => kept.push(surplus.remove(index)),
                None => missing.push(planned),
            }
        }
        Ok(InstanceDiff { kept, missing, surplus, surplus_passive })
    }

    fn add_instances(
        &self,
        model: &LoadedModel,
        spec: &ModelSpec,
        definition: &ModelDefinition,
        missing: Vec<PlannedInstance<'_>>,
    ) -> Result<(Vec<IdentifiedInstance>, Vec<PassiveInstance>), Status> {
        if missing.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let warmup = Warmup::new(spec, model.files.as_ref(), &self.log)?;
        let observer: Arc<dyn RequestObserver> = model.host.clone();
        let warmup = InstanceWarmup {
            warmup: &warmup,
            assembler: model.dispatcher.sequence_assembler(),
            observer: &observer,
            log: &self.log,
            stop: &definition.stop,
            // The scheduler has already learned from requests.
            costs: None,
        };
        let backend = definition.backend.as_ref();
        let builder =
            self.instance_builder(spec, model.model.as_ref(), backend, &model.host, warmup);
        let builder =
            InstanceBuilder { needs_threads: model.dispatcher.needs_threads(), ..builder };
        let BuiltInstances { lanes, keys, passive } = builder.build(missing)?;
        let instances = model.dispatcher.add_lanes(lanes)?;
        Ok((instances.into_iter().zip(keys).collect(), passive))
    }

    fn changed_spec(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> Result<ModelSpec, Status> {
        let spec = definition
            .draft
            .apply_instances_to(&model.spec)
            .into_validated_spec(&self.support(definition));
        spec.map_err(|errors| Status::invalid_argument(errors.to_string()))
    }
}
