//! Tests of measurements that the statistics don't include.

use galatea_backend::ExecutionPolicy::Blocking;
use galatea_control::ModelMeasurements;

use crate::testing::{ECHO, FakeBackend, LONG, ServerSetup, TestServer, echo_request, send};
use crate::{LocalCache, ModelMetricOptions};

const BATCHED: &str = "dynamic_batching { } instance_group { kind: KIND_CPU count: 1 }";

fn all() -> ModelMetricOptions {
    let quantiles = Some([0.5, 1.0].as_slice().into());
    ModelMetricOptions { distributions: true, first_response: true, quantiles, gpus: true }
}

fn setup(more: &str) -> ServerSetup {
    ServerSetup::new(format!("{ECHO} {more}"), FakeBackend::new(Blocking))
}

fn measured(server: &TestServer) -> ModelMeasurements {
    server.statistics(None, None).unwrap().remove(0).measurements
}

/// Sends requests of these shapes at once, and waits for their replies.
fn ask(server: &TestServer, shapes: &[[i64; 2]]) {
    let inboxes: Vec<_> = shapes.iter().map(|dims| send(server, echo_request(dims))).collect();
    for inbox in inboxes {
        let _ = inbox.recv_timeout(LONG).unwrap();
    }
}

fn count(counts: &[(&str, u64)], reason: &str) -> u64 {
    counts.iter().find(|(name, _)| *name == reason).unwrap().1
}

#[test]
fn batches_are_counted_by_the_reason_for_their_end() {
    let server = setup(BATCHED).hold(4, 0).serve();
    ask(&server, &[[2, 4], [1, 4], [1, 5], [1, 4]]);
    let measured = measured(&server);
    let closed = measured.counts_by_reason(ModelMeasurements::CLOSED_BATCHES);
    let total: u64 = closed.iter().map(|(_, count)| count).sum();
    assert_eq!((count(closed, "shape"), count(closed, "instance_idle"), total), (2, 1, 3));
}

#[test]
// row: DYN-10 MET-02
fn requests_that_are_not_executed_are_counted_by_reason() {
    let policy = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }";
    let server = setup(policy).hold(9, 0).serve();
    let waiting: Vec<_> = (0..2).map(|_| send(&server, echo_request(&[1, 4]))).collect();
    ask(&server, &[[1, 4], [9_999, 4]]);
    let measured = measured(&server);
    let unexecuted = measured.counts_by_reason(ModelMeasurements::UNEXECUTED);
    assert_eq!(count(unexecuted, "queue_full"), 1);
    assert_eq!(count(unexecuted, "invalid"), 1);
    server.unload_all(LONG);
    drop(waiting);
}

#[test]
fn every_answered_request_is_in_each_distribution_once() {
    let server = setup(BATCHED).measurements(all()).serve();
    ask(&server, &[[1, 4]; 3]);
    ask(&server, &[[9_999, 4]]);
    let measured = measured(&server);
    let total = |counts: &[u64]| counts.iter().sum::<u64>();
    let own = measured.distributions.unwrap();
    for histogram in [&own.request, &own.queue, &own.compute] {
        assert_eq!((histogram.counts.len(), total(&histogram.counts)), (22, 3));
    }
    assert_eq!(own.batch_size.sum, 3.0);
    assert_eq!(total(&measured.first_response_ms.unwrap().counts), 3);
    let summaries = measured.summaries.unwrap();
    assert_eq!(summaries.cache, None);
    for summary in [&summaries.request.unwrap(), &summaries.queue, &summaries.compute_infer] {
        assert_eq!(summary.count, 3);
        assert!(summary.quantiles[1].1 >= summary.quantiles[0].1, "{summary:?}");
        assert!(summary.quantiles[1].1.unwrap() <= summary.sum_us + 1);
    }
}

#[test]
fn a_model_with_the_cache_has_summaries_of_the_cache_instead_of_whole_requests() {
    let cache = std::sync::Arc::new(LocalCache::new(1 << 20));
    let more = format!("{BATCHED} response_cache {{ enable: true }}");
    let server = setup(&more).cache(cache).measurements(all()).serve();
    for _ in 0..3 {
        ask(&server, &[[1, 4]]);
    }
    let measured = measured(&server);
    let summaries = measured.summaries.unwrap();
    assert_eq!(summaries.request, None);
    let [hits, misses] = summaries.cache.unwrap();
    assert_eq!((hits.count, misses.count, summaries.queue.count), (2, 1, 3));
    assert!(hits.quantiles[0].1.is_some() && misses.quantiles[0].1.is_some());
    let own = measured.distributions.unwrap();
    let total = |counts: &[u64]| counts.iter().sum::<u64>();
    assert_eq!((total(&own.request.counts), total(&own.compute.counts)), (3, 1));
    assert_eq!(total(&measured.first_response_ms.unwrap().counts), 3);
}

#[test]
fn responses_to_warmup_samples_are_not_in_the_histogram() {
    let input = "inputs { key: 'IN' value { data_type: TYPE_FP32 dims: 1 zero_data: true } }";
    let warmup = format!("{BATCHED} model_warmup {{ name: 'w' batch_size: 1 {input} }}");
    let measured = measured(&setup(&warmup).measurements(all()).serve());
    assert_eq!(measured.distributions.unwrap().request.counts.iter().sum::<u64>(), 1);
    assert_eq!(measured.first_response_ms.unwrap().counts.iter().sum::<u64>(), 0);
}

#[test]
fn a_model_sets_the_buckets_of_the_first_response() {
    let with = |buckets: &str| {
        setup(&format!(
            "model_metrics {{ metric_control {{ metric_identifier {{ family: \
             'nv_inference_first_response_histogram_ms' }} histogram_options {{ buckets: \
             [ {buckets} ] }} }} }}"
        ))
    };
    let server = with("1.5, 3").measurements(all()).serve();
    assert_eq!(measured(&server).first_response_ms.unwrap().bounds, [1.5, 3.0]);
    let (_, failures) = with("3, 1").measurements(all()).load();
    assert!(format!("{failures:?}").contains("must ascend strictly"), "{failures:?}");
    // Without the histogram, the configured buckets are ignored.
    assert_eq!(measured(&with("3, 1").serve()).first_response_ms, None);
}

#[test]
fn only_what_is_asked_for_is_recorded() {
    let server = setup(BATCHED).serve();
    ask(&server, &[[1, 4]]);
    let ModelMeasurements { first_response_ms, summaries, distributions, .. } = measured(&server);
    assert_eq!((first_response_ms, summaries, distributions), (None, None, None));
}
