//! Changes of a loaded version's instances: instances are added and removed while it serves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_config::ModelSpec;
use galatea_infer::{ModelConfigDocument, RequestObserver, Status};
use galatea_policy::InstanceId;

use super::{Loader, ModelDefinition, config_document};
use crate::instances::{BuiltInstances, InstanceKey, PlannedInstance, planned_instances};
use crate::version::LoadedModel;
use crate::warmup::{InstanceWarmup, Warmup};

/// A change of a version's instances, prepared: new instances have been added already. It is
/// finished by [`Loader::apply`] or [`InstanceChange::undo`].
pub struct InstanceChange {
    kept: Vec<IdentifiedInstance>,
    added: Vec<IdentifiedInstance>,
    surplus: Vec<IdentifiedInstance>,
    config: ModelConfigDocument,
}

/// An instance of a loaded version.
type IdentifiedInstance = (InstanceId, InstanceKey);

/// A version's instances compared with a configuration.
struct InstanceDiff<'a> {
    kept: Vec<IdentifiedInstance>,
    missing: Vec<PlannedInstance<'a>>,
    surplus: Vec<IdentifiedInstance>,
}

impl InstanceChange {
    /// Removes the added instances.
    pub fn undo(self, model: &LoadedModel) {
        model.dispatcher.remove_lanes(&ids(self.added));
    }
}

fn ids(instances: Vec<IdentifiedInstance>) -> Vec<InstanceId> {
    instances.into_iter().map(|(instance, _)| instance).collect()
}

impl Loader {
    /// Whether a loaded version lacks instances that a definition asks for. True as well if
    /// that can't be determined.
    #[must_use]
    pub fn lacks_instances(&self, model: &LoadedModel, definition: &ModelDefinition) -> bool {
        let spec = changed_spec(model, definition);
        let diff = spec.and_then(|spec| self.compare(model, &spec).map(|d| !d.missing.is_empty()));
        diff.unwrap_or(true)
    }

    /// Adds the instances that a definition asks for and that a loaded version lacks. Surplus
    /// instances stay until the change is applied.
    ///
    /// # Errors
    ///
    /// Why an instance can't be created. The version is unchanged then. A panic of the backend
    /// is an error too.
    pub fn change_instances(
        &self,
        model: &LoadedModel,
        definition: &ModelDefinition,
    ) -> Result<InstanceChange, Status> {
        let change = || {
            let spec = changed_spec(model, definition)?;
            let InstanceDiff { kept, missing, surplus } = self.compare(model, &spec)?;
            let added = self.add_instances(model, &spec, definition, missing)?;
            let config = config_document(&spec);
            Ok(InstanceChange { kept, added, surplus, config })
        };
        catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_| {
            Err(Status::internal("the backend failed while it made an instance"))
        })
    }

    /// Finishes a change: removes the surplus instances and publishes the configuration.
    pub fn apply(&self, model: &LoadedModel, change: InstanceChange) {
        let InstanceChange { kept, added, surplus, config } = change;
        let counts = (added.len(), surplus.len());
        let instances = kept.into_iter().chain(added).collect();
        model.dispatcher.remove_lanes(&ids(surplus));
        model.set_instances(instances, config);
        if counts != (0, 0) {
            let about = format_args!("'{}' version {}", model.id, model.version);
            let (added, removed) = counts;
            let line = format_args!("{about}: {added} instances were added and {removed} removed");
            self.log.write(LogLevel::Info, line);
        }
    }

    fn compare(&self, model: &LoadedModel, spec: &ModelSpec) -> Result<InstanceDiff<'_>, Status> {
        let mut surplus = model.instances();
        let mut kept = Vec::new();
        let mut missing = Vec::new();
        for planned in planned_instances(spec, &self.host_policies)? {
            match surplus.iter().position(|(_, key)| *key == planned.key) {
                Some(index) => kept.push(surplus.remove(index)),
                None => missing.push(planned),
            }
        }
        Ok(InstanceDiff { kept, missing, surplus })
    }

    fn add_instances(
        &self,
        model: &LoadedModel,
        spec: &ModelSpec,
        definition: &ModelDefinition,
        missing: Vec<PlannedInstance<'_>>,
    ) -> Result<Vec<IdentifiedInstance>, Status> {
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let warmup = Warmup::new(spec, model.files.as_ref(), &self.log)?;
        let observer: Arc<dyn RequestObserver> = model.host.clone();
        let warmup = InstanceWarmup {
            warmup: &warmup,
            assembler: model.dispatcher.sequence_assembler(),
            observer: &observer,
            log: &self.log,
        };
        let backend = definition.backend.as_ref();
        let builder = self.instance_builder(spec, model.model.as_ref(), backend, warmup);
        let BuiltInstances { lanes, keys, passive: _ } = builder.build(missing)?;
        let instances = model.dispatcher.add_lanes(lanes)?;
        Ok(instances.into_iter().zip(keys).collect())
    }
}

fn changed_spec(model: &LoadedModel, definition: &ModelDefinition) -> Result<ModelSpec, Status> {
    let spec = definition.draft.based_on(&model.spec).finish(&definition.support);
    spec.map_err(|errors| Status::invalid_argument(errors.to_string()))
}
