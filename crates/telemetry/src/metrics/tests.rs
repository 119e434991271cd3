//! Compares the full output with Triton's for the same state.

use galatea_control::{
    CounterFamily, CounterReadings, DurationStatistic, HistogramReading, InferenceStatistics,
    LatencySummaries, ModelHistograms, ModelMeasurements, SummaryReading,
};

use super::*;

fn exporter(counter_latencies: bool) -> MetricsExporter {
    let options = MetricsOptions { cpu: false, counter_latencies, ..MetricsOptions::default() };
    MetricsExporter::new(options)
}

fn statistic(count: u64, ns: u64) -> DurationStatistic {
    DurationStatistic { count, ns }
}

fn plain() -> ModelStatistics {
    ModelStatistics {
        name: "plain".into(),
        version: 1,
        last_inference_ms: 1,
        inference_count: 5,
        execution_count: 2,
        inference: InferenceStatistics {
            success: statistic(3, 197_999),
            queue: statistic(3, 56_000),
            compute_input: statistic(3, 2_500),
            compute_infer: statistic(3, 46_001),
            compute_output: statistic(3, 999),
            ..InferenceStatistics::default()
        },
        batches: Vec::new(),
        responses: Vec::new(),
        memory: Vec::new(),
        failures: [1, 2, 3, 4],
        is_cached: false,
        pending: 7,
        held_bytes: 70,
        load_duration: Duration::from_millis(1_250),
        metric_tags: [].into(),
        namespace: None,
        measurements: ModelMeasurements::default(),
        gpus: Vec::new(),
    }
}

fn tagged() -> ModelStatistics {
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    ModelStatistics {
        name: "tagged".into(),
        version: 12,
        inference_count: 0,
        execution_count: 0,
        inference: InferenceStatistics::default(),
        failures: [0; 4],
        pending: 0,
        held_bytes: 0,
        load_duration: Duration::ZERO,
        metric_tags: [tag("owner", "me \"quoted\""), tag("Zone", "z")].into(),
        ..plain()
    }
}

/// The lines with values; our help texts are worded differently.
fn values(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with("# HELP")).collect()
}

#[test]
// row: MET-04 MET-06 MET-13
fn series_names_labels_types_and_order_are_tritons() {
    let text = exporter(true).render(&[plain(), tagged()], None, &[]);
    let expected = r#"
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="plain",version="1"} 3
nv_inference_request_success{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="plain",reason="REJECTED",version="1"} 1
nv_inference_request_failure{model="plain",reason="CANCELED",version="1"} 2
nv_inference_request_failure{model="plain",reason="BACKEND",version="1"} 3
nv_inference_request_failure{model="plain",reason="OTHER",version="1"} 4
nv_inference_request_failure{_Zone="z",_owner="me \"quoted\"",model="tagged",reason="REJECTED",version="12"} 0
nv_inference_request_failure{_Zone="z",_owner="me \"quoted\"",model="tagged",reason="CANCELED",version="12"} 0
nv_inference_request_failure{_Zone="z",_owner="me \"quoted\"",model="tagged",reason="BACKEND",version="12"} 0
nv_inference_request_failure{_Zone="z",_owner="me \"quoted\"",model="tagged",reason="OTHER",version="12"} 0
# TYPE nv_inference_count counter
nv_inference_count{model="plain",version="1"} 5
nv_inference_count{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="plain",version="1"} 2
nv_inference_exec_count{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{model="plain",version="1"} 197
nv_inference_request_duration_us{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="plain",version="1"} 56
nv_inference_queue_duration_us{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{model="plain",version="1"} 2
nv_inference_compute_input_duration_us{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="plain",version="1"} 46
nv_inference_compute_infer_duration_us{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{model="plain",version="1"} 0
nv_inference_compute_output_duration_us{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="plain",version="1"} 7
nv_inference_pending_request_count{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{model="plain",version="1"} 1.25
nv_model_load_duration_secs{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
# TYPE nv_pinned_memory_pool_total_bytes gauge
nv_pinned_memory_pool_total_bytes 0
# TYPE nv_pinned_memory_pool_used_bytes gauge
nv_pinned_memory_pool_used_bytes 0
# TYPE galatea_model_held_bytes gauge
galatea_model_held_bytes{model="plain",version="1"} 70
galatea_model_held_bytes{_Zone="z",_owner="me \"quoted\"",model="tagged",version="12"} 0
"#;
    assert_eq!(values(&text), values(expected.trim()));
}

#[test]
fn every_family_has_a_help_text() {
    let text = exporter(true).render(&[plain()], None, &[]);
    let helps = text.lines().filter(|line| line.starts_with("# HELP ")).count();
    let types = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(helps, types);
    assert!(text.ends_with('\n'));
}

#[test]
// row: MET-07
fn without_counter_latencies_durations_vanish_and_counters_stop() {
    let text = exporter(false).render(&[plain()], None, &[]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        r#"nv_inference_request_success{model="plain",version="1"} 0"#,
        r#"nv_inference_request_failure{model="plain",reason="REJECTED",version="1"} 0"#,
        r#"nv_inference_request_failure{model="plain",reason="CANCELED",version="1"} 0"#,
        r#"nv_inference_request_failure{model="plain",reason="BACKEND",version="1"} 0"#,
        r#"nv_inference_request_failure{model="plain",reason="OTHER",version="1"} 0"#,
        r#"nv_inference_count{model="plain",version="1"} 0"#,
        r#"nv_inference_exec_count{model="plain",version="1"} 0"#,
        r#"nv_inference_pending_request_count{model="plain",version="1"} 7"#,
        r#"nv_model_load_duration_secs{model="plain",version="1"} 1.25"#,
        "nv_pinned_memory_pool_total_bytes 0",
        "nv_pinned_memory_pool_used_bytes 0",
        r#"galatea_model_held_bytes{model="plain",version="1"} 70"#,
    ];
    assert_eq!(lines, expected);
}

#[test]
// row: MET-10
fn a_model_that_uses_the_cache_has_cache_series() {
    let mut model = plain();
    let lines_of = |model: &ModelStatistics| {
        let text = exporter(true).render(std::slice::from_ref(model), None, &[]);
        text.lines().filter(|line| line.starts_with("nv_cache")).count()
    };
    assert_eq!(lines_of(&model), 0);
    model.is_cached = true;
    assert_eq!(lines_of(&model), 4, "before it was used");
    model.inference.cache_hit = statistic(2, 3_000);
    model.inference.cache_miss = statistic(1, 9_000);
    let text = exporter(true).render(&[model], None, &[]);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("nv_cache")).collect();
    let expected = [
        r#"nv_cache_num_hits_per_model{model="plain",version="1"} 2"#,
        r#"nv_cache_hit_duration_per_model{model="plain",version="1"} 3"#,
        r#"nv_cache_num_misses_per_model{model="plain",version="1"} 1"#,
        r#"nv_cache_miss_duration_per_model{model="plain",version="1"} 9"#,
    ];
    assert_eq!(lines, expected);
}

#[test]
fn the_cache_as_a_whole_has_gauges() {
    let cache = CacheStatistics {
        bytes_used: 256,
        bytes_max: 1024,
        entries: 2,
        hits: 5,
        misses: 3,
        evictions: 1,
        lookup_ns: 29_999,
        insertion_ns: 25_000,
    };
    let text = exporter(true).render(&[], Some(&cache), &[]);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("nv_cache")).collect();
    let expected = [
        "nv_cache_util 0.25",
        "nv_cache_num_entries 2",
        "nv_cache_num_hits 5",
        "nv_cache_num_misses 3",
        "nv_cache_num_lookups 8",
        "nv_cache_num_evictions 1",
        "nv_cache_lookup_duration 29",
        "nv_cache_insertion_duration 25",
    ];
    assert_eq!(lines, expected);
    assert!(text.contains("# TYPE nv_cache_num_hits gauge"));
}

#[test]
// row: CLI-14
fn the_machine_is_shown_only_if_asked_for() {
    let shown = MetricsExporter::new(MetricsOptions::default()).render(&[], None, &[]);
    assert!(shown.contains("\nnv_cpu_memory_total_bytes "), "{shown}");
    assert!(!exporter(true).render(&[], None, &[]).contains("nv_cpu"));
}

fn histogram(bounds: &[f64], counts: &[u64], sum: f64) -> HistogramReading {
    HistogramReading { bounds: bounds.to_vec(), counts: counts.to_vec(), sum }
}

#[test]
fn histograms_and_summaries_stand_behind_the_gauges() {
    let summary = |median| SummaryReading {
        count: 2,
        sum_us: 176,
        quantiles: vec![(0.5, median), (0.999, median)],
    };
    let mut model = plain();
    model.measurements.first_response_ms = Some(histogram(&[100.0, 0.5e4], &[2, 0, 1], 9.0));
    model.measurements.summaries = Some(LatencySummaries {
        request: None,
        queue: summary(Some(8)),
        compute_input: summary(None),
        cache: Some([summary(Some(1)), summary(Some(2))]),
        ..LatencySummaries::default()
    });
    let text = exporter(true).render(&[model], None, &[]);
    let shown = "# TYPE nv_inference_first_response_histogram_ms histogram";
    let start = text.find(shown).unwrap();
    let lines = values(&text[start..]);
    let expected = [
        shown,
        r#"nv_inference_first_response_histogram_ms_count{model="plain",version="1"} 3"#,
        r#"nv_inference_first_response_histogram_ms_sum{model="plain",version="1"} 9"#,
        r#"nv_inference_first_response_histogram_ms_bucket{model="plain",version="1",le="100"} 2"#,
        r#"nv_inference_first_response_histogram_ms_bucket{model="plain",version="1",le="5000"} 2"#,
        r#"nv_inference_first_response_histogram_ms_bucket{model="plain",version="1",le="+Inf"} 3"#,
        "# TYPE nv_inference_queue_summary_us summary",
        r#"nv_inference_queue_summary_us_count{model="plain",version="1"} 2"#,
        r#"nv_inference_queue_summary_us_sum{model="plain",version="1"} 176"#,
        r#"nv_inference_queue_summary_us{model="plain",version="1",quantile="0.5"} 8"#,
        r#"nv_inference_queue_summary_us{model="plain",version="1",quantile="0.999"} 8"#,
        "# TYPE nv_inference_compute_input_summary_us summary",
        r#"nv_inference_compute_input_summary_us_count{model="plain",version="1"} 2"#,
        r#"nv_inference_compute_input_summary_us_sum{model="plain",version="1"} 176"#,
        r#"nv_inference_compute_input_summary_us{model="plain",version="1",quantile="0.5"} Nan"#,
        r#"nv_inference_compute_input_summary_us{model="plain",version="1",quantile="0.999"} Nan"#,
    ];
    assert_eq!(&lines[..expected.len()], expected);
    assert!(!text.contains("nv_inference_request_summary_us"), "it is cached");
    assert!(text.contains(
        "nv_cache_miss_summary_per_model{model=\"plain\",version=\"1\",quantile=\"0.5\"} 2"
    ));
}

#[test]
fn our_own_families_are_counters_by_reason_and_histograms() {
    let mut model = plain();
    let family = |name, counts| CounterFamily { name, help: "what it counts", counts };
    let by_reason = CounterReadings::ByReason(vec![("max_size", 4), ("delay", 0)]);
    model.measurements.counters = vec![
        family(ModelMeasurements::CLOSED_BATCHES, by_reason),
        family("galatea_example_total", CounterReadings::Total(7)),
    ];
    let durations = histogram(&[1e-5, 0.1], &[1, 1, 0], 0.05);
    model.measurements.distributions = Some(ModelHistograms {
        request: durations.clone(),
        queue: durations.clone(),
        compute: durations,
        batch_size: histogram(&[1.0, 2.0], &[3, 0, 0], 3.0),
    });
    let without = exporter(true).render(std::slice::from_ref(&model), None, &[]);
    assert!(!without.contains("galatea_batch_size"), "it was measured for another reader");
    let options = MetricsOptions { galatea_histograms: true, ..MetricsOptions::default() };
    let text = MetricsExporter::new(options).render(&[model], None, &[]);
    for line in [
        r#"galatea_batch_closed_total{model="plain",reason="max_size",version="1"} 4"#,
        r#"galatea_batch_closed_total{model="plain",reason="delay",version="1"} 0"#,
        "# HELP galatea_example_total what it counts",
        "# TYPE galatea_example_total counter",
        r#"galatea_example_total{model="plain",version="1"} 7"#,
        r#"galatea_inference_request_duration_seconds_sum{model="plain",version="1"} 0.05"#,
        r#"galatea_inference_queue_duration_seconds_bucket{model="plain",version="1",le="1e-05"} 1"#,
        r#"galatea_inference_compute_duration_seconds_bucket{model="plain",version="1",le="0.1"} 2"#,
        r#"galatea_batch_size_bucket{model="plain",version="1",le="1"} 3"#,
        "# TYPE galatea_batch_size histogram",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
}
