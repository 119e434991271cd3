//! The facts about the server and its models that clients can learn: metadata, states,
//! statistics.

use std::sync::Arc;
use std::time::Duration;

use galatea_tensor::DataType;

use crate::{Measurements, SummaryReadings};

/// The server's name, version and protocol extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMetadata {
    /// The name given with `--id`.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The protocol extensions, in Triton's order.
    pub extensions: Vec<&'static str>,
}

/// A model's interface, as the metadata endpoints report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// The versions that are ready.
    pub versions: Vec<i64>,
    /// The platform, or the backend's name if the platform is empty.
    pub platform: String,
    /// The inputs, in the configuration's order.
    pub inputs: Vec<TensorMetadata>,
    /// The outputs, in the configuration's order.
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor in a model's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMetadata {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its dimensions with the batch dimension, -1 where variable.
    pub shape: Vec<i64>,
}

/// A model's configuration in the two forms that leave the server, encoded once
/// when the model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfigDocument {
    /// The JSON that the HTTP endpoint sends.
    pub json: String,
    /// The encoded `inference.ModelConfig` message.
    pub protobuf: Vec<u8>,
}

/// The state of a model version.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// Its state is not known.
    Unknown,
    /// It serves.
    Ready,
    /// It can't serve.
    Unavailable,
    /// It is being loaded.
    Loading,
    /// It is being unloaded.
    Unloading,
}

impl ModelState {
    /// The name that the protocols use, such as `READY`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// The parameters of a request to load a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadParameters {
    /// A configuration as JSON that replaces the repository's.
    pub config: Option<String>,
    /// Files by their path in the model's directory. If there are any, they replace
    /// all files of the repository.
    pub files: Vec<(String, Vec<u8>)>,
}

impl LoadParameters {
    /// Returns true if the model is loaded as it is in the repository.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }
}

/// One line of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryEntry {
    /// The model's name.
    pub name: String,
    /// The version; `None` for a model that was never loaded.
    pub version: Option<i64>,
    /// Its state; `None` for a model that was never loaded.
    pub state: Option<ModelState>,
    /// Why it is in that state; may be empty.
    pub reason: String,
}

/// Why a request failed: the label of the failure metric.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The scheduler refused it, or its timeout in the queue expired.
    Rejected,
    /// Its client cancelled it.
    Canceled,
    /// The backend reported an error.
    Backend,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// Every reason, in the order of the metrics.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Canceled, Self::Backend, Self::Other];

    /// The label's value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Canceled => "CANCELED",
            Self::Backend => "BACKEND",
            Self::Other => "OTHER",
        }
    }
}

/// The number of events and the sum of their durations.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationStatistic {
    /// The number of events.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub ns: u64,
}

/// The counters of the server's response cache as a whole.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// The bytes that its responses occupy.
    pub bytes_used: u64,
    /// The bytes that its responses may occupy.
    pub bytes_max: u64,
    /// The number of responses it keeps.
    pub entries: u64,
    /// Lookups that found a response.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Responses removed to make room for others.
    pub evictions: u64,
    /// The time of all lookups, in nanoseconds.
    pub lookup_ns: u64,
    /// The time of all insertions, in nanoseconds.
    pub insertion_ns: u64,
}

/// The statistics of one version of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelStatistics {
    /// The model's namespace, if the server uses namespaces.
    pub namespace: Option<Arc<str>>,
    /// The model's name.
    pub name: Arc<str>,
    /// Its version.
    pub version: i64,
    /// When the last inference began, in milliseconds since the epoch; 0 before the
    /// first one.
    pub last_inference_ms: u64,
    /// The sum of the batch sizes of successful requests.
    pub inference_count: u64,
    /// The number of executions, each of a whole batch.
    pub execution_count: u64,
    /// Durations by stage.
    pub inference: InferenceStatistics,
    /// Durations by executed batch size, ascending.
    pub batches: Vec<BatchStatistics>,
    /// The responses that backends report, by their index within their request.
    pub responses: Vec<ResponseStatistics>,
    /// The memory that the model and its instances use, as the backend reports it,
    /// by kind and number.
    pub memory: Vec<MemoryUsage>,
    /// Failed requests by reason, in the order of [`FailureReason::ALL`].
    pub failures: [u64; 4],
    /// True if its configuration asks for the response cache.
    pub is_cached: bool,
    /// Requests waiting in the scheduler now.
    pub pending: u64,
    /// The bytes that large tensors of requests hold now.
    pub held_bytes: u64,
    /// The time it took to load the version.
    pub load_duration: Duration,
    /// The metric labels that `metric_tags` in the configuration adds.
    pub metric_tags: Arc<[(String, String)]>,
    /// Measurements that only metrics show.
    pub measurements: Measurements,
    /// The part of it that was executed on each GPU, which only metrics show.
    pub gpus: Vec<GpuStatistics>,
}

/// The executions of a version's instances on one GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuStatistics {
    /// The number of the GPU.
    pub gpu: u32,
    /// The sum of the batch sizes of successful requests.
    pub inference_count: u64,
    /// The number of executions, each of a whole batch.
    pub execution_count: u64,
    /// Durations by stage.
    pub inference: InferenceStatistics,
    /// Failed requests by reason, in the order of [`FailureReason::ALL`].
    pub failures: [u64; 4],
    /// Triton's summaries, if they are asked for.
    pub summaries: Option<SummaryReadings>,
}

/// Memory of one kind that a model uses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The kind.
    pub kind: MemoryUsageKind,
    /// The memory of that kind, such as the number of a GPU.
    pub id: i64,
    /// The number of bytes.
    pub byte_size: u64,
}

/// The kind of memory that a model uses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryUsageKind {
    /// CPU memory.
    Cpu,
    /// CPU memory that is locked for transfers to a device.
    CpuPinned,
    /// GPU memory.
    Gpu,
}

impl MemoryUsageKind {
    /// The name that clients see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::CpuPinned => "CPU_PINNED",
            Self::Gpu => "GPU",
        }
    }
}

/// Durations of a model's requests by stage.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct InferenceStatistics {
    /// Successful requests, from arrival to response.
    pub success: DurationStatistic,
    /// Failed requests, from arrival to response.
    pub fail: DurationStatistic,
    /// Time in the queue.
    pub queue: DurationStatistic,
    /// Gathering inputs.
    pub compute_input: DurationStatistic,
    /// Computing.
    pub compute_infer: DurationStatistic,
    /// Collecting outputs.
    pub compute_output: DurationStatistic,
    /// Served from the response cache.
    pub cache_hit: DurationStatistic,
    /// Looked up in the response cache without a hit.
    pub cache_miss: DurationStatistic,
}

/// Durations of the responses with the same index within their requests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseStatistics {
    /// Computing.
    pub compute_infer: DurationStatistic,
    /// Collecting outputs.
    pub compute_output: DurationStatistic,
    /// Responses with outputs, as a whole.
    pub success: DurationStatistic,
    /// Error responses.
    pub fail: DurationStatistic,
    /// Responses without outputs.
    pub empty_response: DurationStatistic,
    /// Errors of cancelled requests.
    pub cancel: DurationStatistic,
}

/// Durations of the executions of one batch size.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// The number of batch elements executed together.
    pub batch_size: u64,
    /// Gathering inputs.
    pub compute_input: DurationStatistic,
    /// Computing.
    pub compute_infer: DurationStatistic,
    /// Collecting outputs.
    pub compute_output: DurationStatistic,
}
