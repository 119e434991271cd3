//! The backend `identity`: answers each request with its own inputs.
//!
//! Output `OUTPUT<i>` is input `INPUT<i>`, of any type and shape. Nothing is
//! copied: the response holds another count of the request's buffer. Its use
//! is in tests and measurements of everything around a model.
//!
//! Parameters of a model, all integers in strings:
//!
//! | parameter | meaning |
//! |---|---|
//! | `execute_delay_ms` | how long each execution sleeps |
//! | `instance_wise_delay_multiplier` | instance number n sleeps n times this many delays, but at least one |
//! | `creation_delay_sec` | how long loading sleeps |
//!
//! It stands in for a library of this name, which is used where there is one. Triton's
//! can also make spans of its own in traces (`enable_custom_tracing`), which is refused
//! here, and exports a counter `input_byte_size_counter`, which this one does not have.
//! It attaches four example parameters to each response; this one attaches none.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod instance;
mod pairs;
mod parameters;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_backend::{
    Backend, BackendFingerprint, Device, ExecutionPolicy, Host, Instance, LoadedVersion, Model,
    ModelFiles, Placement,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;

use crate::instance::IdentityInstance;
use crate::pairs::Pair;
use crate::parameters::Parameters;

/// The backend `identity`.
#[derive(Copy, Clone, Debug, Default)]
pub struct IdentityBackend;

impl Backend for IdentityBackend {
    fn policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        match Parameters::parse(spec) {
            Ok(parameters) if parameters.may_sleep() => ExecutionPolicy::Blocking,
            // Wrong parameters are refused when the model is loaded.
            Ok(_) | Err(_) => ExecutionPolicy::Inline,
        }
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status> {
        let parameters = Parameters::parse(&spec)?;
        let pairs = pairs::of(&spec)?;
        if !parameters.creation_delay.is_zero() {
            std::thread::sleep(parameters.creation_delay);
        }
        let name = Arc::from(spec.name.as_str());
        let next_instance = AtomicU64::new(0);
        Ok(Box::new(IdentityModel { name, pairs: pairs.into(), parameters, host, next_instance }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::of_version(env!("CARGO_PKG_VERSION")))
    }
}

struct IdentityModel {
    name: Arc<str>,
    pairs: Arc<[Pair]>,
    parameters: Parameters,
    host: Arc<dyn Host>,
    /// Instances are numbered in the order in which they are made.
    next_instance: AtomicU64,
}

impl Model for IdentityModel {
    fn instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        match at.device {
            Device::Cpu | Device::Model => {}
            Device::Gpu(_) => {
                return Err(Status::invalid_argument(
                    "'identity' backend only supports CPU instances",
                ));
            }
        }
        let number = self.next_instance.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(IdentityInstance {
            model_name: self.name.clone(),
            pairs: self.pairs.clone(),
            delay: self.parameters.delay(number),
            host: self.host.clone(),
        }))
    }
}
