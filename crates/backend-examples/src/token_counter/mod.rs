//! The backend `token_counter`, which demonstrates iterative sequences and continuous batching in
//! the way that text-generating models use them, but without a model.
//!
//! The input `COUNT` of a request is the number of tokens that it wants. Each execution makes the
//! next token of every request in the batch and reschedules the requests that want more: new
//! requests join at the next execution, and finished ones leave at once. Each token is its own
//! index.
//!
//! | tensor | | |
//! |---|---|---|
//! | `COUNT` | input, INT32, `[ 1 ]` | number of tokens, from 0 to 1,048,576 |
//! | `TOKEN` | output, INT32, `[ -1 ]` | decoupled: this execution's token, from 0; otherwise all tokens |
//! | `LIVE` | output, INT32, `[ 1 ]`, optional | number of requests in this execution |
//!
//! A decoupled model sends a response for each token, or only the final flag if there are none. Any
//! other model sends one response after the last token.
//!
//! The backend's only state is the number of tokens that a request has received. It is stored in
//! the implicit state of the model's sequences if the configuration has one, INT32 of shape `[ 1
//! ]`, and in the instance otherwise. If the model lists the state's output among its outputs, the
//! output shows it.
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
    Backend, BackendFingerprint, ExecutionPolicy, Host, Instance, LoadedVersion, Model, ModelFiles,
    Placement,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::checks::refused;
use crate::token_counter::instance::TokenCounterInstance;
use crate::token_counter::interface::Interface;
use crate::token_counter::token_counts::TokenCounts;

/// The backend `token_counter`.
#[derive(Copy, Clone, Debug, Default)]
pub struct TokenCounterBackend;

impl Backend for TokenCounterBackend {
    fn execution_policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        // A request executes until it has all of its tokens, which would hold up an I/O thread.
        ExecutionPolicy::Blocking
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        let interface = Interface::new(&spec).map_err(|reason| refused(&spec, &reason))?;
        Ok(Box::new(TokenCounterModel { interface: Arc::new(interface), host }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::of_version(env!("CARGO_PKG_VERSION")))
    }
}

struct TokenCounterModel {
    interface: Arc<Interface>,
    host: Arc<dyn Host>,
}

impl Model for TokenCounterModel {
    /// An instance may be on a GPU, because the demonstrations run wherever models do.
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(TokenCounterInstance {
            interface: self.interface.clone(),
            token_counts: TokenCounts::new(self.interface.state.clone()),
            host: self.host.clone(),
        }))
    }
}
