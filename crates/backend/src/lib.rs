//! The traits between the engine and its extensions: [`Backend`], [`Model`] and
//! [`Instance`] for backends, native or behind the C API, and [`ResponseCache`] for
//! response caches. Start with the traits in this file.
//!
//! A backend receives owned requests. It never sees the server, a scheduler or another
//! backend. The engine manages threads: it calls [`Instance::execute`] from one thread
//! at a time.

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
pub use files::{ExpectedFileSize, FileFingerprint, ModelFiles, advice_on_name};
pub use fingerprint::BackendFingerprint;
pub use galatea_infer::LogLevel;
pub use shared_library::is_library_truncated;

/// The ways in which the engine may call a backend's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ExecutionPolicy {
    /// An execution takes time: each instance gets a thread of its own.
    Blocking,
    /// An execution is short and never blocks: the engine calls it on the thread that
    /// formed the batch, which saves two thread switches.
    Inline,
}

/// Loads and executes one kind of model, such as ONNX models.
pub trait Backend: Send + Sync {
    /// The way in which the instances of a model with this configuration may be called.
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy;

    /// Fills in inputs, outputs and the batch size from the model's files where `draft`
    /// leaves them out. What the draft says stays. The default changes nothing: for
    /// backends whose model files hold no such information.
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

    /// Returns true if it gets the whole configuration and may use any setting of it, such as
    /// the `secondary_devices` of groups. If not, the server reports settings without effect.
    fn reads_whole_configuration(&self) -> bool {
        false
    }

    /// Why it can't execute models on GPUs, if so. Then groups without a kind are on the CPU,
    /// and those on GPUs are refused with this reason. Most backends leave the choice of the
    /// device to the model's code.
    fn gpus_refused(&self) -> Option<String> {
        None
    }

    /// Begins to load one version, before its configuration is complete. The server calls
    /// it first.
    ///
    /// The default suits backends that implement [`Backend::auto_complete_config`]. A
    /// backend that completes a configuration from an existing model returns that model.
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

    /// Loads one version of a model for which [`Backend::begin_load`] returned `None`.
    ///
    /// # Errors
    ///
    /// A status whose message names the error in the configuration or the files.
    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn Host>,
    ) -> Result<Box<dyn Model>, Status>;

    /// The batch rule of a loaded version, if it has one. Called for models without a
    /// sequence batcher, before instances exist.
    ///
    /// # Errors
    ///
    /// A status that says why the rule could not be made.
    fn batch_rule(&self, loaded: &LoadedVersion<'_>) -> Result<Option<Box<dyn BatchRule>>, Status> {
        let _ = loaded;
        Ok(None)
    }

    /// The state that this backend's responses for a loaded version depend on, beside the
    /// version itself. Describes the backend when it was loaded, not its files as they are now.
    /// `None` if a change between two runs of the server can't be recognized; cached
    /// responses of another run are then not used.
    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let _ = loaded;
        None
    }
}

/// The error of a model without a configuration whose backend completes none, in Triton's words.
#[must_use]
pub fn unconfigured(draft: &ConfigDraft) -> Status {
    let name = draft.name();
    Status::not_found(format!("model configuration is not provided for model '{name}'"))
}

/// A version of a model that has no instances yet.
#[derive(Copy, Clone)]
pub struct LoadedVersion<'a> {
    /// Its configuration.
    pub spec: &'a Arc<ModelSpec>,
    /// Its files.
    pub files: &'a dyn ModelFiles,
    /// The loaded model.
    pub model: &'a dyn Model,
    /// Its host.
    pub host: &'a Arc<dyn Host>,
}

/// The permission of a backend to fill in what a configuration leaves out.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AutoComplete {
    /// The backend may complete the configuration.
    Enabled,
    /// The configuration is used as it is written.
    Disabled,
}

/// A version of a model that the backend has created, but whose configuration is not
/// final yet.
///
/// Dropping it abandons the load.
pub trait UnconfiguredModel: Send {
    /// Finishes the load with the final configuration.
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

/// The engine, as a loaded model sees it.
pub trait Host: Send + Sync {
    /// Records the execution of a batch of `batch_size` elements in the statistics.
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes);
    /// The same for the batch of an instance on a GPU, which is also counted for that GPU.
    fn record_gpu_batch(&self, gpu: u32, batch_size: u64, times: &ExecutionTimes) {
        let _ = gpu;
        self.record_batch(batch_size, times);
    }
    /// Records one response in the statistics: for backends that report each response.
    fn record_response(&self, response: &ResponseRecord) {
        let _ = response;
    }
    /// The version of the model.
    fn model_version(&self) -> i64;
    /// The composing models that its configuration names, if any: the versions that it
    /// was loaded with. Later loads and unloads do not change them. Other models are not
    /// found here.
    fn composing_models(&self) -> Option<Arc<dyn ComposingModels>> {
        None
    }
    /// Writes a line to the server's log.
    fn log(&self, level: LogLevel, message: &str);
}

/// The composing models of an ensemble: its requests name one of them.
pub trait ComposingModels: InferenceService {
    /// The configuration of a composing model, in this version or the newest; `None` if
    /// it is not among them.
    fn spec(&self, name: &str, version: Option<i64>) -> Option<Arc<ModelSpec>>;
}

/// The statistics of one response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ResponseRecord {
    /// Its index among the responses to its request, from 0.
    pub index: usize,
    /// The kind under which the response counts.
    pub outcome: ResponseOutcome,
    /// The time spent on computing.
    pub infer: Duration,
    /// The time spent on collecting outputs; `None` without outputs.
    pub output: Option<Duration>,
}

/// The kind under which a response counts in the statistics.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// A response with outputs.
    Success,
    /// A response without outputs.
    Empty,
    /// An error.
    Failure,
    /// The error of a cancelled request.
    Cancelled,
}

/// The ways in which the engine may create a model's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InstanceCreation {
    /// One after another.
    Sequential,
    /// Several at the same time on different threads.
    Parallel,
}

/// One loaded version of a model.
pub trait Model: Send + Sync {
    /// Creates an instance, which executes one batch at a time.
    ///
    /// # Errors
    ///
    /// A status that says why it could not be created.
    fn create_instance(&self, placement: &Placement) -> Result<Box<dyn Instance>, Status>;

    /// The way in which its instances may be created. The default suits every backend.
    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Sequential
    }

    /// Checks whether its instances can serve: part of the model's readiness check.
    ///
    /// # Errors
    ///
    /// Why an instance can't.
    fn check_ready(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Returns true if [`Model::check_ready`] may block. If not, it is called on I/O threads.
    fn readiness_may_block(&self) -> bool {
        false
    }

    /// Waits until nothing of a backend uses its instances any more, such as a response that is
    /// still to come. The engine calls it once its own instances are gone, on a thread that may
    /// wait for long, and destroys the model after it.
    fn wait_until_unused(&self) {}

    /// The memory that it and its instances use, if the backend reports it.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// The memory that its instances take inputs in. What is elsewhere is copied to the host's.
    fn input_memory(&self) -> InputMemory {
        InputMemory::Host
    }

    /// The backend's own object for this model, so that the backend can recognize it.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// The memory that instances take inputs in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InputMemory {
    /// The host's, where nothing changes them.
    Host,
    /// Also that of any GPU (`Buffer::on_device`). An instance copies from there what a client
    /// may change before it computes with it.
    Device,
    /// Any: inputs are repeated as outputs unread. Memory that clients share reaches them as it
    /// is (`Buffer::foreign`).
    Unread,
}

/// The name, device and host policy of an instance to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The instance's name, such as `simple_0_1`.
    pub name: String,
    /// The processor that it runs on.
    pub device: Device,
    /// The settings of its host policy from the command line. The engine has applied
    /// them already.
    pub host_policy_settings: BTreeMap<String, String>,
}

impl Placement {
    /// The name of its host policy: that of its instance group, or its device.
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
    /// The model chooses.
    Model,
}

/// One loaded copy of a model, which executes one batch at a time.
pub trait Instance: Send {
    /// Executes the requests together and replies to each of them.
    ///
    /// The next batch may follow once it returns. A decoupled model may send responses
    /// after that.
    ///
    /// # Errors
    ///
    /// [`RefusedBatch`] returns the requests unexecuted, and the engine fails them with
    /// its status.
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch>;

    /// The guarantee that the engine relies on when it decides where and when to execute.
    fn guarantee(&self) -> ExecutionGuarantee {
        ExecutionGuarantee::Unspecified
    }

    /// The instance as one whose executions can be left to another thread; `None` if they
    /// can't.
    fn resumable(&mut self) -> Option<&mut dyn ResumableInstance> {
        None
    }

    /// The means to end an execution from another thread; `None` if there is none. The engine
    /// asks once, before the first execution.
    fn terminator(&self) -> Option<Arc<dyn Terminator>> {
        None
    }
}

/// An instance that waits while something else executes, such as a process, so that one
/// thread can begin an execution and another one end it. The engine lets I/O threads begin
/// those that will probably be short.
pub trait ResumableInstance {
    /// As [`Instance::execute`], but waits for no other thread, and no longer than `patience`
    /// for the end.
    ///
    /// # Errors
    ///
    /// As [`Instance::execute`].
    fn begin(
        &mut self,
        requests: Vec<PendingRequest>,
        patience: Duration,
    ) -> Result<Begun, RefusedBatch>;

    /// Waits for the end of the execution that goes on.
    ///
    /// # Errors
    ///
    /// As [`Instance::execute`].
    fn finish(&mut self) -> Result<(), RefusedBatch>;

    /// The duration of the last execution until its end was seen, without the replies: on a shared
    /// processor those who get them may run before the thread goes on.
    fn took(&self) -> Duration;
}

/// The result of an execution that was begun.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has ended.
    Ended,
    /// It goes on: [`ResumableInstance::finish`] comes next, on another thread.
    GoesOn,
}

/// Ends an execution of its instance whose requests are all cancelled.
///
/// The engine calls it from another thread than the one that executes. Neither call blocks.
pub trait Terminator: Send + Sync {
    /// Makes the execution in progress end soon. May be called again while it goes on.
    fn terminate(&self);

    /// Takes that back. The engine calls it between the end of that execution and the
    /// beginning of the next.
    fn reset(&self);
}

/// A guarantee of an instance about its executions. Each guarantee includes the
/// previous ones.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutionGuarantee {
    /// Nothing: it executes on a thread of its own for any time.
    Unspecified,
    /// It waits for no other thread: no response or request that it sends has to be
    /// received before it returns. The engine may therefore defer wake-ups until more
    /// batches are executed.
    NonBlocking,
    /// It takes about the same time for inputs of the same shapes and sizes, whatever
    /// their values, and executes on any thread. The engine may therefore execute short
    /// batches inline, on the thread that received the request.
    Predictable,
}

/// A batch that an instance refused to execute.
#[derive(Debug)]
pub struct RefusedBatch {
    /// The requests, none of which got a reply.
    pub requests: Vec<PendingRequest>,
    /// Why it was refused.
    pub status: Status,
}

#[cfg(test)]
mod tests {
    use galatea_config::Support;

    use super::*;

    #[test]
    fn a_host_policy_is_named_by_its_group_or_device() {
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
