//! The `token_counter` backend, which demonstrates how text-generating models use iterative
//! sequences and continuous batching, but without a model.
//!
//! A request's input `COUNT` is the number of tokens that the request wants. Each execution
//! produces the next token for every request in the batch and reschedules the requests that want
//! more. New requests join at the next execution, and finished ones leave immediately. Each token's
//! value is its index.
//!
//! | tensor | | |
//! |---|---|---|
//! | `COUNT` | input, INT32, `[ 1 ]` | number of tokens, from 0 to 1,048,576 |
//! | `TOKEN` | output, INT32, `[ -1 ]` | decoupled: this execution's token, from 0; otherwise all tokens |
//! | `LIVE` | output, INT32, `[ 1 ]`, optional | number of requests in this execution |
//!
//! A decoupled model sends a response for each token, or only the final flag if there are no
//! tokens. Other models send one response after the last token.
//!
//! The backend's only state is the number of tokens that a request has received. If the
//! configuration has an implicit state, which must be INT32 with shape `[ 1 ]`, the number is
//! stored there; otherwise, it is stored in the instance. If the model's outputs include the
//! state's output, that output contains the number.
//!
//! The parameter `DELAY_MICROSECONDS` is the duration of an execution.
//!
//! A model needs `sequence_batching { iterative_sequence: true }`.

mod instance;
mod interface;
#[cfg(test)]
mod tests;
mod token_counts;

use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, Instance, LoadedVersion, Model, ModelFiles,
    ModelHost, Placement,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::checks::refused;
use crate::token_counter::instance::TokenCounterInstance;
use crate::token_counter::interface::Interface;
use crate::token_counter::token_counts::TokenCounts;

/// The `token_counter` backend.
#[derive(Copy, Clone, Debug, Default)]
pub struct TokenCounterBackend;

impl Backend for TokenCounterBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        // A request executes until it has received all of its tokens, which would block an I/O
        // thread.
        ExecutionPolicy::Blocking
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let interface = Interface::new(&spec).map_err(|reason| refused(&spec, &reason))?;
        Ok(Box::new(TokenCounterModel { interface: Arc::new(interface), host }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::from_version(env!("CARGO_PKG_VERSION")))
    }
}

struct TokenCounterModel {
    interface: Arc<Interface>,
    host: Arc<dyn ModelHost>,
}

impl Model for TokenCounterModel {
    /// Instances may be on GPUs, because the demonstrations run wherever models do.
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(TokenCounterInstance {
            interface: self.interface.clone(),
            token_counts: TokenCounts::new(self.interface.state.clone()),
            host: self.host.clone(),
        }))
    }
}
