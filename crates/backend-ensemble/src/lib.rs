//! Ensembles: models that are made of other models, as a backend.
//!
//! An instance never computes and never waits: it hands each request to a run,
//! which sends requests to the composing models and is driven by their answers,
//! on whichever threads they come. What runs when is decided by
//! [`galatea_policy::EnsembleRun`]; here its actions are performed. Tensors go
//! from step to step as counted references, so nothing is copied.
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | the configuration with everything looked up and numbered |
//! | `run` | one request on its way: mailbox, driver of the pure machine |
//! | `call` | a request to a composing model |
//! | `tensor` | what travels between steps, and its shape before each model |
//! | `gates` | `max_inflight_requests`, shared by all requests |
//! | `turns` | which thread drives a run |
//!
//! # What it is not
//!
//! It knows no scheduler, no server and no other backend: composing models come
//! from [`Host::composing_models`]. That an ensemble's models fit together is
//! checked before, by `validate_ensemble` of the configuration.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod call;
mod gates;
mod model;
mod plan;
mod run;
mod tensor;
#[cfg(test)]
mod tests;
mod times;
mod turns;

use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, Host, LoadedVersion, Model, ModelFiles,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::model::EnsembleModel;
use crate::turns::Turns;

/// The backend of models with the platform `ensemble`.
#[derive(Debug)]
pub struct EnsembleBackend {
    turns: Arc<Turns>,
}

impl EnsembleBackend {
    /// The backend, with a thread for work that nobody else gets round to.
    ///
    /// # Errors
    ///
    /// `Internal` if the thread can't be started.
    pub fn new() -> Result<Self, Status> {
        Ok(Self { turns: Turns::start()? })
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
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        Ok(Box::new(EnsembleModel::new(&spec, host, self.turns.clone())?))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::of_version(env!("CARGO_PKG_VERSION")))
    }
}
