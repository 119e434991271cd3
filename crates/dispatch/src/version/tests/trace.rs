//! Tests of the contents of a request's trace.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use galatea_backend::ExecutionPolicy;
use galatea_infer::{
    CancelToken, InferenceRequest, Status, TensorTracePoint, Trace, TracePoint, TraceSink,
    TraceSubject, TracedTensor,
};
use galatea_stdx::testing::wait_until;

use crate::cache::LocalCache;
use crate::testing::TestServer;
use crate::testing::{ECHO, FakeBackend, ServerSetup, echo_request, send};

/// The records, and the latest time among them.
type Log = Arc<Mutex<(Vec<String>, Option<Instant>)>>;

#[derive(Debug)]
struct Writer(Log);

impl Writer {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().0.push(line.into());
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.write("gone");
    }
}

impl TraceSink for Writer {
    fn wants_tensors(&self) -> bool {
        true
    }
    fn begin(&self, subject: &TraceSubject<'_>) {
        let (name, version, id) = (subject.model_name, subject.model_version, subject.request_id);
        self.write(format!("{name}/{version} {id}"));
    }
    fn record(&self, point: TracePoint, at: Instant) {
        self.write(format!("{point:?}"));
        let earlier = self.0.lock().unwrap().1.replace(at);
        assert!(earlier.is_none_or(|earlier| earlier <= at), "{point:?} goes back in time");
    }
    fn record_tensor(&self, point: TensorTracePoint, tensor: &TracedTensor<'_>) {
        self.write(format!("{point:?} {} {:?}", tensor.name, tensor.dims));
    }
    fn end(&self) {
        self.write("ended");
    }
    fn child(&self) -> Option<Box<dyn TraceSink>> {
        None
    }
}

fn traced(dims: &[i64]) -> (InferenceRequest, Log) {
    let log = Log::default();
    let trace = Some(Trace::new(Box::new(Writer(log.clone()))));
    (InferenceRequest { id: String::from("id"), trace, ..echo_request(dims) }, log)
}

fn recorded(log: &Log) -> Vec<String> {
    log.lock().unwrap().0.clone()
}

fn serve(more: &str) -> ServerSetup {
    ServerSetup::new(format!("{ECHO} {more}"), FakeBackend::new(ExecutionPolicy::Inline))
}

const QUEUED: [&str; 4] = ["echo/1 id", "RequestStart", "QueueStart", "QueueInput IN [2, 3]"];
const COMPUTED: [&str; 4] = ["ComputeStart", "ComputeInputEnd", "ComputeOutputStart", "ComputeEnd"];
const ENDED: [&str; 2] = ["ended", "gone"];

fn all_of(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().into_iter().map(String::from).collect()
}

/// Sends a request, and returns its trace records once the trace has ended.
fn trace_of(server: &TestServer, dims: &[i64]) -> Vec<String> {
    let (request, log) = traced(dims);
    let _ = send(server, request).recv().unwrap();
    recorded(&log)
}

#[test]
fn every_trace_point_of_a_request_is_recorded() {
    let expected = all_of(&[&QUEUED, &["BackendOutput OUT [2, 3]"], &COMPUTED, &ENDED]);
    assert_eq!(trace_of(&serve("").serve(), &[2, 3]), expected);
}

#[test]
fn outputs_are_recorded_in_the_shape_of_clients() {
    let text = r#"
        name: "echo" backend: "fake" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: [ 3 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ 3, 1 ] reshape { shape: [ 3 ] } }
    "#;
    let server = ServerSetup::new(text, FakeBackend::new(ExecutionPolicy::Inline)).serve();
    let expected = all_of(&[&QUEUED, &["BackendOutput OUT [2, 3, 1]"], &COMPUTED, &ENDED]);
    assert_eq!(trace_of(&server, &[2, 3]), expected);
}

#[test]
fn requests_of_a_batch_have_separate_traces() {
    let server = serve("dynamic_batching {}").hold(2, 0).serve();
    let (first, first_log) = traced(&[2, 3]);
    let first_inbox = send(&server, first);
    assert_eq!(recorded(&first_log), all_of(&[&QUEUED]));
    let expected = all_of(&[&QUEUED, &["BackendOutput OUT [2, 3]"], &COMPUTED, &ENDED]);
    assert_eq!(trace_of(&server, &[2, 3]), expected);
    first_inbox.recv().unwrap().unwrap();
    assert_eq!(recorded(&first_log), expected);
}

#[test]
fn the_trace_of_a_cached_response_has_no_execution() {
    let cache = Arc::new(LocalCache::new(1 << 20));
    let server = serve("response_cache { enable: true }").cache(cache).serve();
    let answer = ["BackendOutput OUT [2, 3]"];
    assert_eq!(trace_of(&server, &[2, 3]), all_of(&[&QUEUED, &answer, &COMPUTED, &ENDED]));
    assert_eq!(trace_of(&server, &[2, 3]), all_of(&[&QUEUED, &answer, &ENDED]));
}

#[test]
fn requests_that_share_an_execution_have_separate_traces() {
    let (backend, entries, release) = FakeBackend::gated();
    let more = "parameters { key: 'coalesce' value { string_value: 'true' } }";
    let server = ServerSetup::new(format!("{ECHO} {more}"), backend).serve();
    let (first, first_log) = traced(&[2, 3]);
    let first_inbox = send(&server, first);
    entries.recv().unwrap();
    let (second, second_log) = traced(&[2, 3]);
    let second_inbox = send(&server, second);
    release.send(()).unwrap();
    let expected = all_of(&[&QUEUED, &["BackendOutput OUT [2, 3]"], &COMPUTED, &ENDED]);
    for (inbox, log) in [(first_inbox, first_log), (second_inbox, second_log)] {
        inbox.recv().unwrap().unwrap();
        wait_until("the trace has ended", || recorded(&log) == expected);
    }
}

#[test]
fn a_refused_request_ends_its_trace() {
    let expected = all_of(&[&QUEUED[..2], &ENDED]);
    assert_eq!(trace_of(&serve("").serve(), &[9, 3]), expected);
}

#[test]
fn a_request_for_an_unknown_model_never_begins_its_trace() {
    let (mut request, log) = traced(&[2, 3]);
    request.model_name = String::from("other");
    send(&serve("").serve(), request).recv().unwrap().unwrap_err();
    assert_eq!(recorded(&log), ["gone"]);
}

#[test]
fn an_error_of_the_backend_ends_the_trace() {
    let refuse = |_: &[_]| Err(Status::internal("not today"));
    let backend = FakeBackend::with_action(ExecutionPolicy::Inline, refuse);
    assert_eq!(
        trace_of(&ServerSetup::new(ECHO, backend).serve(), &[2, 3]),
        all_of(&[&QUEUED, &ENDED])
    );
}

#[test]
fn a_cancelled_request_ends_its_trace() {
    let server = serve("dynamic_batching {}").hold(2, 0).serve();
    let (mut request, log) = traced(&[2, 3]);
    let cancel = CancelToken::new();
    request.cancel = cancel.clone();
    let inbox = send(&server, request);
    assert_eq!(recorded(&log), all_of(&[&QUEUED]));
    cancel.cancel();
    inbox.recv().unwrap().unwrap_err();
    assert_eq!(recorded(&log), all_of(&[&QUEUED, &ENDED]));
}
