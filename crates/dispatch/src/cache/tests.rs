//! Tests of a loaded version's cache layer.

use std::sync::Arc;

use galatea_backend::{BackendFingerprint, ExecutionPolicy};
use galatea_control::InferenceStatistics;
use galatea_infer::Status;
use galatea_tensor::Shape;

use super::LocalCache;
use crate::testing::TestServer;
use crate::testing::{ECHO, FakeBackend, FakeModelFiles, ServerSetup, echo_request, send};

const CACHED: &str = "response_cache { enable: true }";

fn serve(more: &str, backend: FakeBackend) -> Arc<TestServer> {
    let cache = Arc::new(LocalCache::new(1 << 20));
    ServerSetup::new(format!("{ECHO} {more}"), backend).cache(cache).serve()
}

fn statistics(server: &TestServer) -> (InferenceStatistics, u64, u64) {
    let all = server.statistics(Some("echo"), None).unwrap();
    (all[0].inference, all[0].inference_count, all[0].execution_count)
}

#[test]
fn an_equal_request_gets_the_cached_response() {
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let batches = backend.batches.clone();
    let server = serve(CACHED, backend);
    for id in ["first", "second"] {
        let mut asked = echo_request(&[2, 3]);
        asked.id = String::from(id);
        let response = send(&server, asked).recv().unwrap().unwrap();
        assert_eq!(response.id, id);
        assert_eq!(response.outputs[0].shape, Shape::new(&[2, 3]).unwrap());
        assert_eq!(response.outputs[0].data.len(), 24);
    }
    assert_eq!(*batches.lock().unwrap(), [2]);
    let (stages, inferences, executions) = statistics(&server);
    assert_eq!((stages.success.count, inferences, executions), (2, 2, 1));
    assert_eq!((stages.cache_hit.count, stages.cache_miss.count), (1, 1));
    assert_eq!(stages.compute_infer.count, 1);
    // The same bytes in a different shape are a different request.
    send(&server, echo_request(&[3, 2])).recv().unwrap().unwrap();
    assert_eq!(*batches.lock().unwrap(), [2, 3]);
}

#[test]
fn a_cache_that_outlives_the_server_has_responses_only_of_the_same_backend() {
    let cache = Arc::new(LocalCache::new(1 << 20));
    let hits = |version: Option<&str>| {
        let fingerprint = version.map(BackendFingerprint::from_version);
        let backend = FakeBackend::new(ExecutionPolicy::Inline);
        let files =
            FakeModelFiles { version: 1, marks: Some(Vec::new()), ..FakeModelFiles::default() };
        let server =
            ServerSetup::new(format!("{ECHO} {CACHED}"), FakeBackend { fingerprint, ..backend })
                .files(vec![files])
                .cache(cache.clone())
                .serve();
        send(&server, echo_request(&[2, 3])).recv().unwrap().unwrap();
        statistics(&server).0.cache_hit.count
    };
    assert_eq!([Some("1"), Some("1"), Some("2"), Some("1")].map(hits), [0, 1, 0, 1]);
    assert_eq!([None, None].map(hits), [0, 0]);
}

#[test]
fn errors_are_not_cached() {
    let backend =
        FakeBackend::with_action(ExecutionPolicy::Inline, |_| Err(Status::internal("not today")));
    let server = serve(CACHED, backend);
    for _ in 0..2 {
        send(&server, echo_request(&[1, 1])).recv().unwrap().unwrap_err();
    }
    let (stages, ..) = statistics(&server);
    assert_eq!((stages.fail.count, stages.cache_hit.count, stages.cache_miss.count), (2, 0, 0));
}

#[test]
fn the_cache_needs_both_server_and_model_settings() {
    let without_model = serve("", FakeBackend::new(ExecutionPolicy::Inline));
    let without_server =
        ServerSetup::new(format!("{ECHO} {CACHED}"), FakeBackend::new(ExecutionPolicy::Inline))
            .serve();
    for server in [without_model, without_server] {
        for _ in 0..2 {
            send(&server, echo_request(&[1, 1])).recv().unwrap().unwrap();
        }
        let (stages, _, executions) = statistics(&server);
        assert_eq!((executions, stages.cache_hit.count, stages.cache_miss.count), (2, 0, 0));
    }
}

#[test]
fn a_hit_keeps_its_place_among_ordered_replies() {
    let ordered = format!("{CACHED} dynamic_batching {{ preserve_ordering: true }}");
    let server = serve(&ordered, FakeBackend::new(ExecutionPolicy::Inline));
    for _ in 0..3 {
        send(&server, echo_request(&[1, 1])).recv().unwrap().unwrap();
    }
    let (stages, ..) = statistics(&server);
    assert_eq!(stages.cache_hit.count, 2);
}
