//! The backend for ensembles, which are models composed of other models.
//!
//! An instance never computes and never blocks. It starts a run for each request. The run sends
//! requests to the composing models, and the threads that deliver their replies drive it.
//! [`galatea_policy::EnsembleRun`] decides which steps run when; this crate performs the resulting
//! actions. Steps pass tensors on as counted references, so nothing is copied.
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | the configuration, with all names looked up and numbered |
//! | `run` | one request on its way: an inbox and the slot of its driver; start here |
//! | `driver` | the state of a run: drives the pure machine |
//! | `call` | a request to a composing model |
//! | `event` | what happens to a run |
//! | `tensor` | a tensor between steps, and its shape for each model |
//! | `gates` | `max_inflight_requests`, shared by all requests |
//! | `executor` | which thread drives a run |
//!
//! # What it is not
//!
//! The crate doesn't depend on the scheduler, the server or other backends. It gets the composing
//! models from [`ModelHost::composing_models`]. `validate_ensemble` in the configuration has already
//! checked that an ensemble's models fit together.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod call;
mod driver;
mod ensemble;
mod event;
mod executor;
mod gates;
mod model;
mod plan;
mod run;
mod tensor;
#[cfg(test)]
mod tests;
mod times;

use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, LoadedVersion, Model, ModelFiles, ModelHost,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::executor::Executor;
use crate::model::EnsembleModel;

/// The backend for models with the platform `ensemble`.
#[derive(Debug)]
pub struct EnsembleBackend {
    executor: Arc<Executor>,
}

impl EnsembleBackend {
    /// Starts the backend's thread, which takes over runs that would occupy other threads for too
    /// long.
    ///
    /// # Errors
    ///
    /// `Internal` if the thread can't be started.
    pub fn new() -> Result<Self, Status> {
        Ok(Self { executor: Executor::start()? })
    }
}

impl Backend for EnsembleBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        ExecutionPolicy::Inline
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        Ok(Box::new(EnsembleModel::new(&spec, host, self.executor.clone())?))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::from_version(env!("CARGO_PKG_VERSION")))
    }
}
