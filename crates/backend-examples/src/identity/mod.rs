//! The `identity` backend, which responds to each request with the request's own inputs.
//!
//! The output `OUTPUT<i>` equals the input `INPUT<i>`, which may have any type and shape. Nothing
//! is copied: the response shares the request's buffers. The backend is useful for testing and
//! measuring everything around a model.
//!
//! All but one of the model parameters are integers in strings:
//!
//! | parameter | meaning |
//! |---|---|
//! | `execute_delay_ms` | how long each execution sleeps |
//! | `instance_wise_delay_multiplier` | instance number n sleeps this value times n delays, but at least one |
//! | `creation_delay_sec` | how long loading sleeps |
//! | `enable_custom_tracing` | `true` reports activities to traces, each of which takes a tenth of a second |
//! | `nested_span_count` | how many of them there are within each other |
//! | `single_activity_frequency` | of this many nested ones, one reports a single activity too |
//!
//! Each response contains four example parameters. As in Triton, the size of each returned input is
//! added to the counter `input_byte_size_counter` of the model and version.
//!
//! A library with this name in the backend directory replaces the backend.

mod activities;
mod counters;
mod delays;
mod instance;
mod tensor_pairs;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_backend::{
    AcceptedInputMemory, Backend, BackendFingerprint, ExecutionPolicy, Instance, LoadedVersion,
    Model, ModelFiles, ModelHost, Placement, missing_config_error,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::{ResponseParameters, Status};

use crate::checks::refused;
use crate::identity::activities::Activities;
pub use crate::identity::counters::{InputByteCounter, InputByteCounterFactory};
use crate::identity::delays::Delays;
use crate::identity::instance::{IdentityInstance, example_parameters};
use crate::identity::tensor_pairs::{TensorPair, tensor_pairs};

/// The `identity` backend.
#[derive(Clone, Default)]
pub struct IdentityBackend {
    counters: Option<Arc<dyn InputByteCounterFactory>>,
}

impl IdentityBackend {
    /// Creates a backend that counts the bytes in its models' inputs.
    #[must_use]
    pub fn with_input_byte_counters(counters: Arc<dyn InputByteCounterFactory>) -> Self {
        Self { counters: Some(counters) }
    }
}

impl std::fmt::Debug for IdentityBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityBackend").field("counts", &self.counters.is_some()).finish()
    }
}

impl Backend for IdentityBackend {
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        // Invalid parameters are refused when the model is loaded.
        let delays = Delays::parse(spec).is_ok_and(|delays| delays.delay_execution());
        let reports = Activities::parse(spec).is_ok_and(|activities| activities.is_some());
        if delays || reports { ExecutionPolicy::Blocking } else { ExecutionPolicy::Inline }
    }

    /// Doesn't complete anything.
    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        _files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        if draft.has_explicit_config() { Ok(()) } else { Err(missing_config_error(draft)) }
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let delays = Delays::parse(&spec)?;
        let activities = Activities::parse(&spec).map_err(|reason| refused(&spec, &reason))?;
        let pairs = tensor_pairs(&spec).map_err(|reason| refused(&spec, &reason))?;
        if !delays.creation.is_zero() {
            std::thread::sleep(delays.creation);
        }
        let name = Arc::from(spec.name.as_str());
        let next_instance = AtomicU64::new(0);
        let counters = self.counters.as_ref();
        let counter = counters.map(|all| all.counter(&spec.name, host.model_version()));
        let (counter, parameters) = (counter.transpose()?, example_parameters());
        let (pairs, batches) = (pairs.into(), spec.max_batch_size > 0);
        Ok(Box::new(IdentityModel {
            name,
            pairs,
            delays,
            activities,
            batches,
            host,
            counter,
            parameters,
            next_instance,
        }))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        Some(BackendFingerprint::from_version(env!("CARGO_PKG_VERSION")))
    }
}

struct IdentityModel {
    name: Arc<str>,
    pairs: Arc<[TensorPair]>,
    delays: Delays,
    activities: Option<Activities>,
    batches: bool,
    /// Counts the bytes in the model's inputs.
    counter: Option<Arc<dyn InputByteCounter>>,
    parameters: ResponseParameters,
    host: Arc<dyn ModelHost>,
    /// Instances are numbered in order of creation.
    next_instance: AtomicU64,
}

impl Model for IdentityModel {
    /// Instances may be on GPUs, because they don't read tensors.
    fn create_instance(&self, _: &Placement) -> Result<Box<dyn Instance>, Status> {
        let number = self.next_instance.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(IdentityInstance {
            model_name: self.name.clone(),
            pairs: self.pairs.clone(),
            delay: self.delays.execution(number),
            activities: self.activities,
            batches: self.batches,
            host: self.host.clone(),
            counter: self.counter.clone(),
            parameters: self.parameters.clone(),
        }))
    }

    fn input_memory(&self) -> AcceptedInputMemory {
        AcceptedInputMemory::Unread
    }
}
