//! The backend `token_counter`: shows iterative sequences and continuous
//! batching, as a model that generates text has them, without a model.
//!
//! A request asks with `COUNT` for a number of tokens. Each execution makes the
//! next token of every request in the batch, and the requests that are not done
//! give themselves back to the scheduler: new requests join at the next
//! execution, and finished ones leave at once. A token is its own number.
//!
//! | tensor | | |
//! |---|---|---|
//! | `COUNT` | input, INT32, `[ 1 ]` | how many tokens, from 0 to 1,048,576 |
//! | `TOKEN` | output, INT32, `[ -1 ]` | decoupled: this execution's token, from 0; otherwise all tokens |
//! | `LIVE` | output, INT32, `[ 1 ]`, optional | how many requests shared this execution |
//!
//! A decoupled model answers with a response for each token, and an empty end if
//! there are none; any other with one response after the last token.
//!
//! How many tokens a request has had is the backend's only state. It is kept in
//! the implicit state of the model's sequences if the configuration has one,
//! INT32 of shape `[ 1 ]`, and in the instance otherwise. The state's output, if
//! it is among the model's outputs, shows it.
//!
//! The parameter `DELAY_MICROSECONDS` says how long an execution lasts.
//!
//! It needs `sequence_batching { iterative_sequence: true }`, and is no example
//! for a model with files: it reads none.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod instance;
mod interface;
mod steps;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use galatea_backend::{
    Backend, BackendFingerprint, Device, ExecutionPolicy, Host, Instance, LoadedVersion, Model,
    ModelFiles, Placement,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::instance::CountingInstance;
use crate::interface::Interface;
use crate::steps::Steps;

/// The backend `token_counter`.
#[derive(Copy, Clone, Debug, Default)]
pub struct TokenCounterBackend;

impl Backend for TokenCounterBackend {
    fn policy(&self, _: &ModelSpec) -> ExecutionPolicy {
        // A request comes back until it is done, which no door's thread should
        // have to wait for.
        ExecutionPolicy::Blocking
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        let interface = Interface::of(&spec).map_err(|reason| {
            Status::invalid_argument(format!("model '{}': {reason}", spec.name))
        })?;
        Ok(Box::new(CountingModel { interface: Arc::new(interface), host }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::of_version(env!("CARGO_PKG_VERSION")))
    }
}

struct CountingModel {
    interface: Arc<Interface>,
    host: Arc<dyn Host>,
}

impl Model for CountingModel {
    fn instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        match at.device {
            Device::Cpu | Device::Model => {}
            Device::Gpu(_) => {
                return Err(Status::invalid_argument(
                    "'token_counter' backend only supports CPU instances",
                ));
            }
        }
        Ok(Box::new(CountingInstance {
            interface: self.interface.clone(),
            steps: Steps::new(self.interface.state.clone()),
            host: self.host.clone(),
        }))
    }
}
