//! A compiled model that a worker executes: requests reach it only with shapes that it was compiled
//! for, because its code doesn't check them.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use galatea_backend::{
    AcceptedInputMemory, BeginResult, ExecutionPredictability, ExecutionTerminator, Instance,
    InstanceCreation, Model, Placement, RefusedBatch, ResumableInstance,
};
use galatea_infer::{MemoryUsage, PendingRequest, Status};

use super::shapes::CompiledShapes;

/// A model in a worker.
pub(crate) struct CheckedModel {
    model: Box<dyn Model>,
    shapes: Arc<CompiledShapes>,
    is_batched: bool,
}

struct CheckedInstance {
    instance: Box<dyn Instance>,
    shapes: Arc<CompiledShapes>,
    is_batched: bool,
    /// The duration of the last execution that another thread could end.
    took: Duration,
}

impl CheckedModel {
    pub(crate) fn new(model: Box<dyn Model>, shapes: CompiledShapes, is_batched: bool) -> Self {
        Self { model, shapes: Arc::new(shapes), is_batched }
    }
}

impl Model for CheckedModel {
    fn create_instance(&self, placement: &Placement) -> Result<Box<dyn Instance>, Status> {
        let instance = self.model.create_instance(placement)?;
        let (shapes, is_batched) = (self.shapes.clone(), self.is_batched);
        Ok(Box::new(CheckedInstance { instance, shapes, is_batched, took: Duration::MAX }))
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.model.instance_creation()
    }

    fn check_ready(&self) -> Result<(), Status> {
        self.model.check_ready()
    }

    fn readiness_may_block(&self) -> bool {
        self.model.readiness_may_block()
    }

    fn wait_until_unused(&self) {
        self.model.wait_until_unused();
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.model.memory_usage()
    }

    fn input_memory(&self) -> AcceptedInputMemory {
        self.model.input_memory()
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.model.underlying()
    }
}

impl CheckedInstance {
    /// Refuses a batch that the model wasn't compiled for.
    fn check(&self, requests: Vec<PendingRequest>) -> Result<Vec<PendingRequest>, RefusedBatch> {
        let checked = if self.is_batched {
            self.shapes.check_batch(&requests)
        } else {
            requests.chunks(1).try_for_each(|request| self.shapes.check_batch(request))
        };
        match checked {
            Ok(()) => Ok(requests),
            Err(status) => Err(RefusedBatch { requests, status }),
        }
    }
}

impl Instance for CheckedInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let requests = self.check(requests)?;
        self.instance.execute(requests)
    }

    fn guarantee(&self) -> ExecutionPredictability {
        self.instance.guarantee()
    }

    fn resumable(&mut self) -> Option<&mut dyn ResumableInstance> {
        if self.instance.resumable().is_some() { Some(self) } else { None }
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        self.instance.terminator()
    }
}

impl ResumableInstance for CheckedInstance {
    fn begin(
        &mut self,
        requests: Vec<PendingRequest>,
        patience: Duration,
    ) -> Result<BeginResult, RefusedBatch> {
        let requests = self.check(requests)?;
        let Some(resumable) = self.instance.resumable() else {
            self.instance.execute(requests)?;
            return Ok(BeginResult::Ended);
        };
        let begun = resumable.begin(requests, patience);
        self.took = resumable.took();
        begun
    }

    fn finish(&mut self) -> Result<(), RefusedBatch> {
        let Some(resumable) = self.instance.resumable() else { return Ok(()) };
        let finished = resumable.finish();
        self.took = resumable.took();
        finished
    }

    fn took(&self) -> Duration {
        self.took
    }
}
