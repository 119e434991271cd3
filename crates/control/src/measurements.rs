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

/// The measurements of a version beyond its statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// From arrival to the first response, in whole milliseconds.
    pub first_response_ms: Option<HistogramReading>,
    /// Triton's summaries, if they are enabled.
    pub summaries: Option<SummaryReadings>,
    /// Galatea's own histograms, if they are enabled.
    pub distributions: Option<DistributionReadings>,
    /// Batches by the reason why they were closed.
    pub closed_batches: CountsByReason,
    /// Requests that ended without being executed, by reason.
    pub unexecuted: CountsByReason,
}
