//! Model version statistics.

use std::sync::Arc;
use std::time::Duration;

use galatea_infer::MemoryUsage;

use crate::{LatencySummaries, ModelMeasurements};

/// The number of events and the sum of their durations.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationStatistic {
    /// The number of events.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub ns: u64,
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
    /// The start of the last inference, in milliseconds since the epoch; 0 before the first
    /// inference.
    pub last_inference_ms: u64,
    /// The sum of the batch sizes of successful requests.
    pub inference_count: u64,
    /// The number of executions, each of a whole batch.
    pub execution_count: u64,
    /// Durations by stage.
    pub inference: InferenceStatistics,
    /// Durations by executed batch size, ascending.
    pub batches: Vec<BatchStatistics>,
    /// Response statistics that backends report, by the response's index within its request.
    pub responses: Vec<ResponseStatistics>,
    /// The memory that the model and its instances use, as the backend reports it, by kind and
    /// number.
    pub memory: Vec<MemoryUsage>,
    /// Failed requests by reason, in the order of
    /// [`FailureReason::ALL`](galatea_infer::FailureReason::ALL).
    pub failures: [u64; 4],
    /// True if the model's configuration enables the response cache.
    pub is_cached: bool,
    /// The number of requests now waiting in the scheduler.
    pub pending: u64,
    /// The bytes that large request tensors currently hold.
    pub held_bytes: u64,
    /// The time it took to load the version.
    pub load_duration: Duration,
    /// The metric labels that `metric_tags` in the configuration adds.
    pub metric_tags: Arc<[(String, String)]>,
    /// Measurements that only metrics report.
    pub measurements: ModelMeasurements,
    /// Per-GPU statistics, which only metrics report.
    pub gpus: Vec<ModelGpuStatistics>,
}

/// The executions of a version's instances on one GPU.
#[derive(Clone, Debug, Default)]
pub struct ModelGpuStatistics {
    /// The number of the GPU.
    pub gpu: u32,
    /// The sum of the batch sizes of successful requests.
    pub inference_count: u64,
    /// The number of executions, each of a whole batch.
    pub execution_count: u64,
    /// Durations by stage.
    pub inference: InferenceStatistics,
    /// Failed requests by reason, in the order of
    /// [`FailureReason::ALL`](galatea_infer::FailureReason::ALL).
    pub failures: [u64; 4],
    /// Triton's summaries, if they are enabled.
    pub summaries: Option<LatencySummaries>,
}

/// Durations of a model's requests by stage.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct InferenceStatistics {
    /// Successful requests, from arrival to response.
    pub success: DurationStatistic,
    /// Failed requests, from arrival to response.
    pub fail: DurationStatistic,
    /// The time spent in the queue.
    pub queue: DurationStatistic,
    /// The time spent gathering inputs.
    pub compute_input: DurationStatistic,
    /// The time spent computing.
    pub compute_infer: DurationStatistic,
    /// The time spent collecting outputs.
    pub compute_output: DurationStatistic,
    /// Requests served from the response cache.
    pub cache_hit: DurationStatistic,
    /// Cache lookups without a hit.
    pub cache_miss: DurationStatistic,
}

/// Durations of the responses with the same index within their requests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseStatistics {
    /// The time spent computing.
    pub compute_infer: DurationStatistic,
    /// The time spent collecting outputs.
    pub compute_output: DurationStatistic,
    /// Complete responses with outputs.
    pub success: DurationStatistic,
    /// Error responses.
    pub fail: DurationStatistic,
    /// Responses without outputs.
    pub empty_response: DurationStatistic,
    /// Errors due to cancellation.
    pub cancel: DurationStatistic,
}

/// Durations of executions with the same batch size.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// The number of batch elements executed together.
    pub batch_size: u64,
    /// The time spent gathering inputs.
    pub compute_input: DurationStatistic,
    /// The time spent computing.
    pub compute_infer: DurationStatistic,
    /// The time spent collecting outputs.
    pub compute_output: DurationStatistic,
}
