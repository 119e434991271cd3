//! What the verbose log says about loading and refused requests.

use std::sync::{Arc, Mutex};

use galatea_backend::{ExecutionPolicy, LogLevel};
use galatea_infer::InferenceRequest;

use crate::LogSink;
use crate::testing::LONG;
use crate::testing::{ECHO, FakeBackend, ServerSetup, request, send};

type Lines = Arc<Mutex<Vec<(LogLevel, String)>>>;

fn log() -> (LogSink, Lines) {
    let lines = Lines::default();
    let written = lines.clone();
    let log = LogSink::new(move |level, _, line| {
        written.lock().unwrap().push((level, line.to_string()));
    });
    (log, lines)
}

fn of_level(lines: &Lines, level: LogLevel) -> Vec<String> {
    let lines = lines.lock().unwrap();
    lines.iter().filter(|(one, _)| *one == level).map(|(_, line)| line.clone()).collect()
}

#[test]
fn requests_that_the_scheduler_refuses_are_logged() {
    let (log, lines) = log();
    let queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }";
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let server = ServerSetup::new(format!("{ECHO} {queue}"), backend).hold(5, 0).log(log).serve();
    lines.lock().unwrap().clear();
    let _waits = send(&server, request(&[1, 1]));
    send(&server, request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(
        of_level(&lines, LogLevel::Verbose(1)),
        ["a request is refused: [request id: <id_unknown>] Exceeds maximum queue size"]
    );
}

#[test]
fn the_log_names_the_refused_request_even_if_the_error_does_not() {
    let (log, lines) = log();
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let policy = "default_queue_policy { default_timeout_microseconds: 1 }";
    let text = format!("{ECHO} dynamic_batching {{ {policy} }}");
    let server = ServerSetup::new(text, backend).hold(5, 0).log(log).serve();
    lines.lock().unwrap().clear();
    let late = InferenceRequest { id: "late".into(), ..request(&[1, 1]) };
    let status = send(&server, late).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.message(), "Request timeout expired");
    assert_eq!(
        of_level(&lines, LogLevel::Verbose(1)),
        ["a request is refused: [request id: late] Request timeout expired"]
    );
}

#[test]
fn the_steps_of_loading_are_logged() {
    let (log, lines) = log();
    let backend = FakeBackend::new(ExecutionPolicy::Inline);
    let server = ServerSetup::new(ECHO, backend).log(log).serve();
    let steps = of_level(&lines, LogLevel::Verbose(1));
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
    let [config] = &of_level(&lines, LogLevel::Verbose(2))[..] else { panic!("{lines:?}") };
    assert!(config.starts_with("'echo' version 1: configuration {\"name\":\"echo\""), "{config}");
    drop(server);
}
