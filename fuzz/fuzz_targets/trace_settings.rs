//! Calls about traces, in any order: settings are changed and read over HTTP and gRPC, and
//! requests begin, with the headers of a client that is traced itself.
//!
//! An input is a byte for the mode of the server and a list of calls. Each begins with a byte
//! that selects it and one that selects the model. Lines end texts; a byte says how long a
//! message is.

#![no_main]

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_codec::limits::MessageLimits;
use galatea_codec_grpc::{parse_trace_change, trace_settings_response};
use galatea_codec_http::{decode_trace_change, encode_trace_settings};
use galatea_control::{
    DoorTracePoint, TraceControl, TraceHeaders, TraceLevels, TraceMode, TraceSettings,
    TraceSettingsChange,
};
use galatea_gate::access::AccessPass;
use galatea_infer::{ExecutionReadings, ExecutionTimes, Status, Trace, TraceSubject};
use galatea_protocol::inference::TraceSettingRequest;
use galatea_trace::{
    CollectorAddress, CollectorClient, CollectorOptions, CollectorSettings, SpanBatchLimits,
    TraceOutput, TraceSettingValues, Tracer, TracerOptions,
};
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// A file that can't be made, so that all is done but writing.
const FILE: &str = "/nowhere/traces.json";

fuzz_target!(|data: &[u8]| {
    let Some((&mode, mut calls)) = data.split_first() else { return };
    let tracer = tracer(mode);
    let before = tracer.settings(AccessPass::in_process(), None);
    while let [kind, model, rest @ ..] = calls {
        let (content, behind) = if *kind == b'g' { message(rest) } else { line(rest) };
        call(&tracer, *kind, model_name(*model), content);
        calls = behind;
    }
    for model in [None, Some("a"), Some("b")] {
        check_shown(&before, tracer.settings(AccessPass::in_process(), model));
    }
    tracer.stop();
});

fn message(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((&length, rest)) = bytes.split_first() else { return (&[], &[]) };
    rest.split_at(usize::from(length).min(rest.len()))
}

fn line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

fn tracer(mode: u8) -> Tracer {
    let output = match mode {
        b'f' => TraceOutput::Files(FILE.to_owned()),
        b'n' => TraceOutput::Files(String::new()),
        _ => TraceOutput::Collector(Box::new(collector())),
    };
    let epoch = |at: Instant| u64::try_from(at.elapsed().as_nanos()).unwrap_or(0);
    Tracer::new(TracerOptions {
        start: TraceSettingValues::default(),
        output,
        further: vec![("bsp_max_queue_size".to_owned(), "0".to_owned())],
        clock: epoch,
        check_model: Box::new(|_| Ok(())),
        log_error: Arc::new(|_| {}),
    })
}

/// A collector that is never reached: no span waits for it.
fn collector() -> CollectorOptions {
    let address = CollectorAddress::parse("http://127.0.0.1:1/").expect("it is a URL");
    let connection = CollectorSettings::default();
    CollectorOptions {
        collector: CollectorClient::new(address, connection).expect("it needs no certificates"),
        resource: Vec::new(),
        limits: SpanBatchLimits { queued_max: 0, delay: Duration::MAX, batch_max: 1 },
    }
}

fn model_name(selector: u8) -> Option<&'static str> {
    match selector {
        b'a' => Some("a"),
        b'b' => Some("b"),
        _ => None,
    }
}

fn call(tracer: &Tracer, kind: u8, model: Option<&str>, line: &[u8]) {
    match kind {
        b'h' => change(tracer, model, decode_trace_change(line, &MessageLimits::default())),
        b'g' => {
            let Ok(request) = TraceSettingRequest::decode(line) else { return };
            if let Some(asked) = parse_trace_change(&request).transpose() {
                change(tracer, model, asked);
            }
        }
        _ => begin(tracer, model.unwrap_or_default(), line),
    }
}

/// A change that is refused for a model leaves its settings as they were.
fn change(tracer: &Tracer, model: Option<&str>, asked: Result<TraceSettingsChange, Status>) {
    let Ok(asked) = asked else { return };
    let before = tracer.settings(AccessPass::in_process(), model);
    let result = tracer.change(AccessPass::in_process(), model, &asked);
    if result.is_err() && model.is_some() {
        assert_eq!(tracer.settings(AccessPass::in_process(), model), before);
    }
}

/// A request; its line is a `traceparent` and, behind a blank, a `tracestate`.
fn begin(tracer: &Tracer, model: &str, line: &[u8]) {
    let line = String::from_utf8_lossy(line);
    let (parent, state) = line.split_once(' ').unwrap_or((&*line, ""));
    let headers = TraceHeaders { parent: Some(parent.as_bytes()), state: Some(state.as_bytes()) };
    let Some(trace) = tracer.begin(AccessPass::in_process(), model, headers) else { return };
    let now = Instant::now();
    trace.door.record(DoorTracePoint::HttpReceiveStart, now);
    let subject =
        TraceSubject { model_name: "m", model_version: 1, request_id: &line, deadline: None };
    trace.request.begin(&subject, now);
    trace.request.record_execution(&ExecutionTimes::from(ExecutionReadings {
        start: now,
        compute_start: now,
        compute_end: now,
        end: now,
    }));
    trace.request.record_custom(parent, 1);
    check_context(&trace.request, parent, tracer.reads_headers());
    trace.request.end();
}

/// Checks that a model gets JSON, in the trace of a client that sent one.
fn check_context(trace: &Trace, parent: &str, for_collector: bool) {
    let context = trace.identity().context;
    if context.is_empty() {
        return;
    }
    assert!(for_collector);
    let json: serde_json::Value = serde_json::from_str(&context).expect("a context is JSON");
    let passed_on = json["traceparent"].as_str().expect("it has a trace");
    assert_eq!(passed_on.len(), 55);
    let number = passed_on.get(3..35).expect("it is in ASCII");
    let digits = parent.trim().get(3..35).unwrap_or_default().to_ascii_lowercase();
    let is_valid = digits.bytes().all(|digit| digit.is_ascii_hexdigit()) && parent.len() >= 55;
    if let Some(state) = json["tracestate"].as_str() {
        // A state without a parent is none.
        assert!(is_valid && number == digits);
        assert!(state.split(',').all(|member| member.contains('=')));
    }
}

/// No client changes where traces go, and what is shown can be read again.
fn check_shown(before: &TraceSettings, after: TraceSettings) {
    assert_eq!(after.further, before.further);
    assert_eq!(after.mode.name(), before.mode.name());
    if let (TraceMode::Triton { file, .. }, TraceMode::Triton { file: own, .. }) =
        (&before.mode, &after.mode)
    {
        assert_eq!(file, own);
        if own.is_empty() {
            assert_eq!(after.levels, TraceLevels::default());
        }
    }
    let json = encode_trace_settings(&after);
    let json: serde_json::Value = serde_json::from_slice(&json).expect("settings are JSON");
    assert_eq!(json["trace_rate"], after.rate.to_string());
    let message = trace_settings_response(after);
    assert_eq!(message.settings["trace_mode"].value, [json["trace_mode"].as_str().unwrap()]);
}
