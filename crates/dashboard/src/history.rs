//! The last fifteen minutes, for pages that are opened later.
//!
//! A sample of a limited number of versions is taken every five seconds. The age and amount of the
//! data that a page receives are therefore limited, whatever the server does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use galatea_control::{
    HistogramReading, ModelMeasurements, ModelStatistics, ResidencyReading, WATCHED_VERSIONS_MAX,
};
use galatea_infer::FailureReason;
use serde_json::{Value, json};

use crate::residency::ResidencySeries;

/// The time between two samples.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);
/// The number of samples in fifteen minutes.
const SAMPLES_MAX: usize = 180;
/// The ways in which requests end without being executed because of errors or limits of the server.
const REFUSALS: [&str; 7] = [
    "invalid",
    "queue_full",
    "unloading",
    "no_sequence",
    "missing_start",
    "queue_timeout",
    "sequence_timeout",
];

/// The namespace, name and number of a version.
type Key = (Option<String>, String, i64);

/// The samples of a server. The type is a fold from counters to events.
#[derive(Debug, Default)]
pub(crate) struct History {
    memory: VecDeque<usize>,
    versions: BTreeMap<Key, VersionSeries>,
    /// The models in memory, if models are loaded on demand.
    residency: Option<ResidencySeries>,
}

/// The samples of a version. The last one belongs to the server's last sample.
#[derive(Debug)]
struct VersionSeries {
    counters: Counters,
    points: VecDeque<Point>,
}

/// The counters of a version at the last sample.
#[derive(Debug, Default)]
struct Counters {
    success: u64,
    errors: u64,
    latencies: Vec<u64>,
}

/// The state of a version between two samples.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Point {
    requests: u64,
    errors: u64,
    /// The median latency of successful requests, if there were any.
    p50_us: Option<u64>,
    p99_us: Option<u64>,
}

impl History {
    /// The number of the first change of the models in memory that the history doesn't have.
    pub(crate) fn next_change(&self) -> u64 {
        self.residency.as_ref().map_or(0, ResidencySeries::next_change)
    }

    /// Adds a sample, and drops the oldest sample and the versions that no longer exist.
    pub(crate) fn add(
        &mut self,
        statistics: &[ModelStatistics],
        memory: usize,
        residency: Option<ResidencyReading>,
    ) {
        push(&mut self.memory, memory);
        if let Some(reading) = residency {
            let samples = u32::try_from(SAMPLES_MAX).unwrap_or(u32::MAX);
            let kept = PERIOD.saturating_mul(samples);
            self.residency.get_or_insert_default().add(reading, kept);
        }
        let mut known = std::mem::take(&mut self.versions);
        for version in statistics.iter().take(WATCHED_VERSIONS_MAX) {
            let namespace = version.namespace.as_deref().map(String::from);
            let key = (namespace, version.name.to_string(), version.version);
            let mut series = known.remove(&key).unwrap_or_else(|| VersionSeries {
                // Activity before the version's first sample is not the work of a single period.
                counters: Counters::of(version),
                points: VecDeque::new(),
            });
            series.add(version);
            self.versions.insert(key, series);
        }
    }

    /// Returns all samples.
    pub(crate) fn all(&self) -> Value {
        let residency = self.residency.as_ref().map(ResidencySeries::all);
        self.newest(SAMPLES_MAX, residency)
    }

    /// Returns the last sample.
    pub(crate) fn last(&self) -> Value {
        let residency = self.residency.as_ref().map(ResidencySeries::last);
        self.newest(1, residency)
    }

    fn newest(&self, count: usize, residency: Option<Value>) -> Value {
        let models = self.versions.iter().map(|((namespace, name, version), series)| {
            let points = tail(&series.points, count);
            let column = |read: fn(&Point) -> Value| points.clone().map(read).collect::<Value>();
            json!({
                "namespace": namespace,
                "name": name,
                "version": version.to_string(),
                "requests": column(|point| json!(point.requests)),
                "errors": column(|point| json!(point.errors)),
                "p50_us": column(|point| json!(point.p50_us)),
                "p99_us": column(|point| json!(point.p99_us)),
            })
        });
        json!({
            "period_ms": u64::try_from(PERIOD.as_millis()).unwrap_or(u64::MAX),
            "samples_max": SAMPLES_MAX,
            "memory": tail(&self.memory, count).collect::<Vec<_>>(),
            "models": models.collect::<Vec<_>>(),
            "residency": residency,
        })
    }
}

impl VersionSeries {
    fn add(&mut self, version: &ModelStatistics) {
        let now = Counters::of(version);
        let before = std::mem::take(&mut self.counters);
        // A reloaded version starts counting again.
        let before = if now.success < before.success { Counters::default() } else { before };
        let latencies: Vec<u64> = now
            .latencies
            .iter()
            .enumerate()
            .map(|(at, count)| count.saturating_sub(before.latencies.get(at).copied().unwrap_or(0)))
            .collect();
        let errors = now.errors.saturating_sub(before.errors);
        let bounds = distribution(version).map_or(&[][..], |latency| &latency.bounds);
        let point = Point {
            requests: now.success.saturating_sub(before.success).saturating_add(errors),
            errors,
            p50_us: quantile_us(bounds, &latencies, 0.5),
            p99_us: quantile_us(bounds, &latencies, 0.99),
        };
        push(&mut self.points, point);
        self.counters = now;
    }
}

impl Counters {
    fn of(version: &ModelStatistics) -> Self {
        let rejected = FailureReason::Rejected as usize;
        // Rejected requests are counted by reason.
        let failed = version.failures.iter().enumerate().filter(|(at, _)| *at != rejected);
        let refused = version.measurements.counts_by_reason(ModelMeasurements::UNEXECUTED).iter();
        let refused = refused.filter(|(reason, _)| REFUSALS.contains(reason)).map(|(_, one)| one);
        let errors = failed.map(|(_, one)| one).chain(refused);
        Self {
            success: version.inference.success.count,
            errors: errors.fold(0, |sum: u64, one| sum.saturating_add(*one)),
            latencies: distribution(version).map_or(Vec::new(), |latency| latency.counts.clone()),
        }
    }
}

/// Returns the latencies of a version's successful requests, if they are measured.
pub(crate) fn distribution(version: &ModelStatistics) -> Option<&HistogramReading> {
    version.measurements.distributions.as_ref().map(|all| &all.request)
}

/// Returns the duration in microseconds that this share of the observations doesn't exceed.
/// Observations are assumed to be evenly distributed within a bucket, whose bounds are in seconds.
/// Observations beyond the last bound are assumed to equal it.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a duration of seconds")]
fn quantile_us(bounds: &[f64], counts: &[u64], share: f64) -> Option<u64> {
    let all = counts.iter().fold(0_u64, |sum, one| sum.saturating_add(*one));
    if all == 0 {
        return None;
    }
    let wanted = share * all as f64;
    let (mut below, mut low) = (0.0, 0.0);
    for (bound, count) in bounds.iter().zip(counts) {
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            return Some(((low + (bound - low) * (wanted - below) / count) * 1e6).round() as u64);
        }
        (below, low) = (below + count, *bound);
    }
    Some((low * 1e6).round() as u64)
}

fn push<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() >= SAMPLES_MAX {
        all.pop_front();
    }
    all.push_back(one);
}

fn tail<T>(all: &VecDeque<T>, count: usize) -> impl Iterator<Item = &T> + Clone {
    all.iter().skip(all.len().saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use galatea_control::{CounterFamily, CounterReadings, ModelHistograms};

    use super::*;

    /// Returns the statistics of a version with this many responses within 1 ms, responses within 2
    /// ms, and failures.
    fn statistics(fast: u64, slow: u64, failures: [u64; 4]) -> ModelStatistics {
        let request =
            HistogramReading { bounds: vec![0.001, 0.002], counts: vec![fast, slow, 0], sum: 0.0 };
        let distributions = Some(ModelHistograms { request, ..Default::default() });
        let unexecuted = CounterFamily {
            name: ModelMeasurements::UNEXECUTED,
            help: "",
            counts: CounterReadings::ByReason(vec![("cancelled", 50), ("queue_full", failures[0])]),
        };
        let mut statistics = ModelStatistics { name: "m".into(), version: 3, ..Default::default() };
        statistics.inference.success.count = fast.saturating_add(slow);
        statistics.failures = failures;
        statistics.measurements =
            ModelMeasurements { distributions, counters: vec![unexecuted], ..Default::default() };
        statistics
    }

    #[test]
    fn samples_are_what_happened_between_them() {
        let mut history = History::default();
        history.add(&[statistics(100, 0, [9, 0, 0, 0])], 7, None);
        history.add(&[statistics(150, 50, [12, 1, 0, 0])], 8, None);
        assert_eq!(
            history.all(),
            json!({
                "period_ms": 5_000, "samples_max": 180, "memory": [7, 8],
                "models": [{
                    "namespace": null, "name": "m", "version": "3",
                    "requests": [0, 104], "errors": [0, 4],
                    "p50_us": [null, 1_000], "p99_us": [null, 1_980],
                }],
                "residency": null,
            })
        );
        assert_eq!(history.last()["models"][0]["requests"], json!([104]));
        // The version was reloaded.
        history.add(&[statistics(3, 0, [0; 4])], 0, None);
        assert_eq!(history.last()["models"][0]["requests"], json!([3]));
        history.add(&[], 0, Some(ResidencyReading::default()));
        assert_eq!(history.all()["models"], json!([]));
        assert_eq!(history.last()["residency"]["changes"], json!([]));
    }

    #[test]
    fn the_size_has_a_bound() {
        let mut history = History::default();
        let many: Vec<ModelStatistics> = (0..2 * WATCHED_VERSIONS_MAX)
            .map(|number| ModelStatistics { name: number.to_string().into(), ..Default::default() })
            .collect();
        for _ in 0..=SAMPLES_MAX {
            history.add(&many, 1, None);
        }
        let all = history.all();
        assert_eq!(all["memory"].as_array().unwrap().len(), SAMPLES_MAX);
        let models = all["models"].as_array().unwrap();
        assert_eq!(models.len(), WATCHED_VERSIONS_MAX);
        assert_eq!(models[0]["requests"].as_array().unwrap().len(), SAMPLES_MAX);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let bounds = [0.001, 0.002, 0.005];
        assert_eq!(quantile_us(&bounds, &[0, 0, 0, 0], 0.5), None);
        assert_eq!(quantile_us(&bounds, &[10, 0, 0, 0], 0.5), Some(500));
        assert_eq!(quantile_us(&bounds, &[0, 10, 0, 0], 0.99), Some(1_990));
        assert_eq!(quantile_us(&bounds, &[1, 0, 0, 99], 0.99), Some(5_000));
    }
}
