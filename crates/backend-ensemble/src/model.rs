//! An ensemble's model and instances.

use std::sync::Arc;

use galatea_backend::{AcceptedInputMemory, Instance, Model, ModelHost, Placement, RefusedBatch};
use galatea_config::ModelSpec;
use galatea_infer::{FailureReason, PendingRequest, Status};

use crate::driver::RunDriver;
use crate::ensemble::Ensemble;
use crate::executor::Executor;
use crate::gates::Gates;
use crate::plan::EnsemblePlan;
use crate::run::Run;

pub(crate) enum EnsembleModel {
    Running(Arc<Ensemble>),
    /// The ensemble's steps would run forever, so every request fails.
    Endless(Status),
}

impl EnsembleModel {
    pub(crate) fn new(
        spec: &ModelSpec,
        host: Arc<dyn ModelHost>,
        executor: Arc<Executor>,
    ) -> Result<Self, Status> {
        let models = host.composing_models().ok_or_else(|| {
            Status::internal(format!("ensemble '{}' was loaded without its models", spec.name))
        })?;
        if let Some(status) = endless(spec) {
            return Ok(Self::Endless(status));
        }
        let plan = EnsemblePlan::new(spec, models.as_ref(), host.model_version())?;
        let gates = Gates::new(&plan.graph, plan.max_inflight_requests).map(Arc::new);
        Ok(Self::Running(Arc::new(Ensemble { plan, models, gates, host, executor })))
    }
}

/// The reason why requests to an ensemble would never end, if that is the case. Triton loads such
/// an ensemble and runs its steps over and over.
fn endless(spec: &ModelSpec) -> Option<Status> {
    let (tensor, step) =
        spec.ensemble()?.input_produced_by_step(|name| spec.input(name).is_some())?;
    Some(Status::internal(format!(
        "ensemble '{}' can't run: its input '{tensor}' is made by step {step} as well",
        spec.name
    )))
}

impl Model for EnsembleModel {
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(match self {
            Self::Running(ensemble) => Box::new(EnsembleInstance { ensemble: ensemble.clone() }),
            Self::Endless(status) => Box::new(FailingInstance(status.clone())),
        })
    }

    /// The ensemble itself doesn't read tensors. Requests to its steps are admitted like any
    /// others.
    fn input_memory(&self) -> AcceptedInputMemory {
        AcceptedInputMemory::Device
    }
}

/// Fails each request.
struct FailingInstance(Status);

impl Instance for FailingInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        for request in requests {
            request.fail(self.0.clone(), FailureReason::Other);
        }
        Ok(())
    }
}

/// Starts a run for each request. The instance has no state of its own.
struct EnsembleInstance {
    ensemble: Arc<Ensemble>,
}

impl Instance for EnsembleInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        for request in requests {
            let cancel = request.request().cancel.clone();
            if let Some(driver) = RunDriver::new(&self.ensemble, request) {
                Run::start(&self.ensemble, driver, &cancel);
            }
        }
        Ok(())
    }
}
