//! Distributions and counts of a model version beyond its statistics; only metrics show them.

/// Observations, counted by size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramReading {
    /// The upper bounds of the buckets, ascending.
    pub bounds: Vec<f64>,
    /// The number of observations in each bucket, excluding those of lower buckets. The last count
    /// is of observations above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

/// Quantiles of the last minute, and the number and sum of all observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SummaryReading {
    /// The number of observations since the load.
    pub count: u64,
    /// The sum of all observations, in microseconds.
    pub sum_us: u64,
    /// Shares of the observations, each with the value that this share doesn't exceed, in
    /// microseconds; `None` if there was no observation in the last minute.
    pub quantiles: Vec<(f64, Option<u64>)>,
}

/// The values that Triton calls summaries of latencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SummaryReadings {
    /// Requests, from arrival to response. As in Triton, `None` for models that use the response
    /// cache.
    pub request: Option<SummaryReading>,
    /// Time in the queue.
    pub queue: SummaryReading,
    /// Gathering inputs.
    pub compute_input: SummaryReading,
    /// Computing.
    pub compute_infer: SummaryReading,
    /// Collecting outputs.
    pub compute_output: SummaryReading,
    /// Cache lookups and the work that follows them: hits, then misses. `None` without the response
    /// cache.
    pub cache: Option<[SummaryReading; 2]>,
}

/// Durations in seconds and batch sizes, in buckets that are the same for every model and
/// server, so that they can be added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistributionReadings {
    /// Successful requests, from arrival to response.
    pub request: HistogramReading,
    /// Time in the queue.
    pub queue: HistogramReading,
    /// Gathering inputs, computing and collecting outputs.
    pub compute: HistogramReading,
    /// Batch elements that were executed together.
    pub batch_size: HistogramReading,
}

/// Counts by reason. The names don't change.
pub type CountsByReason = Vec<(&'static str, u64)>;

/// A family of counters that Triton lacks. Metrics show every family, and know none by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterFamily {
    /// The name in the metrics, which begins with `galatea_` and ends with `_total`.
    pub name: &'static str,
    /// The help text in the metrics.
    pub help: &'static str,
    /// The counts.
    pub counts: CounterReadings,
}

/// The counts of a family for one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterReadings {
    /// A single count.
    Total(u64),
    /// Counts that the label `reason` tells apart.
    ByReason(CountsByReason),
}

/// The measurements of a version beyond its statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// From arrival to the first response, in whole milliseconds.
    pub first_response_ms: Option<HistogramReading>,
    /// Triton's summaries, if they are enabled.
    pub summaries: Option<SummaryReadings>,
    /// Galatea's own histograms, if they are enabled.
    pub distributions: Option<DistributionReadings>,
    /// Galatea's own counters.
    pub counters: Vec<CounterFamily>,
}

impl Measurements {
    /// The family of batches by the reason why they were closed.
    pub const CLOSED_BATCHES: &str = "galatea_batch_closed_total";
    /// The family of requests that ended without being executed, by reason.
    pub const UNEXECUTED: &str = "galatea_inference_unexecuted_total";

    /// The counts of a family by reason; none if there is no such family.
    #[must_use]
    pub fn counts_by_reason(&self, family: &str) -> &[(&'static str, u64)] {
        let found = self.counters.iter().find(|known| known.name == family);
        match found.map(|found| &found.counts) {
            Some(CounterReadings::ByReason(counts)) => counts,
            Some(CounterReadings::Total(_)) | None => &[],
        }
    }
}
