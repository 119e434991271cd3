//! The traits between the engine and its extensions: [`Backend`], [`Model`] and [`Instance`] for
//! backends, whether native or behind the C API, and [`ResponseCache`] for response caches. Start
//! with the traits in this file.
//!
//! A backend receives owned requests. It never sees the server, the scheduler or another backend.
//! The engine manages the threads and calls each instance's [`Instance::execute`] from one thread
//! at a time.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod agents;
mod batching;
mod cache;
mod empty_library;
mod files;
mod fingerprint;
mod shared_library;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::{ExecutionTimes, InferenceService, MemoryUsage, PendingRequest, Status};

pub use agents::ModelRepositoryAgents;
pub use batching::CustomBatchStrategy;
pub use cache::{CacheKey, ResponseCache};
pub use empty_library::empty_library;
pub use files::{FileFingerprint, FileReadLimit, ModelFiles, misnamed_file_hint_in};
pub use fingerprint::BackendFingerprint;
pub use galatea_infer::LogLevel;
pub use shared_library::is_library_truncated;

/// The ways in which the engine may call a backend's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ExecutionPolicy {
    /// An execution takes time, so each instance gets its own thread.
    Blocking,
    /// An execution is short and never blocks. The engine runs it on the thread that formed the
    /// batch, which saves two thread switches.
    Inline,
}

/// Loads and executes one kind of model, such as ONNX models.
pub trait Backend: Send + Sync {
    /// Returns how the engine may call the instances of a model with this configuration.
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy;

    /// Fills in any inputs, outputs and batch size that `draft` omits, based on the model's files.
    /// Values in the draft are kept. By default, changes nothing, for backends whose model files
    /// don't contain such information.
    ///
    /// # Errors
    ///
    /// A status whose message identifies the file and the problem with it.
    fn auto_complete_config(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
    ) -> Result<(), Status> {
        let _ = (draft, files);
        Ok(())
    }

    /// Returns true if the backend receives the whole configuration and may use any of its
    /// settings, such as the groups' `secondary_devices`. Otherwise, the server reports settings
    /// that have no effect.
    fn reads_whole_configuration(&self) -> bool {
        false
    }

    /// Returns the reason why the backend can't execute models on GPUs, or `None` if it can. With a
    /// reason, groups without a kind are placed on the CPU, and GPU groups are rejected with this
    /// reason. Most backends leave the choice of device to the model's code.
    fn gpus_refused(&self) -> Option<String> {
        None
    }

    /// Begins to load a version before its configuration is complete. Called before all other load
    /// functions.
    ///
    /// The default suits backends that implement [`Backend::auto_complete_config`]. A backend that
    /// needs an existing model to complete the configuration returns that model.
    ///
    /// # Errors
    ///
    /// Same as for [`Backend::auto_complete_config`].
    fn begin_load(
        &self,
        draft: &mut ConfigDraft,
        files: &dyn ModelFiles,
        auto_complete: AutoCompletePermission,
    ) -> Result<Option<Box<dyn UnconfiguredModel>>, Status> {
        match auto_complete {
            AutoCompletePermission::Granted => {
                self.auto_complete_config(draft, files).map(|()| None)
            }
            AutoCompletePermission::Denied => Ok(None),
        }
    }

    /// Loads a model version for which [`Backend::begin_load`] returned `None`.
    ///
    /// # Errors
    ///
    /// A status whose message identifies the error in the configuration or the files.
    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status>;

    /// Returns a loaded version's batch rule, if it has one. Called for models without a sequence
    /// batcher, before instances exist.
    ///
    /// # Errors
    ///
    /// A status whose message states why the rule can't be created.
    fn batch_rule(
        &self,
        loaded: &LoadedVersion<'_>,
    ) -> Result<Option<Box<dyn CustomBatchStrategy>>, Status> {
        let _ = loaded;
        Ok(None)
    }

    /// The state that this backend's responses for a loaded version depend on, in addition to the
    /// version itself. Describes the backend at the time it was loaded, not its current files.
    /// `None` if a change between two runs of the server can't be detected, in which case responses
    /// that were cached in another run aren't used.
    fn fingerprint(&self, loaded: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        let _ = loaded;
        None
    }
}

/// The error for a model that has no configuration and whose backend can't complete one, with
/// Triton's message.
#[must_use]
pub fn missing_config_error(draft: &ConfigDraft) -> Status {
    let name = draft.name();
    Status::not_found(format!("model configuration is not provided for model '{name}'"))
}

/// A model version that has no instances yet.
#[derive(Copy, Clone)]
pub struct LoadedVersion<'a> {
    /// The version's configuration.
    pub spec: &'a Arc<ModelSpec>,
    /// The version's files.
    pub files: &'a dyn ModelFiles,
    /// The loaded model.
    pub model: &'a dyn Model,
    /// The model's host.
    pub host: &'a Arc<dyn ModelHost>,
}

/// Permission for a backend to fill in settings that a configuration omits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AutoCompletePermission {
    /// The backend may complete the configuration.
    Granted,
    /// The configuration is used as written.
    Denied,
}

/// A model version that the backend has created but whose configuration isn't final yet.
///
/// Dropping the value abandons the load.
pub trait UnconfiguredModel: Send {
    /// Finishes the load with the final configuration.
    ///
    /// # Errors
    ///
    /// Same as for [`Backend::load`].
    fn finish_load(
        self: Box<Self>,
        spec: Arc<ModelSpec>,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status>;
}

/// The engine as a loaded model sees it.
pub trait ModelHost: Send + Sync {
    /// Records the execution of a batch of `batch_size` elements in the statistics.
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes);
    /// Like [`ModelHost::record_batch`], but for a batch on a GPU instance, which is also counted for
    /// that GPU.
    fn record_gpu_batch(&self, gpu: u32, batch_size: u64, times: &ExecutionTimes) {
        let _ = gpu;
        self.record_batch(batch_size, times);
    }
    /// Records one response in the statistics. For backends that report each response.
    fn record_response(&self, response: &ResponseRecord) {
        let _ = response;
    }
    /// The model's version.
    fn model_version(&self) -> i64;
    /// The composing models that the model's configuration specifies, if any, in the versions that
    /// were current when the model was loaded. Later loads and unloads don't change these versions.
    /// Other models aren't accessible through this service.
    fn composing_models(&self) -> Option<Arc<dyn ComposingModels>> {
        None
    }
    /// Writes a line to the server's log.
    fn log(&self, level: LogLevel, message: &str);
}

/// The composing models of an ensemble. Each request specifies one of them by name.
pub trait ComposingModels: InferenceService {
    /// Returns the configuration of a composing model in this version, or in the newest version.
    /// `None` if the model isn't a composing model.
    fn spec(&self, name: &str, version: Option<i64>) -> Option<Arc<ModelSpec>>;
}

/// The statistics for one response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ResponseRecord {
    /// The response's index among the responses to its request, starting at 0.
    pub index: usize,
    /// The category in which the response is counted.
    pub outcome: ResponseOutcome,
    /// The compute time.
    pub infer: Duration,
    /// The time spent on collecting outputs; `None` if there are no outputs.
    pub output: Option<Duration>,
}

/// The category in which the statistics count a response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// A response with outputs.
    Success,
    /// A response without outputs.
    Empty,
    /// An error.
    Failure,
    /// An error because the request was cancelled.
    Cancelled,
}

/// The ways in which the engine may create a model's instances.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InstanceCreation {
    /// One at a time.
    Sequential,
    /// Several in parallel on different threads.
    Parallel,
}

/// One loaded model version.
pub trait Model: Send + Sync {
    /// Creates an instance, which executes one batch at a time.
    ///
    /// # Errors
    ///
    /// A status whose message states why the instance couldn't be created.
    fn create_instance(&self, placement: &Placement) -> Result<Box<dyn Instance>, Status>;

    /// Returns how the model's instances may be created. The default is safe for every backend.
    fn instance_creation(&self) -> InstanceCreation {
        InstanceCreation::Sequential
    }

    /// Checks whether the model's instances can serve. Part of the model's readiness check.
    ///
    /// # Errors
    ///
    /// The reason why an instance can't serve.
    fn check_ready(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Returns true if [`Model::check_ready`] may block. Otherwise, it is called on I/O threads.
    fn readiness_may_block(&self) -> bool {
        false
    }

    /// Waits until nothing in the backend, such as a response that has yet to arrive, uses the
    /// model's instances any more. The engine calls this after dropping its own instances, on a
    /// thread that may block for a long time, and destroys the model afterwards.
    fn wait_until_unused(&self) {}

    /// The memory usage of the model and its instances, if the backend reports it.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// The kind of memory in which the model's instances accept inputs. Inputs in other memory are
    /// copied to host memory.
    fn input_memory(&self) -> AcceptedInputMemory {
        AcceptedInputMemory::Host
    }

    /// The backend's own object for this model, by which the backend can recognize it.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// The kinds of memory in which instances accept inputs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AcceptedInputMemory {
    /// Host memory whose contents don't change.
    Host,
    /// Host memory or any GPU's memory (`Buffer::on_device`). An instance first copies data that a
    /// client may still modify, and then computes with the copy.
    Device,
    /// Any memory, for inputs that are returned as outputs without being read. Memory that clients
    /// share is passed through unchanged (`Buffer::foreign`).
    Unread,
}

/// The name, device and host policy for creating an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The instance's name, such as `simple_0_1`.
    pub name: String,
    /// The device that the instance runs on.
    pub device: Device,
    /// The command-line settings for the instance's host policy, which the engine has already
    /// applied.
    pub host_policy_settings: BTreeMap<String, String>,
}

impl Placement {
    /// The name of the instance's host policy: the instance group's policy if set, otherwise the
    /// device's.
    #[must_use]
    pub fn host_policy(&self, spec: &ModelSpec) -> String {
        let group = spec.group_of_instance(&self.name);
        let named = group.map(|group| group.host_policy.clone()).filter(|name| !name.is_empty());
        named.unwrap_or_else(|| match self.device {
            Device::Cpu => String::from("cpu"),
            Device::Gpu(number) => format!("gpu_{number}"),
            Device::Model => String::from("model"),
        })
    }
}

/// The device that an instance runs on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// The GPU with this number.
    Gpu(u32),
    /// The model chooses the device.
    Model,
}

/// One loaded copy of a model, which executes one batch at a time.
pub trait Instance: Send {
    /// Executes the requests as one batch and replies to each of them.
    ///
    /// The next batch may follow once the call returns. A decoupled model may still send responses
    /// afterwards.
    ///
    /// # Errors
    ///
    /// [`RefusedBatch`] returns the unexecuted requests, and the engine fails them with its status.
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch>;

    /// The guarantee that the engine relies on when it decides where and when to execute batches.
    fn guarantee(&self) -> ExecutionPredictability {
        ExecutionPredictability::Unspecified
    }

    /// Returns the instance's resumable form, if another thread can end its executions.
    fn resumable(&mut self) -> Option<&mut dyn ResumableInstance> {
        None
    }

    /// Returns the means to end an execution from another thread, or `None` if there is none. The
    /// engine calls this once, before the first execution.
    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        None
    }
}

/// An instance that waits while something else, such as a process, executes the batch. One thread
/// can therefore begin an execution and another thread can end it. The engine lets I/O threads
/// begin executions that are likely to be short.
pub trait ResumableInstance {
    /// Begins an execution like [`Instance::execute`], but never waits for another thread, and
    /// waits at most `patience` for the execution to end.
    ///
    /// # Errors
    ///
    /// Same as for [`Instance::execute`].
    fn begin(
        &mut self,
        requests: Vec<PendingRequest>,
        patience: Duration,
    ) -> Result<BeginResult, RefusedBatch>;

    /// Waits for the current execution to end.
    ///
    /// # Errors
    ///
    /// Same as for [`Instance::execute`].
    fn finish(&mut self) -> Result<(), RefusedBatch>;

    /// The duration of the last execution until its end was observed, excluding the replies: on a
    /// shared processor, the recipients of the replies may run before this thread continues.
    fn took(&self) -> Duration;
}

/// The result of beginning an execution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BeginResult {
    /// The execution has ended.
    Ended,
    /// The execution is still in progress. Another thread calls [`ResumableInstance::finish`]
    /// later.
    InProgress,
}

/// Ends an execution of an instance when all of its requests are cancelled.
///
/// The engine calls these functions on a thread other than the executing one. They never block.
pub trait ExecutionTerminator: Send + Sync {
    /// Makes the current execution end soon. May be called repeatedly during one execution.
    fn terminate(&self);

    /// Reverts [`ExecutionTerminator::terminate`]. The engine calls this after that execution has
    /// ended and before the next one begins.
    fn reset(&self);
}

/// An instance's guarantee about its executions. Each guarantee includes the previous ones.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutionPredictability {
    /// No guarantee. The instance executes on its own thread, for any length of time.
    Unspecified,
    /// The instance waits for no other thread: no response or request that it sends has to be
    /// received before the call returns. The engine may therefore defer wake-ups until more batches
    /// have been executed.
    NonBlocking,
    /// For inputs with the same shapes and sizes, an execution takes about the same time regardless
    /// of their values, and may run on any thread. The engine may therefore execute short batches
    /// inline, on the thread that received the request.
    Predictable,
}

/// A batch that an instance refused to execute.
#[derive(Debug)]
pub struct RefusedBatch {
    /// The requests, none of which has received a reply.
    pub requests: Vec<PendingRequest>,
    /// The reason for the refusal.
    pub status: Status,
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    #[test]
    fn a_host_policy_is_named_by_its_group_or_device() {
        let text = "name: 'm' backend: 'b' max_batch_size: 1
            input [ { name: 'I' data_type: TYPE_FP32 dims: [ 1 ] } ]
            output [ { name: 'O' data_type: TYPE_FP32 dims: [ 1 ] } ]
            instance_group [ { name: 'far' kind: KIND_CPU host_policy: 'own' },
                { name: 'near' kind: KIND_CPU }, { name: 'any' kind: KIND_MODEL } ]";
        let draft = parse_config_draft("config.pbtxt", text).unwrap();
        let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
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
