//! Tests of traces with a simulated server.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use galatea_c_objects::log::{ApiLog, ApiLogLevel, ApiLogSetting};
use galatea_c_objects::trace::TraceAddress;
use galatea_capi::trace::*;

use super::*;

/// The invocations of a trace's callbacks.
#[derive(Default)]
struct CallbackCalls(Mutex<Vec<String>>);

impl CallbackCalls {
    fn of(userp: *mut c_void) -> &'static Self {
        unsafe { &*userp.cast::<Self>() }
    }

    fn write(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn text(read: impl Fn(*mut *const c_char) -> *mut TRITONSERVER_Error) -> String {
    let mut found = core::ptr::null();
    ok(read(&raw mut found));
    unsafe { CStr::from_ptr(found) }.to_str().unwrap().to_owned()
}

fn number(read: impl Fn(*mut u64) -> *mut TRITONSERVER_Error) -> u64 {
    let mut found = 0;
    ok(read(&raw mut found));
    found
}

/// A trace's model and its request's identifier.
fn subject(trace: *mut TRITONSERVER_InferenceTrace) -> String {
    let name = text(|place| unsafe { TRITONSERVER_InferenceTraceModelName(trace, place) });
    let id = text(|place| unsafe { TRITONSERVER_InferenceTraceRequestId(trace, place) });
    let mut version = 0;
    ok(unsafe { TRITONSERVER_InferenceTraceModelVersion(trace, &raw mut version) });
    format!("{name}/{version} '{id}'")
}

fn context(trace: *mut TRITONSERVER_InferenceTrace) -> String {
    text(|place| unsafe { TRITONSERVER_InferenceTraceContext(trace, place) })
}

unsafe extern "C" fn activity(
    trace: *mut TRITONSERVER_InferenceTrace,
    activity: TRITONSERVER_InferenceTraceActivity,
    timestamp_ns: u64,
    userp: *mut c_void,
) {
    assert!(timestamp_ns > 0);
    CallbackCalls::of(userp).write(format!("{} of {}", activity.0, subject(trace)));
}

unsafe extern "C" fn tensor(
    _: *mut TRITONSERVER_InferenceTrace,
    activity: TRITONSERVER_InferenceTraceActivity,
    name: *const c_char,
    datatype: TRITONSERVER_DataType,
    base: *const c_void,
    byte_size: usize,
    shape: *const i64,
    dim_count: u64,
    memory_type: TRITONSERVER_MemoryType,
    _: i64,
    userp: *mut c_void,
) {
    assert_eq!((datatype, memory_type), (TRITONSERVER_TYPE_INT32, TRITONSERVER_MEMORY_CPU));
    let (name, bytes, dims) = unsafe {
        (
            CStr::from_ptr(name).to_str().unwrap(),
            core::slice::from_raw_parts(base.cast::<u8>(), byte_size),
            core::slice::from_raw_parts(shape, usize::try_from(dim_count).unwrap()),
        )
    };
    CallbackCalls::of(userp).write(format!("{} {name} {dims:?} {bytes:?}", activity.0));
}

unsafe extern "C" fn release(trace: *mut TRITONSERVER_InferenceTrace, userp: *mut c_void) {
    let id = number(|place| unsafe { TRITONSERVER_InferenceTraceId(trace, place) });
    let parent = number(|place| unsafe { TRITONSERVER_InferenceTraceParentId(trace, place) });
    ok(unsafe { TRITONSERVER_InferenceTraceDelete(trace) });
    let line = if parent == 0 { String::from("gone") } else { format!("child {}", id > parent) };
    CallbackCalls::of(userp).write(line);
}

fn trace(
    level: TRITONSERVER_InferenceTraceLevel,
) -> (*mut TRITONSERVER_InferenceTrace, &'static CallbackCalls) {
    let calls: &'static CallbackCalls = Box::leak(Box::default());
    let userp = core::ptr::from_ref(calls).cast_mut().cast();
    let mut made = core::ptr::null_mut();
    ok(unsafe {
        TRITONSERVER_InferenceTraceTensorNew(
            &raw mut made,
            level,
            0,
            Some(activity),
            Some(tensor),
            Some(release),
            userp,
        )
    });
    (made, calls)
}

/// Sends a request with a trace. Returns the request that the server receives.
fn send(trace: *mut TRITONSERVER_InferenceTrace) -> (Caller, InferenceRequest, ResponseSender) {
    let caller = Caller::holding();
    let request = caller.request();
    // The borrowed data must outlive the caller.
    caller.add_input(request, c"IN", Box::leak(Box::new([5])));
    ok(unsafe { server::TRITONSERVER_ServerInferAsync(caller.server, request, trace) });
    let (infer, sender) = caller.held.recv().unwrap();
    (caller, infer, sender)
}

fn run(trace: &Trace, request: &InferenceRequest) {
    let start = Instant::now();
    let at = |ns| start + Duration::from_nanos(ns);
    let subject =
        TraceSubject { model_name: "m", model_version: 3, request_id: &request.id, deadline: None };
    trace.begin(&subject, start);
    trace.record_queued(&request.inputs, at(1));
    let (compute_start, compute_end) = (at(3), at(4));
    trace.record_execution(&ExecutionTimes::from(ExecutionReadings {
        start: at(2),
        compute_start,
        compute_end,
        end: at(5),
    }));
    trace.record_response(&echo(request.clone()));
    trace.end();
}

fn of_times(activities: &[u32]) -> Vec<String> {
    activities.iter().map(|activity| format!("{activity} of m/3 'me'")).collect()
}

#[test]
fn the_level_selects_the_callbacks() {
    let times = of_times(&[0, 1, 2, 3, 4, 5, 6]);
    let input = String::from("7 IN [1] [5, 0, 0, 0]");
    let output = String::from("9 IN [1] [5, 0, 0, 0]");
    let mut both = times.clone();
    both.insert(6, output.clone());
    both.insert(2, input.clone());
    for (level, expected) in [
        (TRITONSERVER_TRACE_LEVEL_DISABLED.0, Vec::new()),
        (TRITONSERVER_TRACE_LEVEL_MIN.0, times.clone()),
        (TRITONSERVER_TRACE_LEVEL_MAX.0, times.clone()),
        (TRITONSERVER_TRACE_LEVEL_TIMESTAMPS.0, times.clone()),
        (TRITONSERVER_TRACE_LEVEL_TENSORS.0, vec![input, output]),
        (TRITONSERVER_TRACE_LEVEL_MAX.0 | TRITONSERVER_TRACE_LEVEL_TENSORS.0, both),
    ] {
        let (trace, calls) = trace(TRITONSERVER_InferenceTraceLevel(level));
        let (caller, mut request, sender) = send(trace);
        let server_side = request.trace.take().unwrap();
        run(&server_side, &request);
        assert_eq!(calls.take(), expected, "level {level}");
        sender.finish_without_response();
        drop(request);
        assert_eq!(caller.events().len(), 1, "the trace keeps the request");
        drop(server_side);
        assert_eq!(calls.take(), ["gone"]);
        assert_eq!(caller.events(), [Event::Released]);
    }
}

/// The process's logged errors, with the threads that wrote them.
static ERRORS: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

struct ErrorLog;

impl ApiLog for ErrorLog {
    fn is_enabled(&self, level: ApiLogLevel) -> bool {
        level == ApiLogLevel::Error
    }

    fn write(&self, _: ApiLogLevel, _: Option<(&str, u32)>, text: &str) {
        ERRORS.lock().unwrap().push((thread::current().id(), String::from(text)));
    }

    fn set(&self, _: &ApiLogSetting) -> Result<(), Status> {
        Ok(())
    }
}

#[test]
fn a_trace_may_be_deleted_before_the_handover_returns() {
    galatea_c_objects::log::install(Box::new(ErrorLog));
    let (trace, calls) = trace(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS);
    // The server responds on the caller's thread.
    let caller = Caller::new();
    let request = caller.request();
    caller.add_input(request, c"IN", &[5]);
    ok(unsafe { server::TRITONSERVER_ServerInferAsync(caller.server, request, trace) });
    assert_eq!(calls.take().last().map(String::as_str), Some("gone"));
    let errors = ERRORS.lock().unwrap();
    let own: Vec<_> =
        errors.iter().filter(|(thread, _)| *thread == thread::current().id()).collect();
    assert!(own.is_empty(), "{own:?}");
}

#[test]
fn a_child_calls_the_same_functions() {
    let (trace, calls) = trace(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS);
    let (_caller, mut request, sender) = send(trace);
    sender.finish_without_response();
    let parent = request.trace.take().unwrap();
    let child = parent.child().unwrap();
    run(&child, &request);
    assert_eq!(calls.take(), of_times(&[0, 1, 2, 3, 4, 5, 6]));
    drop(child);
    assert_eq!(calls.take(), ["child true"]);
    // A child that a program creates belongs to the program and doesn't have a subject yet.
    let mut own = core::ptr::null_mut();
    unsafe {
        ok(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &raw mut own));
        assert_eq!(subject(own), "/-1 ''");
        ok(TRITONSERVER_InferenceTraceDelete(own));
        ok(TRITONSERVER_InferenceTraceSpawnChildTrace(core::ptr::null_mut(), &raw mut own));
    }
    assert!(own.is_null());
}

#[test]
// row: BAPI-15
fn a_backend_reports_custom_activities() {
    let (trace, calls) = trace(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS);
    let (_caller, mut request, _sender) = send(trace);
    let server_side = request.trace.take().unwrap();
    let subject =
        TraceSubject { model_name: "m", model_version: 3, request_id: "me", deadline: None };
    server_side.begin(&subject, Instant::now());
    let origin = server_side.backing_object().unwrap().downcast_ref::<TraceAddress>().unwrap();
    assert_eq!(origin.0, trace);
    unsafe {
        ok(TRITONSERVER_InferenceTraceSetContext(origin.0, c"{\"x\": 1}".as_ptr()));
        ok(TRITONSERVER_InferenceTraceReportActivity(origin.0, 8, c"\"one\"".as_ptr()));
        let known: serde_json::Value = serde_json::from_str(&context(trace)).unwrap();
        assert_eq!(known, serde_json::json!({ "x": 1, "8": "\"one\"" }));
        let identity = server_side.identity();
        assert_eq!(identity.context, context(trace));
        assert_eq!((&*identity.model_name, identity.model_version), ("m", 3));
        assert_eq!((&*identity.request_id, identity.parent_id), ("me", 0));
        assert_eq!(identity.id, number(|id| TRITONSERVER_InferenceTraceId(trace, id)));
        ok(TRITONSERVER_InferenceTraceSetContext(origin.0, c"no object".as_ptr()));
        ok(TRITONSERVER_InferenceTraceReportActivity(origin.0, 9, c"two".as_ptr()));
        assert_eq!(context(trace), r#"{"9":"two"}"#);
        ok(TRITONSERVER_InferenceTraceReportActivity(core::ptr::null_mut(), 9, c"no".as_ptr()));
        let nameless = TRITONSERVER_InferenceTraceReportActivity(trace, 9, core::ptr::null());
        assert_eq!(refused(nameless), "activity_name must not be null");
    }
    assert_eq!(calls.take(), of_times(&[0, 10, 10]));
}

#[test]
fn a_refused_request_leaves_its_trace_to_the_caller() {
    let (trace, calls) = trace(TRITONSERVER_TRACE_LEVEL_TIMESTAMPS);
    let caller = Caller::new();
    let request = caller.request();
    unsafe {
        ok(server::TRITONSERVER_InferenceRequestAddRawInput(request, c"RAW".as_ptr()));
        caller.add_input(request, c"IN", &[]);
        assert!(
            refused(server::TRITONSERVER_ServerInferAsync(caller.server, request, trace))
                .contains("must only have 1 input (found 2)")
        );
        assert_eq!((calls.take(), caller.events()), (vec![], vec![]));
        ok(TRITONSERVER_InferenceTraceDelete(trace));
        let gone = server::TRITONSERVER_ServerInferAsync(caller.server, request, trace);
        assert!(refused(gone).contains("released"));
    }
    assert_eq!(caller.events(), []);
}
