//! The counters of a model version, and the enabled distributions.

mod distributions;
mod gpus;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use galatea_backend::{ResponseOutcome, ResponseRecord};
use galatea_control::{
    BatchStatistics, DurationStatistic, InferenceStatistics, ModelMeasurements, ResponseStatistics,
};
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, ModelRequestBytes,
};
use galatea_stdx::Lock;

pub(crate) use self::distributions::FirstResponses;
pub use self::distributions::ModelMetricOptions;
use self::distributions::{Distributions, Summaries};
pub(crate) use self::gpus::{CountedGpu, GpuCounters};

/// The counters of requests and executions.
///
/// Each counter is exact, but a reader between two updates may see a request in one counter and not
/// yet in another.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    last_inference_ms: AtomicU64,
    inference_count: AtomicU64,
    execution_count: AtomicU64,
    success: DurationCounter,
    fail: DurationCounter,
    queue: DurationCounter,
    compute_input: DurationCounter,
    compute_infer: DurationCounter,
    compute_output: DurationCounter,
    cache_hit: DurationCounter,
    cache_miss: DurationCounter,
    failures: [AtomicU64; 4],
    batches: Lock<BTreeMap<u64, BatchStatistics>>,
    responses: Lock<Vec<ResponseStatistics>>,
    /// The number of requests refused by admission.
    invalid: AtomicU64,
    /// The number of requests that followed an equal one.
    coalesced: AtomicU64,
    distributions: Option<Distributions>,
    summaries: Option<Summaries>,
    /// The time to the first response, if it is measured.
    first_responses: Option<FirstResponses>,
    /// The number of bytes held by requests.
    pub(crate) model_bytes: ModelRequestBytes,
}

/// The maximum number of positions counted. Responses are counted by their position within their
/// request. Responses beyond the last position, of which a model may send any number, are counted
/// there.
const RESPONSE_POSITIONS_MAX: usize = 10_000;

/// A count and a total duration.
#[derive(Debug, Default)]
struct DurationCounter {
    count: AtomicU64,
    ns: AtomicU64,
}

impl DurationCounter {
    /// Adds a duration; returns the nanoseconds added.
    fn add(&self, duration: Duration) -> u64 {
        let ns = nanoseconds(duration);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        ns
    }

    fn read(&self) -> DurationStatistic {
        DurationStatistic {
            count: self.count.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
        }
    }
}

impl Statistics {
    /// Counters that start at 0. `first_response_bounds_ms` contains the bounds of Triton's
    /// histogram.
    pub(crate) fn new(
        options: &ModelMetricOptions,
        first_response_bounds_ms: &[f64],
        is_cached: bool,
    ) -> Self {
        let quantiles = options.quantiles.clone();
        Self {
            distributions: options.distributions.then(Distributions::new),
            summaries: quantiles.map(|quantiles| Summaries::new(quantiles, is_cached)),
            first_responses: options
                .first_response
                .then(|| FirstResponses::new(first_response_bounds_ms)),
            ..Self::default()
        }
    }

    /// Counts a request that was executed without an error.
    pub(crate) fn succeeded(
        &self,
        batch: u32,
        times: &AdmissionTimes,
        execution: &ExecutionSummary,
    ) {
        self.inference_count.fetch_add(u64::from(batch), Ordering::Relaxed);
        let request_ns = self.success.add(execution.end.saturating_duration_since(times.arrival));
        let queue_ns = self.queue.add(execution.start.saturating_duration_since(times.queued));
        let stages = [
            self.compute_input.add(execution.input),
            self.compute_infer.add(execution.infer),
            self.compute_output.add(execution.output),
        ];
        if let Some(distributions) = &self.distributions {
            distributions.observe(request_ns, queue_ns, Some(stages.iter().sum()));
        }
        // A GPU's durations go into its own summaries: unlike counters, summaries can't be
        // subtracted.
        if let Some(summaries) = self.summaries.as_ref().filter(|_| execution.gpu.is_none()) {
            summaries.executed(execution.end, request_ns, queue_ns, stages);
        }
    }

    /// Counts a request served from the cache: a success without an inference.
    pub(crate) fn cache_hit(&self, arrival: Instant, start: Instant, lookup: Duration) {
        let end = start + lookup;
        let request_ns = self.success.add(end.saturating_duration_since(arrival));
        let queue_ns = self.queue.add(start.saturating_duration_since(arrival));
        let lookup_ns = self.cache_hit.add(lookup);
        if let Some(distributions) = &self.distributions {
            distributions.observe(request_ns, queue_ns, None);
        }
        if let Some(summaries) = &self.summaries {
            summaries.cache_hit(end, queue_ns, lookup_ns);
        }
    }

    /// Counts a request that was not found in the cache. `spent` is the time taken by the lookup
    /// and by storing the response, which ended at `end`.
    pub(crate) fn cache_miss(&self, end: Instant, spent: Duration) {
        let spent_ns = self.cache_miss.add(spent);
        if let Some(summaries) = &self.summaries {
            summaries.cache_miss(end, spent_ns);
        }
    }

    /// Records that the first response to a request, or an error instead, is about to be sent.
    pub(crate) fn responding(&self, arrival: Instant) {
        if let Some(first_responses) = &self.first_responses {
            first_responses.observe(arrival.elapsed());
        }
    }

    /// Counts a request that did not match the model's configuration.
    pub(crate) fn refused_as_invalid(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that shares the execution of an earlier one.
    pub(crate) fn coalesced(&self) {
        self.coalesced.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of requests that shared the execution of an earlier one.
    pub(crate) fn coalesced_count(&self) -> u64 {
        self.coalesced.load(Ordering::Relaxed)
    }

    /// Counts a request that ended with an error.
    pub(crate) fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        self.fail.add(Instant::now().saturating_duration_since(times.arrival));
        let position = FailureReason::ALL.iter().position(|r| *r == reason);
        if let Some(counter) = position.and_then(|index| self.failures.get(index)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an executed batch.
    pub(crate) fn executed(&self, batch_size: u64, times: &ExecutionTimes) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.last_inference_ms.fetch_max(now_ms, Ordering::Relaxed);
        self.execution_count.fetch_add(1, Ordering::Relaxed);
        let mut batches = self.batches.lock("count a batch");
        let batch = batches.entry(batch_size).or_default();
        batch.batch_size = batch_size;
        add(&mut batch.compute_input, times.input_time());
        add(&mut batch.compute_infer, times.infer_time());
        add(&mut batch.compute_output, times.output_time());
    }

    /// The measurements in addition to the statistics, excluding counters.
    pub(crate) fn measurements(&self, batches: &[BatchStatistics]) -> ModelMeasurements {
        let durations = self.durations();
        ModelMeasurements {
            first_response_ms: self.first_responses.as_ref().map(|first| first.read()),
            summaries: self.summaries.as_ref().map(|summaries| summaries.read(&durations)),
            distributions: self.distributions.as_ref().map(|own| own.read(&durations, batches)),
            counters: Vec::new(),
        }
    }

    pub(crate) fn invalid(&self) -> u64 {
        self.invalid.load(Ordering::Relaxed)
    }

    pub(crate) fn last_inference_ms(&self) -> u64 {
        self.last_inference_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn inference_count(&self) -> u64 {
        self.inference_count.load(Ordering::Relaxed)
    }

    pub(crate) fn execution_count(&self) -> u64 {
        self.execution_count.load(Ordering::Relaxed)
    }

    pub(crate) fn failures(&self) -> [u64; 4] {
        self.failures.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    pub(crate) fn durations(&self) -> InferenceStatistics {
        InferenceStatistics {
            success: self.success.read(),
            fail: self.fail.read(),
            queue: self.queue.read(),
            compute_input: self.compute_input.read(),
            compute_infer: self.compute_infer.read(),
            compute_output: self.compute_output.read(),
            cache_hit: self.cache_hit.read(),
            cache_miss: self.cache_miss.read(),
        }
    }

    /// Counts a response reported by the backend.
    pub(crate) fn record_response(&self, response: &ResponseRecord) {
        let position = response.index.min(RESPONSE_POSITIONS_MAX - 1);
        let mut responses = self.responses.lock("count a response");
        if responses.len() <= position {
            responses.resize(position + 1, ResponseStatistics::default());
        }
        let Some(all) = responses.get_mut(position) else { return };
        let whole = match response.outcome {
            ResponseOutcome::Success => &mut all.success,
            ResponseOutcome::Empty => &mut all.empty_response,
            ResponseOutcome::Failure => &mut all.fail,
            ResponseOutcome::Cancelled => &mut all.cancel,
        };
        add(whole, response.infer + response.output.unwrap_or_default());
        // As in Triton, a cancelled response does not count as computing.
        if response.outcome != ResponseOutcome::Cancelled {
            add(&mut all.compute_infer, response.infer);
        }
        if let Some(output) = response.output {
            add(&mut all.compute_output, output);
        }
    }

    pub(crate) fn responses(&self) -> Vec<ResponseStatistics> {
        self.responses.lock("read the responses").clone()
    }

    pub(crate) fn batches(&self) -> Vec<BatchStatistics> {
        self.batches.lock("read the batches").values().copied().collect()
    }
}

fn add(statistic: &mut DurationStatistic, duration: Duration) {
    statistic.count += 1;
    statistic.ns = statistic.ns.saturating_add(nanoseconds(duration));
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
