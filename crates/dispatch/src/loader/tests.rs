//! Tests of verbose log lines about loading and refused requests.

use galatea_backend::{ExecutionPolicy, LogLevel};
use galatea_infer::InferenceRequest;

use crate::testing::{CapturedLog, ECHO, FakeBackend, LONG, ServerSetup, echo_request, send};

#[test]
fn requests_that_the_scheduler_refuses_are_logged() {
    let (log, lines) = CapturedLog::record();
    let queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }";
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let server = ServerSetup::new(format!("{ECHO} {queue}"), backend).hold(5, 0).log(log).serve();
    lines.clear();
    let _waits = send(&server, echo_request(&[1, 1]));
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(
        lines.of_level(LogLevel::Verbose(1)),
        ["a request is refused: [request id: <id_unknown>] Exceeds maximum queue size"]
    );
}

#[test]
fn the_log_names_the_refused_request_even_if_the_error_does_not() {
    let (log, lines) = CapturedLog::record();
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let policy = "default_queue_policy { default_timeout_microseconds: 1 }";
    let text = format!("{ECHO} dynamic_batching {{ {policy} }}");
    let server = ServerSetup::new(text, backend).hold(5, 0).log(log).serve();
    lines.clear();
    let late = InferenceRequest { id: "late".into(), ..echo_request(&[1, 1]) };
    let status = send(&server, late).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.message(), "Request timeout expired");
    assert_eq!(
        lines.of_level(LogLevel::Verbose(1)),
        ["a request is refused: [request id: late] Request timeout expired"]
    );
}

#[test]
fn the_steps_of_loading_are_logged() {
    let (log, lines) = CapturedLog::record();
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let server = ServerSetup::new(ECHO, backend).log(log).serve();
    let steps = lines.of_level(LogLevel::Verbose(1));
    let expected = [
        "'echo' version 1: completing the configuration",
        "'echo' version 1: loading with backend 'fake'",
        "creating instance 'echo_0' of 'echo'",
        "'echo' version 1: loaded within ",
    ];
    assert_eq!(steps.len(), expected.len(), "{steps:?}");
    for (step, expected) in steps.iter().zip(expected) {
        assert!(step.starts_with(expected), "{steps:?}");
    }
    let [config] = &lines.of_level(LogLevel::Verbose(2))[..] else { panic!("{lines:?}") };
    assert!(config.starts_with("'echo' version 1: configuration {\"name\":\"echo\""), "{config}");
    drop(server);
}
