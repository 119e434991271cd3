//! A version's histograms and summaries, to the extent that they are enabled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use galatea_control::{
    BatchStatistics, DurationStatistic, HistogramReading, InferenceStatistics, LatencySummaries,
    ModelHistograms, SummaryReading,
};
use galatea_measure::{Histogram, SlidingQuantiles};

/// The measurements of a model's requests in addition to its statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelMetricOptions {
    /// True if Galatea's own histograms are enabled.
    pub distributions: bool,
    /// True if Triton's histogram of the time to the first response is enabled.
    pub first_response: bool,
    /// The quantiles for Triton's summaries; `None` if there are no summaries.
    pub quantiles: Option<Arc<[f64]>>,
    /// True if executions are also counted per GPU.
    pub gpus: bool,
}

/// The bounds of all duration histograms, in nanoseconds: from 10 µs to 50 s, three per decade.
/// They are the same everywhere, so histograms from many servers can be added up.
#[rustfmt::skip]
const DURATION_BOUNDS: [u64; 21] = [
    10_000, 20_000, 50_000,
    100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000,
    10_000_000, 20_000_000, 50_000_000,
    100_000_000, 200_000_000, 500_000_000,
    1_000_000_000, 2_000_000_000, 5_000_000_000,
    10_000_000_000, 20_000_000_000, 50_000_000_000,
];

/// The bounds of batch sizes.
const BATCH_SIZE_BOUNDS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

const NS_PER_SECOND: f64 = 1e9;
const NS_PER_MICROSECOND: u64 = 1_000;

/// Galatea's own histograms. Their sums come from the statistics.
#[derive(Debug)]
pub(super) struct Distributions {
    request: Histogram<u64>,
    queue: Histogram<u64>,
    compute: Histogram<u64>,
}

impl Distributions {
    pub(super) fn new() -> Self {
        let durations = || Histogram::new(&DURATION_BOUNDS);
        Self { request: durations(), queue: durations(), compute: durations() }
    }

    /// Records a successful request; `compute_ns` is `None` for a response from the cache.
    pub(super) fn observe(&self, request_ns: u64, queue_ns: u64, compute_ns: Option<u64>) {
        self.request.observe(request_ns);
        self.queue.observe(queue_ns);
        if let Some(compute_ns) = compute_ns {
            self.compute.observe(compute_ns);
        }
    }

    pub(super) fn read(
        &self,
        durations: &InferenceStatistics,
        batches: &[BatchStatistics],
    ) -> ModelHistograms {
        let compute_ns =
            [durations.compute_input, durations.compute_infer, durations.compute_output]
                .iter()
                .fold(0_u64, |sum, stage| sum.saturating_add(stage.ns));
        ModelHistograms {
            request: seconds(&self.request, durations.success.ns),
            queue: seconds(&self.queue, durations.queue.ns),
            compute: seconds(&self.compute, compute_ns),
            batch_size: batch_sizes(batches),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "2^53 nanoseconds are three months of work")]
fn seconds(histogram: &Histogram<u64>, sum_ns: u64) -> HistogramReading {
    HistogramReading {
        bounds: histogram.bounds().iter().map(|bound| *bound as f64 / NS_PER_SECOND).collect(),
        counts: histogram.counts(),
        sum: sum_ns as f64 / NS_PER_SECOND,
    }
}

/// Batch sizes, derived from the statistics, which already count executions by size.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn batch_sizes(batches: &[BatchStatistics]) -> HistogramReading {
    let mut counts = vec![0; BATCH_SIZE_BOUNDS.len() + 1];
    let mut sum = 0_u64;
    for batch in batches {
        let executions = batch.compute_infer.count;
        let bucket = BATCH_SIZE_BOUNDS.partition_point(|bound| *bound < batch.batch_size);
        if let Some(count) = counts.get_mut(bucket) {
            *count += executions;
        }
        sum = sum.saturating_add(batch.batch_size.saturating_mul(executions));
    }
    let bounds = BATCH_SIZE_BOUNDS.iter().map(|bound| *bound as f64).collect();
    HistogramReading { bounds, counts, sum: sum as f64 }
}

/// Triton's histogram of the time to the first response.
#[derive(Debug)]
pub(crate) struct FirstResponses {
    histogram: Histogram<f64>,
    sum_ms: AtomicU64,
}

impl FirstResponses {
    /// Triton's name for the metric family. A configuration uses it to set the family's buckets.
    pub(crate) const FAMILY: &str = "nv_inference_first_response_histogram_ms";
    /// The bounds in milliseconds, unless the configuration sets others.
    pub(crate) const BOUNDS_MS: [f64; 4] = [100.0, 500.0, 2_000.0, 5_000.0];

    /// Creates a histogram. The bounds must be strictly increasing.
    pub(crate) fn new(bounds_ms: &[f64]) -> Self {
        Self { histogram: Histogram::new(bounds_ms), sum_ms: AtomicU64::new(0) }
    }

    /// Records a duration. As in Triton, fractions of a millisecond are dropped.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53 milliseconds")]
    pub(crate) fn observe(&self, duration: Duration) {
        let whole_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.histogram.observe(whole_ms as f64);
        self.sum_ms.fetch_add(whole_ms, Ordering::Relaxed);
    }

    #[allow(clippy::cast_precision_loss, reason = "far below 2^53 milliseconds")]
    pub(crate) fn read(&self) -> HistogramReading {
        HistogramReading {
            bounds: self.histogram.bounds().to_vec(),
            counts: self.histogram.counts(),
            sum: self.sum_ms.load(Ordering::Relaxed) as f64,
        }
    }
}

/// Triton's summaries. The counts and sums of observations come from the statistics.
#[derive(Debug)]
pub(super) struct Summaries {
    quantiles: Arc<[f64]>,
    epoch: Instant,
    request: Option<SlidingQuantiles>,
    queue: SlidingQuantiles,
    compute: [SlidingQuantiles; 3],
    /// The summaries for hits and misses.
    cache: Option<[SlidingQuantiles; 2]>,
}

impl Summaries {
    /// Creates summaries. As in Triton, a model that uses the cache has no summary of whole
    /// requests.
    pub(super) fn new(quantiles: Arc<[f64]>, is_cached: bool) -> Self {
        Self {
            quantiles,
            epoch: Instant::now(),
            request: (!is_cached).then(SlidingQuantiles::new),
            queue: SlidingQuantiles::new(),
            compute: std::array::from_fn(|_| SlidingQuantiles::new()),
            cache: is_cached.then(|| std::array::from_fn(|_| SlidingQuantiles::new())),
        }
    }

    /// Records an executed request: its total time, its time in the queue, and the stages of its
    /// execution.
    pub(super) fn executed(&self, end: Instant, request_ns: u64, queue_ns: u64, stages: [u64; 3]) {
        let now = self.time(end);
        if let Some(request) = &self.request {
            request.observe(now, request_ns / NS_PER_MICROSECOND);
        }
        self.queue.observe(now, queue_ns / NS_PER_MICROSECOND);
        for (summary, ns) in self.compute.iter().zip(stages) {
            summary.observe(now, ns / NS_PER_MICROSECOND);
        }
    }

    pub(super) fn cache_hit(&self, end: Instant, queue_ns: u64, lookup_ns: u64) {
        self.queue.observe(self.time(end), queue_ns / NS_PER_MICROSECOND);
        if let Some([hits, _]) = &self.cache {
            hits.observe(self.time(end), lookup_ns / NS_PER_MICROSECOND);
        }
    }

    pub(super) fn cache_miss(&self, end: Instant, spent_ns: u64) {
        if let Some([_, misses]) = &self.cache {
            misses.observe(self.time(end), spent_ns / NS_PER_MICROSECOND);
        }
    }

    pub(super) fn read(&self, durations: &InferenceStatistics) -> LatencySummaries {
        let now = self.epoch.elapsed();
        let read = |summary: &SlidingQuantiles, all: DurationStatistic| {
            let window = summary.read(now);
            let value = |share: &f64| (*share, window.quantile(*share));
            SummaryReading {
                count: all.count,
                sum_us: all.ns / NS_PER_MICROSECOND,
                quantiles: self.quantiles.iter().map(value).collect(),
            }
        };
        let [input, infer, output] = &self.compute;
        LatencySummaries {
            request: self.request.as_ref().map(|request| read(request, durations.success)),
            queue: read(&self.queue, durations.queue),
            compute_input: read(input, durations.compute_input),
            compute_infer: read(infer, durations.compute_infer),
            compute_output: read(output, durations.compute_output),
            cache: self.cache.as_ref().map(|[hits, misses]| {
                [read(hits, durations.cache_hit), read(misses, durations.cache_miss)]
            }),
        }
    }

    fn time(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_durations_go_from_ten_microseconds_to_fifty_seconds() {
        let bounds = seconds(&Histogram::new(&DURATION_BOUNDS), 0).bounds;
        assert_eq!(&bounds[..4], [1e-5, 2e-5, 5e-5, 1e-4]);
        assert_eq!(&bounds[18..], [10.0, 20.0, 50.0]);
        let decades = DURATION_BOUNDS.chunks(3).zip(DURATION_BOUNDS[3..].chunks(3));
        assert!(
            decades
                .into_iter()
                .all(|(low, high)| { low.iter().zip(high).all(|(low, high)| low * 10 == *high) })
        );
    }

    #[test]
    fn batch_sizes_are_those_of_the_executions() {
        let batch = |batch_size, count| BatchStatistics {
            batch_size,
            compute_infer: DurationStatistic { count, ns: 0 },
            ..BatchStatistics::default()
        };
        let reading = batch_sizes(&[batch(1, 5), batch(3, 2), batch(4, 1), batch(5_000, 1)]);
        assert_eq!(reading.counts, [5, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(reading.sum, 5_015.0);
    }

    #[test]
    fn the_rest_of_a_millisecond_is_dropped() {
        let first = FirstResponses::new(&FirstResponses::BOUNDS_MS);
        for micros in [999, 100_999, 101_000, 7_000_000] {
            first.observe(Duration::from_micros(micros));
        }
        let reading = first.read();
        assert_eq!(reading.counts, [2, 1, 0, 0, 1]);
        assert_eq!(reading.sum, 7_201.0);
    }
}
