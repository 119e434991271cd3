//! A plug-in's model as the engine sees it: first opened, then loaded.

use std::any::Any;
use std::sync::{Arc, Weak};

use galatea_backend::{
    AcceptedInputMemory, AutoCompletePermission, Instance as InstanceTrait, InstanceCreation,
    Model as ModelTrait, ModelFiles, ModelHost, Placement, UnconfiguredModel,
};
use galatea_config::{ConfigDraft, InstanceGroup, InstanceKind, ModelSpec, SupportedFeatures};
use galatea_infer::{MemoryUsage, Status};
use galatea_stdx::Lock;

use crate::backend::Backend;
use crate::instance::{Instance, InstanceCount, InstanceGuard};
use crate::memory_usage::MemoryTotal;
use crate::model::Model;
use crate::plugin_instance::PluginInstance;

/// A model whose configuration is not yet in force.
pub(crate) struct UnconfiguredPluginModel(Model);

impl UnconfiguredPluginModel {
    /// Calls the backend's model initialisation. The backend's changes to the configuration go into
    /// `draft`.
    pub(crate) fn open(
        backend: Arc<Backend>,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoCompletePermission,
        support: &SupportedFeatures,
    ) -> Result<Self, Status> {
        Model::open(backend, draft, files, auto_complete, support).map(Self)
    }
}

impl UnconfiguredModel for UnconfiguredPluginModel {
    fn finish_load(
        self: Box<Self>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn ModelTrait>, Status> {
        self.0.info.start_serving(spec, host)?;
        Ok(Box::new(PluginModel {
            model: Arc::new(self.0),
            instances: Lock::default(),
            count: Arc::default(),
        }))
    }
}

/// A loaded model.
struct PluginModel {
    model: Arc<Model>,
    /// The instances, kept for readiness checks and memory usage.
    instances: Lock<Vec<Weak<Instance>>>,
    count: Arc<InstanceCount>,
}

impl ModelTrait for PluginModel {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn InstanceTrait>, Status> {
        let instance =
            PluginInstance::initialize(self.model.clone(), at, self.count.count_instance())?;
        let mut instances = self.instances.lock("add an instance");
        instances.retain(|one| one.strong_count() > 0);
        instances.push(instance.downgrade());
        drop(instances);
        Ok(Box::new(instance))
    }

    /// GPU instances accept inputs in GPU memory. CPU instances of the same model get copies.
    fn input_memory(&self) -> AcceptedInputMemory {
        let Ok(serving) = self.model.serving() else { return AcceptedInputMemory::Host };
        let on_gpu = |group: &InstanceGroup| group.kind == InstanceKind::Gpu;
        if serving.spec.instance_groups.iter().any(on_gpu) {
            AcceptedInputMemory::Device
        } else {
            AcceptedInputMemory::Host
        }
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        let instances: Vec<InstanceGuard> = self
            .instances
            .lock("sum up memory usage")
            .iter()
            .filter_map(Weak::upgrade)
            .map(InstanceGuard::new)
            .collect();
        let mut total = MemoryTotal::default();
        total.add(&self.model.info.memory_usage);
        instances.iter().for_each(|instance| instance.add_memory_usage(&mut total));
        total.into_usage()
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.model.info.backend.instance_creation()
    }

    fn check_ready(&self) -> Result<(), Status> {
        if !self.readiness_may_block() {
            return Ok(());
        }
        let instances: Vec<InstanceGuard> = self
            .instances
            .lock("check readiness")
            .iter()
            .filter_map(Weak::upgrade)
            .map(InstanceGuard::new)
            .collect();
        instances.iter().try_for_each(InstanceGuard::ready)
    }

    /// A Python model asks its worker process, which may block.
    fn readiness_may_block(&self) -> bool {
        self.model.info.backend.entry_points.instance_ready.is_some()
    }

    /// As in Triton, a model stays loaded while its backend holds requests, responses or factories.
    fn wait_until_unused(&self) {
        self.count.wait_for_none();
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.model.clone())
    }
}
