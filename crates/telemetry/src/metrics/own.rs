//! Galatea's own model metric families.

use galatea_control::{
    CounterFamily, CounterReadings, HistogramReading, ModelHistograms, ModelStatistics,
};

use super::distributions::histogram_family;
use super::models::labels;
use super::text::{Exposition, Labels, MetricKind};

/// Writes the counters, which are always shown, and the histograms if they are recorded.
pub(super) fn render(text: &mut Exposition, statistics: &[ModelStatistics], has_histograms: bool) {
    text.family(
        "galatea_model_held_bytes",
        "Bytes that large tensors of the model's requests hold",
        MetricKind::Gauge,
        statistics.iter().map(|model| (labels(model), model.held_bytes)),
    );
    counters(text, statistics);
    // Histograms may be recorded for another consumer without being shown.
    if has_histograms {
        histograms(text, statistics);
    }
}

fn counters(text: &mut Exposition, statistics: &[ModelStatistics]) {
    let mut families: Vec<&CounterFamily> = Vec::new();
    for family in statistics.iter().flat_map(|model| &model.measurements.counters) {
        if families.iter().all(|known| known.name != family.name) {
            families.push(family);
        }
    }
    for CounterFamily { name, help, .. } in families {
        let series = statistics.iter().flat_map(|model| {
            let counters = model.measurements.counters.iter();
            let found = counters.filter(|family| family.name == *name);
            found.flat_map(|family| series(model, &family.counts))
        });
        text.family(name, help, MetricKind::Counter, series);
    }
}

fn series(model: &ModelStatistics, counts: &CounterReadings) -> Vec<(Labels, u64)> {
    let labels = labels(model);
    match counts {
        CounterReadings::Total(count) => vec![(labels, *count)],
        CounterReadings::ByReason(counts) => {
            counts.iter().map(|(reason, count)| (labels.with("reason", reason), *count)).collect()
        }
    }
}

fn histograms(text: &mut Exposition, statistics: &[ModelStatistics]) {
    type Reading = fn(&ModelHistograms) -> &HistogramReading;
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
