//! The model of an ensemble and its instances.

use std::sync::Arc;

use galatea_backend::{Host, Instance, Model, Placement, RefusedBatch};
use galatea_config::ModelSpec;
use galatea_infer::{PendingRequest, Status};

use crate::driver::RunDriver;
use crate::ensemble::Ensemble;
use crate::executor::Executor;
use crate::gates::Gates;
use crate::plan::EnsemblePlan;
use crate::run::Run;

pub(crate) struct EnsembleModel {
    ensemble: Arc<Ensemble>,
}

impl EnsembleModel {
    pub(crate) fn new(
        spec: &ModelSpec,
        host: Arc<dyn Host>,
        executor: Arc<Executor>,
    ) -> Result<Self, Status> {
        let models = host.composing_models().ok_or_else(|| {
            Status::internal(format!("ensemble '{}' was loaded without its models", spec.name))
        })?;
        let plan = EnsemblePlan::new(spec, models.as_ref(), host.model_version())?;
        let gates = Gates::new(&plan.graph, plan.max_inflight_requests).map(Arc::new);
        Ok(Self { ensemble: Arc::new(Ensemble { plan, models, gates, host, executor }) })
    }
}

impl Model for EnsembleModel {
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(EnsembleInstance { ensemble: self.ensemble.clone() }))
    }
}

/// Starts a run for each request. It has no state of its own.
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
