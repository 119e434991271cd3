//! A loaded ensemble and its instances.

use std::sync::Arc;

use galatea_backend::{ComposingModels, Host, Instance, Model, Placement, RefusedBatch};
use galatea_config::ModelSpec;
use galatea_infer::{PendingRequest, Status};

use crate::gates::Gates;
use crate::plan::Plan;
use crate::run::Run;
use crate::turns::Turns;

/// What all requests to an ensemble share.
pub(crate) struct Ensemble {
    pub(crate) plan: Plan,
    pub(crate) models: Arc<dyn ComposingModels>,
    /// There if steps may have only so many requests at a time.
    pub(crate) gates: Option<Arc<Gates>>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) turns: Arc<Turns>,
}

pub(crate) struct EnsembleModel {
    ensemble: Arc<Ensemble>,
}

impl EnsembleModel {
    pub(crate) fn new(
        spec: &ModelSpec,
        host: Arc<dyn Host>,
        turns: Arc<Turns>,
    ) -> Result<Self, Status> {
        let models = host.composing_models().ok_or_else(|| {
            Status::internal(format!("ensemble '{}' was loaded without its models", spec.name))
        })?;
        let plan = Plan::new(spec, models.as_ref(), host.model_version())?;
        let gates = Gates::new(&plan.graph, plan.max_inflight_requests).map(Arc::new);
        Ok(Self { ensemble: Arc::new(Ensemble { plan, models, gates, host, turns }) })
    }
}

impl Model for EnsembleModel {
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(EnsembleInstance { ensemble: self.ensemble.clone() }))
    }
}

/// Starts requests; there is nothing that two of them would share.
struct EnsembleInstance {
    ensemble: Arc<Ensemble>,
}

impl Instance for EnsembleInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        for request in requests {
            Run::start(&self.ensemble, request);
        }
        Ok(())
    }
}
