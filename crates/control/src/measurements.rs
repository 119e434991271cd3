//! Distributions and counts for a model version that go beyond its statistics. Only metrics report
//! them.

/// Observations, counted by size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramReading {
    /// The upper bounds of the buckets, ascending.
    pub bounds: Vec<f64>,
    /// The number of observations in each bucket, excluding those of lower buckets. The last count
    /// is for observations above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

/// The speed at which a model generates text.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationReading {
    /// The model's name.
    pub model: String,
    /// The seconds from a request's arrival to its first token.
    pub first_token: HistogramReading,
    /// The seconds between tokens.
    pub between_tokens: HistogramReading,
    /// The number of generated tokens.
    pub tokens: u64,
    /// The number of tokens in the requests' prompts, documents and texts to embed.
    pub prompt_tokens: u64,
}

/// Quantiles of the last minute, and the number and sum of all observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SummaryReading {
    /// The number of observations since the load.
    pub count: u64,
    /// The sum of all observations, in microseconds.
    pub sum_us: u64,
    /// Fractions of the observations, each with the value that this fraction doesn't exceed, in
    /// microseconds; `None` if there was no observation in the last minute.
    pub quantiles: Vec<(f64, Option<u64>)>,
}

/// The quantiles that Triton calls latency summaries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencySummaries {
    /// The time from arrival to response. As in Triton, `None` for models that use the response
    /// cache.
    pub request: Option<SummaryReading>,
    /// The time spent in the queue.
    pub queue: SummaryReading,
    /// The time spent gathering inputs.
    pub compute_input: SummaryReading,
    /// The time spent computing.
    pub compute_infer: SummaryReading,
    /// The time spent collecting outputs.
    pub compute_output: SummaryReading,
    /// Cache lookups and the work that follows them: hits, then misses. `None` without the response
    /// cache.
    pub cache: Option<[SummaryReading; 2]>,
}

/// Durations in seconds and batch sizes. The buckets are the same for every model and server, so
/// they can be added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelHistograms {
    /// The time from arrival to response, for successful requests.
    pub request: HistogramReading,
    /// The time spent in the queue.
    pub queue: HistogramReading,
    /// The time spent gathering inputs, computing and collecting outputs.
    pub compute: HistogramReading,
    /// The number of batch elements executed together.
    pub batch_size: HistogramReading,
}

/// Counts by reason. The reason names are stable.
pub type CountsByReason = Vec<(&'static str, u64)>;

/// A family of counters that Triton lacks. The metrics code shows every family without knowing any
/// by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterFamily {
    /// The metric name, which begins with `galatea_` and ends with `_total`.
    pub name: &'static str,
    /// The metric's help text.
    pub help: &'static str,
    /// The counts.
    pub counts: CounterReadings,
}

/// A family's counts for one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterReadings {
    /// A single count.
    Total(u64),
    /// Counts by the label `reason`.
    ByReason(CountsByReason),
}

/// The measurements of a version that its statistics don't include.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelMeasurements {
    /// The time from arrival to the first response, in whole milliseconds.
    pub first_response_ms: Option<HistogramReading>,
    /// Triton's summaries, if they are enabled.
    pub summaries: Option<LatencySummaries>,
    /// Galatea's own histograms, if they are enabled.
    pub distributions: Option<ModelHistograms>,
    /// Galatea's own counters.
    pub counters: Vec<CounterFamily>,
}

impl ModelMeasurements {
    /// The family that counts batches by the reason for closing them.
    pub const CLOSED_BATCHES: &str = "galatea_batch_closed_total";
    /// The family that counts requests that ended without execution, by reason.
    pub const UNEXECUTED: &str = "galatea_inference_unexecuted_total";
    /// The family that counts requests that shared the execution of an equal one.
    pub const COALESCED: &str = "galatea_inference_coalesced_total";

    /// The counts of the family with this name, by reason; empty if there is no such family.
    #[must_use]
    pub fn counts_by_reason(&self, family: &str) -> &[(&'static str, u64)] {
        let found = self.counters.iter().find(|known| known.name == family);
        match found.map(|found| &found.counts) {
            Some(CounterReadings::ByReason(counts)) => counts,
            Some(CounterReadings::Total(_)) | None => &[],
        }
    }
}
