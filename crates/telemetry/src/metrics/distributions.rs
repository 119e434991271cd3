//! Triton's histogram and summaries.

use galatea_control::{HistogramReading, LatencySummaries, SummaryReading};

use super::models::series_labels;
use super::series::Series;
use super::text::{Exposition, Family, Labels, MetricKind, Number};

/// Writes the families in Triton's order. Families without series are left out.
pub(super) fn render(text: &mut Exposition, series: &[Series<'_>]) {
    histogram_family(
        text,
        "nv_inference_first_response_histogram_ms",
        "Duration from request to first response in milliseconds",
        series
            .iter()
            .map(|model| (series_labels(model), model.measurements.first_response_ms.as_ref())),
    );
    type Reading = fn(&LatencySummaries) -> Option<&SummaryReading>;
    let summaries: [(&str, &str, Reading); 7] = [
        (
            "nv_inference_request_summary_us",
            "Summary of inference request duration in microseconds (includes cached requests)",
            |all| all.request.as_ref(),
        ),
        (
            "nv_inference_queue_summary_us",
            "Summary of inference queuing duration in microseconds (includes cached requests)",
            |all| Some(&all.queue),
        ),
        (
            "nv_inference_compute_input_summary_us",
            "Cumulative compute input duration in microseconds (does not include cached requests)",
            |all| Some(&all.compute_input),
        ),
        (
            "nv_inference_compute_infer_summary_us",
            "Cumulative compute inference duration in microseconds (does not include cached \
             requests)",
            |all| Some(&all.compute_infer),
        ),
        (
            "nv_inference_compute_output_summary_us",
            "Cumulative inference compute output duration in microseconds (does not include \
             cached requests)",
            |all| Some(&all.compute_output),
        ),
        (
            "nv_cache_hit_summary_per_model",
            "Summary of cache hit counts/durations per model, in microseconds.",
            |all| all.cache.as_ref().map(|[hits, _]| hits),
        ),
        (
            "nv_cache_miss_summary_per_model",
            "Summary of cache miss counts/durations per model, in microseconds.",
            |all| all.cache.as_ref().map(|[_, misses]| misses),
        ),
    ];
    for (name, help, reading) in summaries {
        let readings = series.iter().filter_map(|model| {
            Some((series_labels(model), reading(model.measurements.summaries.as_ref()?)?))
        });
        let readings: Vec<(Labels, &SummaryReading)> = readings.collect();
        if readings.is_empty() {
            continue;
        }
        let Some(family) = text.begin(name, help, MetricKind::Summary) else { continue };
        for (labels, reading) in readings {
            summary(family, name, &labels, reading);
        }
    }
}

fn summary(text: &mut Family, name: &str, labels: &Labels, value: &SummaryReading) {
    text.line(&format!("{name}_count"), labels, value.count);
    text.line(&format!("{name}_sum"), labels, value.sum_us);
    for (share, value) in &value.quantiles {
        let labels = labels.and_last("quantile", &Number(*share).to_string());
        match value {
            Some(value) => text.line(name, &labels, value),
            None => text.line(name, &labels, Number(f64::NAN)),
        }
    }
}

/// Writes a family with a histogram for each model that has one.
pub(super) fn histogram_family<'a>(
    text: &mut Exposition,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Labels, Option<&'a HistogramReading>)>,
) {
    let readings = series.filter_map(|(labels, reading)| Some((labels, reading?)));
    let readings: Vec<(Labels, &HistogramReading)> = readings.collect();
    if readings.is_empty() {
        return;
    }
    let Some(family) = text.begin(name, help, MetricKind::Histogram) else { return };
    for (labels, reading) in readings {
        histogram(family, name, &labels, reading);
    }
}

/// Writes one histogram.
pub(super) fn histogram(text: &mut Family, name: &str, labels: &Labels, value: &HistogramReading) {
    let total: u64 = value.counts.iter().sum();
    text.line(&format!("{name}_count"), labels, total);
    text.line(&format!("{name}_sum"), labels, Number(value.sum));
    let bounds = value.bounds.iter().copied().chain([f64::INFINITY]);
    let bucket = format!("{name}_bucket");
    let mut count = 0;
    for (bound, one) in bounds.zip(&value.counts) {
        count += one;
        let bound = Number(bound).to_string();
        text.line(&bucket, &labels.and_last("le", &bound), count);
    }
}
