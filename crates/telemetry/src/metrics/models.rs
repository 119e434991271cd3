//! The families that have a series for each model version.

use galatea_control::{DurationStatistic, ModelStatistics};
use galatea_infer::FailureReason;

use super::series::Series;
use super::text::{Labels, Number};
use super::{Exposition, MetricKind};

/// The counters, in Triton's order.
pub(super) fn counters(text: &mut Exposition, statistics: &[Series<'_>], counter_latencies: bool) {
    requests(text, statistics, counter_latencies);
    if counter_latencies {
        durations(text, statistics);
        cache(text, statistics);
    }
}

/// The gauges.
pub(super) fn gauges(text: &mut Exposition, statistics: &[Series<'_>]) {
    text.family(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        MetricKind::Gauge,
        statistics.iter().map(|model| (series_labels(model), model.pending)),
    );
    text.family(
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        MetricKind::Gauge,
        statistics.iter().map(|model| {
            let seconds = model.load_duration.as_secs_f64();
            (series_labels(model), Number(seconds))
        }),
    );
}

fn requests(text: &mut Exposition, statistics: &[Series<'_>], counting: bool) {
    let count = |value: u64| if counting { value } else { 0 };
    text.family(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        MetricKind::Counter,
        statistics.iter().map(|model| (series_labels(model), count(model.inference.success.count))),
    );
    text.family(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        MetricKind::Counter,
        statistics.iter().flat_map(|model| failures(model, count)),
    );
    text.family(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        MetricKind::Counter,
        statistics.iter().map(|model| (series_labels(model), count(model.inference_count))),
    );
    text.family(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        MetricKind::Counter,
        statistics.iter().map(|model| (series_labels(model), count(model.execution_count))),
    );
}

/// Writes a series for each reason, so that a rate can be computed before the first failure.
fn failures(model: &Series<'_>, count: impl Fn(u64) -> u64) -> impl Iterator<Item = (Labels, u64)> {
    let labels = series_labels(model);
    let values = FailureReason::ALL.into_iter().zip(model.failures.map(count));
    values.map(move |(reason, value)| (labels.with("reason", reason.label()), value))
}

fn durations(text: &mut Exposition, statistics: &[Series<'_>]) {
    type Stage = fn(&ModelStatistics) -> DurationStatistic;
    let families: [(&str, &str, Stage); 5] = [
        (
            "nv_inference_request_duration_us",
            "Cumulative inference request duration in microseconds (includes cached requests)",
            |model| model.inference.success,
        ),
        (
            "nv_inference_queue_duration_us",
            "Cumulative inference queuing duration in microseconds (includes cached requests)",
            |model| model.inference.queue,
        ),
        (
            "nv_inference_compute_input_duration_us",
            "Cumulative compute input duration in microseconds (does not include cached requests)",
            |model| model.inference.compute_input,
        ),
        (
            "nv_inference_compute_infer_duration_us",
            "Cumulative compute inference duration in microseconds (does not include cached \
             requests)",
            |model| model.inference.compute_infer,
        ),
        (
            "nv_inference_compute_output_duration_us",
            "Cumulative inference compute output duration in microseconds (does not include \
             cached requests)",
            |model| model.inference.compute_output,
        ),
    ];
    for (name, help, stage) in families {
        let series =
            statistics.iter().map(|model| (series_labels(model), microseconds(stage(model))));
        text.family(name, help, MetricKind::Counter, series);
    }
}

/// Writes a series for each model that uses the cache; it exists from the start.
fn cache(text: &mut Exposition, statistics: &[Series<'_>]) {
    let cached: Vec<&Series<'_>> = statistics.iter().filter(|model| model.is_cached).collect();
    type CacheValue = fn(&ModelStatistics) -> u64;
    let families: [(&str, &str, CacheValue); 4] = [
        ("nv_cache_num_hits_per_model", "Number of cache hits per model", |model| {
            model.inference.cache_hit.count
        }),
        (
            "nv_cache_hit_duration_per_model",
            "Total cache hit duration per model, in microseconds",
            |model| microseconds(model.inference.cache_hit),
        ),
        ("nv_cache_num_misses_per_model", "Number of cache misses per model", |model| {
            model.inference.cache_miss.count
        }),
        (
            "nv_cache_miss_duration_per_model",
            "Total cache miss (insert+lookup) duration per model, in microseconds",
            |model| microseconds(model.inference.cache_miss),
        ),
    ];
    for (name, help, value) in families {
        let series = cached.iter().map(|model| (series_labels(model), value(model)));
        text.family(name, help, MetricKind::Counter, series);
    }
}

const fn microseconds(duration: DurationStatistic) -> u64 {
    super::microseconds(duration.ns)
}

/// The labels of a series, which may belong to a GPU.
pub(super) fn series_labels(series: &Series<'_>) -> Labels {
    let labels = labels(series);
    series.gpu_uuid.map_or_else(|| labels.clone(), |uuid| labels.with("gpu_uuid", uuid))
}

/// The labels of a version's series.
pub(super) fn labels(model: &ModelStatistics) -> Labels {
    let mut labels = vec![
        ("model".to_owned(), model.name.to_string()),
        ("version".to_owned(), model.version.to_string()),
    ];
    labels.extend(model.namespace.iter().map(|one| ("namespace".to_owned(), one.to_string())));
    labels.extend(model.metric_tags.iter().map(|(key, value)| (format!("_{key}"), value.clone())));
    Labels::new(labels)
}
