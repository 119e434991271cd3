use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use galatea_tensor::{Buffer, DataType, Shape};

use super::*;
use crate::{
    AdmissionTimes, ExecutionReadings, ExecutionSummary, ExecutionTimes, FailureReason,
    InferenceRequest, OutputTensor, PendingRequest, RequestObserver, Status,
};

type Log = Arc<Mutex<Vec<String>>>;

/// Records its calls as lines of text.
#[derive(Debug)]
struct LogSink {
    name: String,
    log: Log,
    tensors: bool,
}

impl LogSink {
    fn write(&self, line: String) {
        self.log.lock().unwrap().push(format!("{} {line}", self.name));
    }
}

impl Drop for LogSink {
    fn drop(&mut self) {
        self.write(String::from("dropped"));
    }
}

impl TraceSink for LogSink {
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
struct NoStatistics;

impl RequestObserver for NoStatistics {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}
    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

fn begun(tensors: bool, log: &Log) -> Arc<Trace> {
    let sink = LogSink { name: String::from("t"), log: log.clone(), tensors };
    let trace = Trace::new(Box::new(sink));
    let subject =
        TraceSubject { model_name: "m", model_version: 7, request_id: "", deadline: None };
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
        parameters: Default::default(),
        outputs: vec![output],
    }
}

fn times() -> ExecutionTimes {
    let start = Instant::now();
    let after = |milliseconds| start + Duration::from_millis(milliseconds);
    ExecutionTimes::from(ExecutionReadings {
        start,
        compute_start: after(1),
        compute_end: after(2),
        end: after(3),
    })
}

/// Checks the calls and replies after `end` ends a request.
fn check(tensors: bool, end: impl FnOnce(PendingRequest), expected: &[&str]) {
    let log = Log::default();
    let trace = begun(tensors, &log);
    let replies = log.clone();
    let client = ResponseSender::new(Box::new(move |reply: Reply| {
        let line = if reply.is_final() { "final reply" } else { "reply" };
        replies.lock().unwrap().push(String::from(line));
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
    let request_times = AdmissionTimes { arrival: now, queued: now };
    end(PendingRequest::new(request, sender, 1, request_times, Arc::new(NoStatistics)));
    let lines = log.lock().unwrap();
    let (start, rest) = lines.split_at(if tensors { 4 } else { 3 });
    assert_eq!(start[..3], ["t is m/7", "t RequestStart", "t QueueStart"]);
    assert_eq!(start.get(3).map(String::as_str), tensors.then_some("t QueueInput x [1]"));
    assert_eq!(*rest, *expected);
}

const EXECUTION: [&str; 4] =
    ["t ComputeStart", "t ComputeInputEnd", "t ComputeOutputStart", "t ComputeEnd"];

fn lines<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<&'a str> {
    [before, &EXECUTION, after].concat()
}

#[test]
fn the_reply_precedes_the_execution_and_the_end_is_last() {
    let complete = |request: PendingRequest| request.complete(Ok(response()), &times());
    check(false, complete, &lines(&["final reply"], &["t ended", "t dropped"]));
    let recorded = ["t BackendOutput y [2]", "final reply"];
    check(true, complete, &lines(&recorded, &["t ended", "t dropped"]));
    let fail = |request: PendingRequest| request.complete(Err(Status::internal("")), &times());
    check(true, fail, &lines(&["final reply"], &["t ended", "t dropped"]));
}

#[test]
fn each_response_of_a_decoupled_model_is_recorded() {
    let each = ["t BackendOutput y [2]", "reply"];
    let recorded = [each[0], each[1], each[0], each[1], "final reply"];
    let act = |mut request: PendingRequest| {
        request.respond_nonfinal(Ok(response()));
        request.respond_nonfinal(Ok(response()));
        request.finish_without_response(&times());
    };
    check(true, act, &lines(&recorded, &["t ended", "t dropped"]));
}

#[test]
fn a_request_that_is_not_executed_ends_its_trace() {
    let ended = ["final reply", "t ended", "t dropped"];
    let fail = |request: PendingRequest| request.fail(Status::internal(""), FailureReason::Other);
    check(true, fail, &ended);
    check(true, drop, &ended);
}

#[test]
fn responses_after_the_release_are_not_recorded() {
    let act = |mut request: PendingRequest| {
        let responder = request.take_responder().unwrap();
        drop(request);
        responder.complete(Ok(response()), ExecutionSummary::from(&times()));
    };
    check(true, act, &["t ended", "t dropped", "final reply"]);
}

#[test]
fn a_trace_that_never_began_has_no_end() {
    let log = Log::default();
    let sink = LogSink { name: String::from("t"), log: log.clone(), tensors: true };
    drop(Trace::new(Box::new(sink)));
    assert_eq!(*log.lock().unwrap(), ["t dropped"]);
}

#[test]
fn a_child_ends_before_its_parent() {
    let log = Log::default();
    let trace = begun(false, &log);
    let child = trace.child().unwrap();
    let subject =
        TraceSubject { model_name: "step", model_version: 1, request_id: "", deadline: None };
    child.begin(&subject, Instant::now());
    assert_eq!(
        child.backing_object().and_then(|name| name.downcast_ref::<String>()).unwrap(),
        "t.child"
    );
    drop(trace);
    drop(child);
    let lines = log.lock().unwrap();
    let ends = ["t.child ended", "t.child dropped", "t ended", "t dropped"];
    assert_eq!(lines[2..], [&["t.child is step/1", "t.child RequestStart"][..], &ends].concat());
}
