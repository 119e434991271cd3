//! Tests of equal requests to a loaded version, with backends controlled by the test.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::ExecutionPolicy::{Blocking, Inline};
use galatea_control::{CounterReadings, ModelMeasurements, ModelStatistics};
use galatea_infer::{CancelToken, Code, Deadline, InferenceRequest, Status};
use galatea_tensor::{Buffer, Shape};

use crate::LocalCache;
use crate::testing::{
    ECHO, FakeBackend, LONG, ReplyReceiver, ServerSetup, TestServer, echo_request, send,
};

const COALESCE: &str = "parameters { key: 'coalesce' value { string_value: 'true' } }";
const ONE_INSTANCE: &str = "instance_group { kind: KIND_CPU count: 1 }";
const DEADLINES: &str = "dynamic_batching { } \
     parameters { key: 'latency_objective_us' value { string_value: '0' } }";

fn setup(more: &str, backend: FakeBackend) -> ServerSetup {
    ServerSetup::new(format!("{ECHO} {COALESCE} {ONE_INSTANCE} {more}"), backend)
}

fn request(id: &str, value: u8) -> InferenceRequest {
    let mut request = echo_request(&[1, 1]);
    request.id = String::from(id);
    request.inputs[0].data = Buffer::from_vec(vec![value; 4]);
    request
}

fn cancellable(id: &str, value: u8) -> (CancelToken, InferenceRequest) {
    let cancel = CancelToken::new();
    (cancel.clone(), InferenceRequest { cancel, ..request(id, value) })
}

fn statistics(server: &TestServer) -> ModelStatistics {
    server.statistics(None, None).unwrap().remove(0)
}

fn coalesced(server: &TestServer) -> u64 {
    let counters = statistics(server).measurements.counters;
    let family = counters.iter().find(|family| family.name == ModelMeasurements::COALESCED);
    match family.map(|family| &family.counts) {
        Some(CounterReadings::Total(count)) => *count,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_response(inbox: &ReplyReceiver, id: &str, value: u8) {
    let response = inbox.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(response.id, id);
    assert_eq!(response.outputs[0].data.host_bytes().unwrap()[..], [value; 4]);
}

#[track_caller]
fn check_error(inbox: &ReplyReceiver, code: Code, text: &str) {
    let status = inbox.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (code, text));
}

#[test]
fn a_hundred_equal_requests_are_executed_once() {
    let (backend, entries, release) = FakeBackend::gated();
    let batches = backend.batches.clone();
    let server = setup("", backend).serve();
    let ids: Vec<String> = (0..100).map(|number| format!("r{number}")).collect();
    let inboxes: Vec<_> = ids.iter().map(|id| send(&server, request(id, 7))).collect();
    entries.recv_timeout(LONG).unwrap();
    assert_eq!(coalesced(&server), 99);
    release.send(()).unwrap();
    for (id, inbox) in ids.iter().zip(&inboxes) {
        check_response(inbox, id, 7);
    }
    assert_eq!(*batches.lock().unwrap(), [1]);
    let counted = statistics(&server);
    assert_eq!((counted.inference_count, counted.execution_count), (100, 1));
    let stages = counted.inference;
    assert_eq!([stages.success.count, stages.queue.count, stages.compute_infer.count], [100; 3]);
    assert_eq!(counted.batches.len(), 1);
    drop(release);
    check_response(&send(&server, request("later", 7)), "later", 7);
    assert_eq!(*batches.lock().unwrap(), [1, 1]);
}

#[test]
fn an_execution_on_the_callers_thread_is_shared_with_none() {
    let server = setup("", FakeBackend::new(Inline)).serve();
    for id in ["a", "b"] {
        check_response(&send(&server, request(id, 1)), id, 1);
    }
    assert_eq!(statistics(&server).execution_count, 2);
}

#[test]
fn different_requests_are_executed_by_themselves() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup("", backend).serve();
    let requests = [
        request("a", 1),
        request("b", 2),
        InferenceRequest { priority: 1, ..request("c", 1) },
        InferenceRequest { timeout_microseconds: 9, ..request("d", 1) },
    ];
    let inboxes: Vec<_> = requests.map(|request| send(&server, request)).into();
    entries.recv_timeout(LONG).unwrap();
    drop(release);
    for (inbox, (id, value)) in inboxes.iter().zip([("a", 1), ("b", 2), ("c", 1), ("d", 1)]) {
        check_response(inbox, id, value);
    }
    assert_eq!((statistics(&server).execution_count, coalesced(&server)), (4, 0));
}

#[test]
fn a_model_without_the_parameter_shares_no_execution_and_has_no_counter() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = ServerSetup::new(format!("{ECHO} {ONE_INSTANCE}"), backend).serve();
    let inboxes = ["a", "b"].map(|id| send(&server, request(id, 1)));
    entries.recv_timeout(LONG).unwrap();
    drop(release);
    check_response(&inboxes[0], "a", 1);
    check_response(&inboxes[1], "b", 1);
    let counted = statistics(&server);
    assert_eq!(counted.execution_count, 2);
    let counters = counted.measurements.counters;
    assert!(counters.iter().all(|family| family.name != ModelMeasurements::COALESCED));
}

#[test]
fn a_cancelled_leader_does_not_cancel_the_followers() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup("", backend).serve();
    let (cancel, leader) = cancellable("leader", 3);
    let leader = send(&server, leader);
    let followers = ["b", "c"].map(|id| send(&server, request(id, 3)));
    entries.recv_timeout(LONG).unwrap();
    cancel.cancel();
    check_error(&leader, Code::Cancelled, "[request id: leader] Request cancelled");
    release.send(()).unwrap();
    check_response(&followers[0], "b", 3);
    check_response(&followers[1], "c", 3);
    let counted = statistics(&server);
    assert_eq!((counted.inference_count, counted.execution_count), (2, 1));
    assert_eq!(counted.failures, [0, 1, 0, 0]);
}

#[test]
fn a_cancelled_follower_leaves_alone() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup("", backend).serve();
    let leader = send(&server, request("leader", 3));
    let (cancel, follower) = cancellable("follower", 3);
    let follower = send(&server, follower);
    entries.recv_timeout(LONG).unwrap();
    cancel.cancel();
    check_error(&follower, Code::Cancelled, "[request id: follower] Request cancelled");
    release.send(()).unwrap();
    check_response(&leader, "leader", 3);
}

#[test]
fn an_execution_that_all_have_cancelled_leaves_the_queue() {
    let (backend, entries, release) = FakeBackend::gated();
    let batches = backend.batches.clone();
    let server = setup("", backend).serve();
    let busy = send(&server, request("busy", 1));
    entries.recv_timeout(LONG).unwrap();
    let (cancel_leader, leader) = cancellable("leader", 2);
    let (cancel_follower, follower) = cancellable("follower", 2);
    let (leader, follower) = (send(&server, leader), send(&server, follower));
    cancel_leader.cancel();
    check_error(&leader, Code::Cancelled, "[request id: leader] Request cancelled");
    cancel_follower.cancel();
    // The queued request has the leader's identifier, the reply that of its receiver.
    check_error(&follower, Code::Cancelled, "[request id: follower] Request cancelled");
    let late = send(&server, request("late", 2));
    drop(release);
    check_response(&busy, "busy", 1);
    check_response(&late, "late", 2);
    assert_eq!(batches.lock().unwrap().len(), 2);
    assert_eq!(statistics(&server).failures, [0, 2, 0, 0]);
}

#[test]
fn a_request_that_is_cancelled_before_it_arrives_ends() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup("", backend).serve();
    let busy = send(&server, request("busy", 1));
    entries.recv_timeout(LONG).unwrap();
    let (cancel, gone) = cancellable("gone", 2);
    cancel.cancel();
    let gone = send(&server, gone);
    check_error(&gone, Code::Cancelled, "[request id: gone] Request cancelled");
    drop(release);
    check_response(&busy, "busy", 1);
}

#[test]
fn an_error_is_the_result_of_all_with_their_own_identifiers() {
    let (release, releases) = mpsc::channel::<()>();
    let releases = Mutex::new(releases);
    let backend = FakeBackend::with_action(Blocking, move |requests| {
        let _ = releases.lock().unwrap().recv_timeout(LONG);
        Err(Status::internal("broken").prefixed(requests[0].request().log_prefix()))
    });
    let server = setup("", backend).serve();
    let inboxes = ["a", "b", ""].map(|id| send(&server, request(id, 1)));
    assert_eq!(coalesced(&server), 2);
    drop(release);
    for (inbox, id) in inboxes.iter().zip(["a", "b", "<id_unknown>"]) {
        check_error(inbox, Code::Internal, &format!("[request id: {id}] broken"));
    }
    let counted = statistics(&server);
    assert_eq!((counted.failures, counted.inference.fail.count), ([0, 0, 3, 0], 3));
}

#[test]
fn a_refused_execution_is_counted_as_a_refused_request() {
    let (backend, entries, release) = FakeBackend::gated();
    let full = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }";
    let server = setup(full, backend).serve();
    let busy = send(&server, request("busy", 1));
    entries.recv_timeout(LONG).unwrap();
    let waiting = send(&server, request("waiting", 2));
    // Followers take no place in the queue.
    let follower = send(&server, request("follower", 2));
    let refused = send(&server, request("refused", 3));
    check_error(&refused, Code::Unavailable, "[request id: refused] Exceeds maximum queue size");
    assert_eq!(statistics(&server).failures, [0; 4]);
    drop(release);
    check_response(&busy, "busy", 1);
    check_response(&waiting, "waiting", 2);
    check_response(&follower, "follower", 2);
}

fn due_in(id: &str, time: Duration) -> InferenceRequest {
    InferenceRequest { deadline: Deadline::At(Instant::now() + time), ..request(id, 2) }
}

#[test]
fn followers_outlive_a_leader_that_is_too_late() {
    let (backend, entries, release) = FakeBackend::gated();
    let batches = backend.batches.clone();
    let server = setup(DEADLINES, backend).serve();
    let busy = send(&server, request("busy", 1));
    entries.recv_timeout(LONG).unwrap();
    let leader = send(&server, due_in("leader", Duration::from_millis(20)));
    let followers = ["b", "c"].map(|id| send(&server, request(id, 2)));
    let status = leader.recv_timeout(LONG).unwrap().unwrap_err();
    assert!(status.message().starts_with("[request id: leader] "), "{status}");
    assert!(status.message().contains("answered too late"), "{status}");
    drop(release);
    check_response(&busy, "busy", 1);
    check_response(&followers[0], "b", 2);
    check_response(&followers[1], "c", 2);
    assert_eq!(batches.lock().unwrap().len(), 2);
    assert_eq!(statistics(&server).failures, [1, 0, 0, 0]);
}

#[test]
fn an_urgent_request_does_not_wait_for_a_later_deadline() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup(DEADLINES, backend).serve();
    let busy = send(&server, request("busy", 1));
    entries.recv_timeout(LONG).unwrap();
    let calm = send(&server, request("calm", 2));
    let urgent = send(&server, due_in("urgent", LONG));
    assert_eq!(coalesced(&server), 0);
    let between = send(&server, due_in("between", LONG * 2));
    assert_eq!(coalesced(&server), 1);
    drop(release);
    for (inbox, id, value) in [(busy, "busy", 1), (calm, "calm", 2), (urgent, "urgent", 2)] {
        check_response(&inbox, id, value);
    }
    check_response(&between, "between", 2);
}

/// Each restarted execution is too late as well, when it is queued.
#[test]
fn many_deadlines_that_pass_fail_without_recursion() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup(DEADLINES, backend).serve();
    let busy = send(&server, request("busy", 1));
    entries.recv_timeout(LONG).unwrap();
    let deadline = Instant::now() + Duration::from_millis(100);
    let inboxes: Vec<_> = (0..5_000)
        .map(|number| {
            let deadline = Deadline::At(deadline + Duration::from_nanos(number));
            send(&server, InferenceRequest { deadline, ..request("late", 2) })
        })
        .collect();
    for inbox in inboxes {
        let status = inbox.recv_timeout(LONG).unwrap().unwrap_err();
        assert!(status.message().contains("answered too late"), "{status}");
    }
    drop(release);
    check_response(&busy, "busy", 1);
}

#[test]
fn a_response_is_cached_once_for_all() {
    let (backend, entries, release) = FakeBackend::gated();
    let cache = Arc::new(LocalCache::new(1 << 20));
    let server = setup("response_cache { enable: true }", backend).cache(cache).serve();
    let inboxes = ["a", "b", "c"].map(|id| send(&server, request(id, 1)));
    entries.recv_timeout(LONG).unwrap();
    release.send(()).unwrap();
    for (inbox, id) in inboxes.iter().zip(["a", "b", "c"]) {
        check_response(inbox, id, 1);
    }
    check_response(&send(&server, request("hit", 1)), "hit", 1);
    let counted = statistics(&server);
    let stages = counted.inference;
    assert_eq!((stages.cache_miss.count, stages.cache_hit.count), (1, 1));
    assert_eq!((counted.inference_count, counted.execution_count), (3, 1));
}

#[test]
fn all_see_reshaped_outputs() {
    let (backend, entries, release) = FakeBackend::gated();
    let text = format!("{ECHO} {COALESCE} {ONE_INSTANCE}").replace(
        "name: \"OUT\" data_type: TYPE_FP32 dims: [ -1 ]",
        "name: \"OUT\" data_type: \
             TYPE_FP32 dims: [ 1, 1 ] reshape { shape: [ 1 ] }",
    );
    let server = ServerSetup::new(text, backend).serve();
    let inboxes = ["a", "b"].map(|id| send(&server, request(id, 1)));
    entries.recv_timeout(LONG).unwrap();
    release.send(()).unwrap();
    for inbox in inboxes {
        let response = inbox.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(response.outputs[0].shape, Shape::new(&[1, 1, 1]).unwrap());
    }
}

#[test]
fn requests_that_share_an_execution_end_before_the_version_does() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = setup("", backend).serve();
    let inboxes = ["a", "b"].map(|id| send(&server, request(id, 1)));
    entries.recv_timeout(LONG).unwrap();
    release.send(()).unwrap();
    assert_eq!(server.unload_all(LONG), 0);
    for (inbox, id) in inboxes.iter().zip(["a", "b"]) {
        check_response(inbox, id, 1);
    }
}
