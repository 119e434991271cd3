//! Galatea's own families about models.

use galatea_control::{DistributionReadings, HistogramReading, ModelStatistics};

use super::distributions::histogram_family;
use super::models::labels;
use super::text::{Exposition, MetricKind};

/// Writes counters, which are always shown, and histograms if they are recorded.
pub(super) fn render(text: &mut Exposition, statistics: &[ModelStatistics], has_histograms: bool) {
    text.family(
        "galatea_model_held_bytes",
        "Bytes that large tensors of the model's requests hold",
        MetricKind::Gauge,
        statistics.iter().map(|model| (labels(model), model.held_bytes)),
    );
    by_reason(
        text,
        "galatea_batch_closed_total",
        "Batches by the reason why they were closed and executed",
        statistics,
        |model| &model.measurements.closed_batches,
    );
    by_reason(
        text,
        "galatea_inference_unexecuted_total",
        "Requests that were refused, expired or cancelled before they were executed",
        statistics,
        |model| &model.measurements.unexecuted,
    );
    // Histograms may be recorded for another consumer without being shown.
    if has_histograms {
        histograms(text, statistics);
    }
}

fn by_reason(
    text: &mut Exposition,
    name: &str,
    help: &str,
    statistics: &[ModelStatistics],
    counts: impl Fn(&ModelStatistics) -> &[(&'static str, u64)],
) {
    let series = statistics.iter().flat_map(|model| {
        let labels = labels(model);
        let lines = counts(model)
            .iter()
            .map(move |(reason, count)| (labels.with("reason", reason), *count));
        lines.collect::<Vec<_>>()
    });
    text.family(name, help, MetricKind::Counter, series);
}

fn histograms(text: &mut Exposition, statistics: &[ModelStatistics]) {
    type Reading = fn(&DistributionReadings) -> &HistogramReading;
    let families: [(&str, &str, Reading); 4] = [
        (
            "galatea_inference_request_duration_seconds",
            "Successful requests by the time from arrival to response",
            |all| &all.request,
        ),
        (
            "galatea_inference_queue_duration_seconds",
            "Successful requests by their time in the queue",
            |all| &all.queue,
        ),
        (
            "galatea_inference_compute_duration_seconds",
            "Executed requests by the time of gathering inputs, computing and collecting outputs",
            |all| &all.compute,
        ),
        (
            "galatea_batch_size",
            "Executions by the number of batch elements executed together",
            |all| &all.batch_size,
        ),
    ];
    for (name, help, reading) in families {
        let readings = statistics
            .iter()
            .map(|model| (labels(model), model.measurements.distributions.as_ref().map(reading)));
        histogram_family(text, name, help, readings);
    }
}
