//! The three traits that every backend implements, native or behind a C
//! boundary: [`Backend`], [`Model`] and [`Instance`]; and the one of response
//! caches, [`ResponseCache`].
//!
//! A backend receives owned requests and never sees a server, a scheduler or
//! another backend. Threads are the engine's business: it calls
//! [`Instance::execute`] from one thread at a time.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod agents;
mod batching;
mod cache;
mod files;
mod fingerprint;
mod shared_library;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::{ExecutionTimes, InferenceService, MemoryUsage, PendingRequest, Status};

pub use agents::ModelAgents;
pub use batching::BatchRule;
pub use cache::{CacheKey, ResponseCache};
pub use files::{ExpectedFileSize, FileFingerprint, ModelFiles};
pub use fingerprint::BackendFingerprint;
pub use shared_library::is_library_truncated;

/// How the engine may call a backend's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ExecutionPolicy {
    /// Executing takes a while: each instance gets a thread of its own.
    Blocking,
    /// Executing is over at once and never waits: the engine calls it on
    /// whichever thread made the batch, and saves two thread switches.
    Inline,
}

/// A kind of model, such as ONNX Runtime's.
pub trait Backend: Send + Sync {
    /// How its instances may be called, for a model with this configuration.
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy;

    /// Fills in what `draft` leaves open and the model's files tell: inputs,
    /// outputs, the batch size. What the draft says stays. Backends whose models have no
    /// file that could tell anything leave this out.
    ///
    /// # Errors
    ///
    /// A status whose message names the file and what is wrong with it.
    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        let _ = (draft, files);
        Ok(())
    }

    /// Whether its instances are told of their group's `secondary_devices`. Otherwise a
    /// remark says that they change nothing.
    fn supports_secondary_devices(&self) -> bool {
        false
    }

    /// Begins to load one version, before its configuration is complete: what the
    /// server calls first.
    ///
    /// Backends that need no more than [`Backend::auto_complete_config`] leave this as
    /// it is. One whose models must exist to complete their configuration keeps
    /// what it made in what it returns.
    ///
    /// # Errors
    ///
    /// As [`Backend::auto_complete_config`].
    fn begin_load(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoComplete,
    ) -> Result<Option<Box<dyn UnconfiguredModel>>, Status> {
        match auto_complete {
            AutoComplete::Enabled => self.auto_complete_config(draft, files).map(|()| None),
            AutoComplete::Disabled => Ok(None),
        }
    }

    /// Loads one version of a model that [`Backend::begin_load`] kept nothing of.
    ///
    /// # Errors
    ///
    /// A status whose message names what in the configuration or the files
    /// is wrong.
    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status>;

    /// The rule for batches that a loaded version brings, if it does. Asked for
    /// models with the dynamic batcher or none, before there are instances.
    ///
    /// # Errors
    ///
    /// A status that says why the rule can't be had.
    fn batch_rule(&self, loaded: &LoadedVersion<'_>) -> Result<Option<Box<dyn BatchRule>>, Status> {
        let _ = loaded;
        Ok(None)
    }

    /// What this backend's answers for a loaded version depend on, beside the version
    /// itself: as it was when the backend was made, not as it is now. `None` if it
    /// can't be told from what it was in another run of the server; then no answer of
    /// another run is used.
    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let _ = loaded;
        None
    }
}

/// A version of a model that has no instances yet.
#[derive(Copy, Clone)]
pub struct LoadedVersion<'a> {
    /// Its configuration.
    pub spec: &'a Arc<ModelSpec>,
    /// Its files.
    pub files: &'a dyn ModelFiles,
    /// What its backend made of it.
    pub model: &'a dyn Model,
    /// What it was given to tell things to.
    pub host: &'a Arc<dyn Host>,
}

/// Whether a backend may fill in what a configuration leaves out.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AutoComplete {
    /// It may.
    Enabled,
    /// The configuration is meant as it is written.
    Disabled,
}

/// A version of a model that exists, but whose configuration is not settled yet.
///
/// Dropping it gives the model up.
pub trait UnconfiguredModel: Send {
    /// Goes on with the configuration that is now in force.
    ///
    /// # Errors
    ///
    /// As [`Backend::load`].
    fn finish_load(
        self: Box<Self>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status>;
}

/// What a loaded model may tell the engine.
pub trait Host: Send + Sync {
    /// A batch of this many elements was executed.
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes);
    /// A response was made, by a backend that reports each.
    fn record_response(&self, response: &ResponseRecord) {
        let _ = response;
    }
    /// The version that is being loaded.
    fn model_version(&self) -> i64;
    /// The models that this one needs, if its configuration names any: exactly
    /// those that it is loaded with, as long as it lives, whatever is loaded
    /// and unloaded meanwhile. Others are not found here.
    fn composing_models(&self) -> Option<Arc<dyn ComposingModels>> {
        None
    }
    /// Writes a line to the server's log.
    fn log(&self, level: LogLevel, message: &str);
}

/// The models that another one needs: requests to it name them.
pub trait ComposingModels: InferenceService {
    /// The configuration of one of them, in this version or the newest; `None` if
    /// it is not among them.
    fn spec(&self, name: &str, version: Option<i64>) -> Option<Arc<ModelSpec>>;
}

/// How one response came about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ResponseRecord {
    /// Its place among the responses to its request, from 0.
    pub index: usize,
    /// What it was.
    pub outcome: ResponseOutcome,
    /// Time spent on computing.
    pub infer: Duration,
    /// Time spent on collecting outputs; `None` without outputs.
    pub output: Option<Duration>,
}

/// What a response was.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// It had outputs.
    Success,
    /// It had none.
    Empty,
    /// It was an error.
    Failure,
    /// It was the error that says that the client gave up.
    Cancelled,
}

/// How much a line of the log matters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is doubtful.
    Warning,
    /// Something happened.
    Info,
    /// Something for whoever looks closely; higher numbers are finer.
    Verbose(u32),
}

/// How the engine may make a model's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InstanceCreation {
    /// One after another.
    Sequential,
    /// Several at the same time, on different threads.
    Parallel,
}

/// One loaded version of a model.
pub trait Model: Send + Sync {
    /// Makes an instance: one thing that executes one batch at a time.
    ///
    /// # Errors
    ///
    /// A status that says why it could not be made.
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status>;

    /// How its instances may be made. In turn suits every backend.
    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Sequential
    }

    /// Whether its instances can serve: asked when somebody wants to know whether
    /// the model is ready.
    ///
    /// # Errors
    ///
    /// Why one can't.
    fn check_ready(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Whether [`Model::check_ready`] may take time. Where it doesn't it is called on threads
    /// that others wait for.
    fn readiness_may_block(&self) -> bool {
        false
    }

    /// The memory that it and its instances use, as far as its backend reports it, by
    /// kind and number.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// What its backend knows it by again, if it wants to.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// Where an instance lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The instance's name, such as `simple_0_1`.
    pub name: String,
    /// The kind of processor.
    pub device: Device,
    /// What the server was told about its host policy, by setting. It is in force
    /// already.
    pub host_policy_settings: BTreeMap<String, String>,
}

impl Placement {
    /// The name of its host policy: what its group says, or its kind of processor.
    #[must_use]
    pub fn host_policy(&self, spec: &ModelSpec) -> String {
        let group = spec.group_of(&self.name);
        let named = group.map(|group| group.host_policy.clone()).filter(|name| !name.is_empty());
        named.unwrap_or_else(|| match self.device {
            Device::Cpu => String::from("cpu"),
            Device::Gpu(number) => format!("gpu_{number}"),
            Device::Model => String::from("model"),
        })
    }
}

/// The processor that an instance runs on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The GPU with this number.
    Gpu(u32),
    /// Whatever the model chooses.
    Model,
}

/// Executes batches, one at a time.
pub trait Instance: Send {
    /// Executes the requests together and answers each of them.
    ///
    /// Returning means that the next batch may come; responses may still
    /// follow if the model is decoupled.
    ///
    /// # Errors
    ///
    /// [`RefusedBatch`] gives back the requests that were not touched, and the
    /// engine answers them with its status.
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch>;

    /// What the engine may rely on when it chooses where and when to execute.
    fn guarantee(&self) -> ExecutionGuarantee {
        ExecutionGuarantee::Unspecified
    }
}

/// What an instance promises of its executions; each includes those before it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutionGuarantee {
    /// Nothing. It executes on a thread of its own, as long as it takes.
    Unspecified,
    /// To wait for nobody: nothing that it sends, to a client or to another model, has
    /// to be noticed before it returns. So the engine may put off waking others until
    /// more batches are executed.
    NonBlocking,
    /// To take about as long as before for inputs of the same shapes and sizes, whatever
    /// their values, and to execute on any thread. So the engine may have quick ones
    /// executed by the thread that brings the request.
    Predictable,
}

/// A batch that an instance did not take.
#[derive(Debug)]
pub struct RefusedBatch {
    /// The requests, all of them unanswered.
    pub requests: Vec<PendingRequest>,
    /// Why.
    pub status: Status,
}

#[cfg(test)]
mod tests {
    use galatea_config::Support;

    use super::*;

    #[test]
    fn a_host_policy_has_the_name_of_the_group_or_of_the_processor() {
        let text = "name: 'm' backend: 'b' max_batch_size: 1
            input [ { name: 'I' data_type: TYPE_FP32 dims: [ 1 ] } ]
            output [ { name: 'O' data_type: TYPE_FP32 dims: [ 1 ] } ]
            instance_group [ { name: 'far' kind: KIND_CPU host_policy: 'own' },
                { name: 'near' kind: KIND_CPU }, { name: 'any' kind: KIND_MODEL } ]";
        let draft = ConfigDraft::from_pbtxt("config.pbtxt", text).unwrap();
        let spec = draft.finish(&Support::default()).unwrap();
        for (name, device, expected) in [
            ("far_0", Device::Cpu, "own"),
            ("near_1", Device::Cpu, "cpu"),
            ("far_else", Device::Gpu(2), "gpu_2"),
            ("any_0", Device::Model, "model"),
        ] {
            let (name, host_policy_settings) = (name.to_owned(), BTreeMap::new());
            let placement = Placement { name, device, host_policy_settings };
            assert_eq!(placement.host_policy(&spec), expected);
        }
    }
}
