//! Passive instances, which no scheduler uses: some backends create them for themselves.

use galatea_backend::{Instance, InstanceCreation, Model, Placement};
use galatea_infer::{MemoryUsage, Status};
use galatea_stdx::Lock;

/// A model that keeps its passive instances.
pub(crate) fn keep_passive_instances(
    model: Box<dyn Model>,
    instances: Vec<Box<dyn Instance>>,
) -> Box<dyn Model> {
    if instances.is_empty() {
        return model;
    }
    Box::new(ModelWithPassiveInstances { _instances: Lock::new(instances), model })
}

struct ModelWithPassiveInstances {
    /// Dropped before the model. The lock only makes them `Sync`: nothing takes it.
    _instances: Lock<Vec<Box<dyn Instance>>>,
    model: Box<dyn Model>,
}

impl Model for ModelWithPassiveInstances {
    fn create_instance(&self, placement: &Placement) -> Result<Box<dyn Instance>, Status> {
        self.model.create_instance(placement)
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.model.instance_creation()
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.model.memory_usage()
    }

    fn check_ready(&self) -> Result<(), Status> {
        self.model.check_ready()
    }

    fn readiness_may_block(&self) -> bool {
        self.model.readiness_may_block()
    }
}
