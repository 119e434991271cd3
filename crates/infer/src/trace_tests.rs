use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use galatea_tensor::{Buffer, DataType, Shape};

use super::*;
use crate::{
    ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest, OutputTensor,
    PendingRequest, RequestObserver, RequestTimes, Status,
};

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down what it is told.
#[derive(Debug)]
struct Writer {
    name: String,
    log: Log,
    tensors: bool,
}

impl Writer {
    fn write(&self, line: String) {
        self.log.lock().unwrap().push(format!("{} {line}", self.name));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.write(String::from("gone"));
    }
}

impl TraceSink for Writer {
    fn wants_tensors(&self) -> bool {
        self.tensors
    }
    fn begin(&self, subject: &TraceSubject<'_>) {
        self.write(format!("is {}/{}", subject.model_name, subject.model_version));
    }
    fn record(&self, point: TracePoint, _: Instant) {
        self.write(format!("{point:?}"));
    }
    fn record_tensor(&self, point: TensorTracePoint, tensor: &TracedTensor<'_>) {
        self.write(format!("{point:?} {} {:?}", tensor.name, tensor.dims));
    }
    fn end(&self) {
        self.write(String::from("ended"));
    }
    fn child(&self) -> Option<Box<dyn TraceSink>> {
        let name = format!("{}.child", self.name);
        Some(Box::new(Self { name, log: self.log.clone(), tensors: self.tensors }))
    }
    fn underlying(&self) -> Option<&dyn Any> {
        Some(&self.name)
    }
}

#[derive(Debug)]
struct NoBooks;

impl RequestObserver for NoBooks {
    fn succeeded(&self, _: u32, _: &RequestTimes, _: &ExecutionSummary) {}
    fn failed(&self, _: &RequestTimes, _: FailureReason) {}
}

fn begun(tensors: bool, log: &Log) -> Arc<Trace> {
    let sink = Writer { name: String::from("t"), log: log.clone(), tensors };
    let trace = Trace::new(Box::new(sink));
    let subject = TraceSubject { model_name: "m", model_version: 7, request_id: "" };
    trace.begin(&subject, Instant::now());
    trace
}

fn response() -> InferenceResponse {
    let output = OutputTensor {
        name: Arc::from("y"),
        datatype: DataType::Uint8,
        shape: Shape::new(&[2]).unwrap(),
        data: Buffer::from_vec(vec![1, 2]),
    };
    InferenceResponse {
        model_name: Arc::from("m"),
        model_version: 7,
        id: String::new(),
        parameters: Vec::new(),
        outputs: vec![output],
    }
}

fn times() -> ExecutionTimes {
    let start = Instant::now();
    let after = |milliseconds| start + Duration::from_millis(milliseconds);
    ExecutionTimes { start, compute_start: after(1), compute_end: after(2), end: after(3) }
}

/// What a trace is told of a request that ends in a certain way, and when the
/// client is answered.
fn check(tensors: bool, end: impl FnOnce(PendingRequest), expected: &[&str]) {
    let log = Log::default();
    let trace = begun(tensors, &log);
    let answers = log.clone();
    let client = ResponseSender::new(Box::new(move |reply: Reply| {
        let end = if reply.is_final() { " for good" } else { "" };
        answers.lock().unwrap().push(format!("answered{end}"));
    }));
    let input = InputTensor {
        name: String::from("x"),
        datatype: DataType::Uint8,
        shape: Shape::new(&[1]).unwrap(),
        data: Buffer::from_vec(vec![3]),
    };
    let request =
        InferenceRequest { inputs: vec![input], trace: Some(trace), ..InferenceRequest::default() };
    let now = Instant::now();
    let trace = request.trace.as_ref().unwrap();
    trace.record_queued(&request.inputs, now);
    let sender = trace.wrap_sender(client);
    let request_times = RequestTimes { arrival: now, queued: now };
    end(PendingRequest::new(request, sender, 1, request_times, Arc::new(NoBooks)));
    let seen = log.lock().unwrap();
    let (start, rest) = seen.split_at(if tensors { 4 } else { 3 });
    assert_eq!(start[..3], ["t is m/7", "t RequestStart", "t QueueStart"]);
    assert_eq!(start.get(3).map(String::as_str), tensors.then_some("t QueueInput x [1]"));
    assert_eq!(*rest, *expected);
}

const COMPUTED: [&str; 4] =
    ["t ComputeStart", "t ComputeInputEnd", "t ComputeOutputStart", "t ComputeEnd"];

fn lines<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<&'a str> {
    [before, &COMPUTED, after].concat()
}

#[test]
fn an_answer_comes_before_the_execution_and_the_end_last() {
    let complete = |request: PendingRequest| request.complete(Ok(response()), &times());
    check(false, complete, &lines(&["answered for good"], &["t ended", "t gone"]));
    let told = ["t BackendOutput y [2]", "answered for good"];
    check(true, complete, &lines(&told, &["t ended", "t gone"]));
    let fail = |request: PendingRequest| request.complete(Err(Status::internal("")), &times());
    check(true, fail, &lines(&["answered for good"], &["t ended", "t gone"]));
}

#[test]
fn each_response_of_a_decoupled_model_is_told() {
    let each = ["t BackendOutput y [2]", "answered"];
    let told = [each[0], each[1], each[0], each[1], "answered for good"];
    let act = |mut request: PendingRequest| {
        request.respond(Ok(response()));
        request.respond(Ok(response()));
        request.finish(&times());
    };
    check(true, act, &lines(&told, &["t ended", "t gone"]));
}

#[test]
fn a_request_that_does_not_run_ends_its_trace() {
    let ended = ["answered for good", "t ended", "t gone"];
    let fail = |request: PendingRequest| request.fail(Status::internal(""), FailureReason::Other);
    check(true, fail, &ended);
    check(true, drop, &ended);
}

#[test]
fn responses_after_the_release_are_not_told() {
    let act = |mut request: PendingRequest| {
        let responder = request.take_responder().unwrap();
        drop(request);
        responder.complete(Ok(response()), ExecutionSummary::from(&times()));
    };
    check(true, act, &["t ended", "t gone", "answered for good"]);
}

#[test]
fn a_trace_that_never_began_has_no_end() {
    let log = Log::default();
    let sink = Writer { name: String::from("t"), log: log.clone(), tensors: true };
    drop(Trace::new(Box::new(sink)));
    assert_eq!(*log.lock().unwrap(), ["t gone"]);
}

#[test]
fn a_child_ends_before_its_parent() {
    let log = Log::default();
    let trace = begun(false, &log);
    let child = trace.child().unwrap();
    let subject = TraceSubject { model_name: "step", model_version: 1, request_id: "" };
    child.begin(&subject, Instant::now());
    assert_eq!(
        child.underlying().and_then(|name| name.downcast_ref::<String>()).unwrap(),
        "t.child"
    );
    drop(trace);
    drop(child);
    let seen = log.lock().unwrap();
    let ends = ["t.child ended", "t.child gone", "t ended", "t gone"];
    assert_eq!(seen[2..], [&["t.child is step/1", "t.child RequestStart"][..], &ends].concat());
}
