//! Tests of verbose log lines about requests and sequences.

use std::sync::{Arc, Mutex};

use galatea_backend::ExecutionPolicy;
use galatea_infer::{InferenceRequest, Status};

use crate::testing::sequences::{
    DIRECT, OLDEST, ONE_INSTANCE, ScriptedBackend, TWO_INSTANCES, config, error, step, value,
    verbose_log, wait_until, wait_until_empty,
};
use crate::testing::{ECHO, FakeBackend, LONG, ServerSetup, echo_request, send};

const INLINE: ExecutionPolicy = ExecutionPolicy::Inline;

/// The lines since the last call, without timestamps.
fn take_lines(lines: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    let timeless = |line: String| match line.split_once(" after ") {
        Some((before, after)) => format!("{before}{}", after.trim_start_matches(char::is_numeric)),
        None => line,
    };
    lines.into_iter().map(timeless).collect()
}

#[test]
fn a_request_is_logged_from_its_arrival_to_its_response() {
    let (log, lines) = verbose_log(1);
    let server = ServerSetup::new(ECHO, FakeBackend::new(INLINE)).log(log).serve();
    take_lines(&lines);
    let asked = InferenceRequest {
        id: "a\nb".into(),
        outputs: vec!["OUT".into()],
        priority: 0,
        timeout_microseconds: 7,
        ..echo_request(&[2, 1])
    };
    send(&server, asked).recv_timeout(LONG).unwrap().unwrap();
    let expected = [
        "[request id: a\nb] model 'echo' version 1 is asked: inputs IN FP32 [2,1], outputs OUT, \
         timeout 7 us",
        "instance 'echo_0' executes 1 requests: [request id: a\nb]",
        "[request id: a\nb] model 'echo' version 1 answers us: outputs OUT FP32 [2,1]",
    ];
    assert_eq!(take_lines(&lines), expected);
}

#[test]
fn an_error_is_logged_as_a_reply() {
    let (log, lines) = verbose_log(1);
    let backend = FakeBackend::with_action(INLINE, |_| Err(Status::internal("no\nluck")));
    let server = ServerSetup::new(ECHO, backend).log(log).serve();
    take_lines(&lines);
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    let about = "[request id: <id_unknown>] model 'echo' version 1";
    assert_eq!(
        take_lines(&lines),
        [
            format!("{about} is asked: inputs IN FP32 [1,1]"),
            "instance 'echo_0' executes 1 requests: [request id: <id_unknown>]".into(),
            format!("{about} answers us: error no\nluck"),
        ]
    );
}

#[test]
fn requests_are_not_logged_at_lower_levels() {
    let (log, lines) = verbose_log(0);
    let server = ServerSetup::new(ECHO, FakeBackend::new(INLINE)).log(log).serve();
    take_lines(&lines);
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(take_lines(&lines), [""; 0]);
    let (log, lines) = verbose_log(0);
    let text = config(4, DIRECT, ONE_INSTANCE);
    let server = ServerSetup::new(text, ScriptedBackend::summing(INLINE)).log(log).serve();
    take_lines(&lines);
    assert_eq!(value(&send(&server, step(5, "+.", 1))), 1);
    wait_until_empty(&server);
    assert_eq!(take_lines(&lines), [""; 0]);
}

/// The lines about sequences, in order.
fn sequence_lines(lines: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    let part = |line: &String| line.starts_with("sequence");
    take_lines(lines).into_iter().filter(part).collect()
}

#[test]
fn the_begin_and_end_of_a_sequence_are_logged() {
    let ended = "sequence 5 of model 'seq' takes no further requests: a request ended it or \
                 started it anew";
    let free = "sequence 5 of model 'seq' has ended; its slot is free";
    for batching in [DIRECT, OLDEST] {
        let (log, lines) = verbose_log(1);
        let text = config(1, batching, ONE_INSTANCE);
        let server = ServerSetup::new(text, ScriptedBackend::summing(INLINE)).log(log).serve();
        take_lines(&lines);
        assert_eq!(value(&send(&server, step(5, "+", 1))), 1);
        let about = "[request id: <id_unknown>] model 'seq' version 1";
        let expected = [
            format!("{about} is asked: inputs IN INT32 [1,1], sequence 5 START"),
            "sequence 5 of model 'seq' begins".into(),
            "instance 'seq_0_0' executes 1 requests: [request id: <id_unknown>] sequence 5 START"
                .into(),
            format!("{about} answers us: outputs OUT INT32 [1,1]"),
        ];
        assert_eq!(take_lines(&lines), expected);
        assert_eq!(value(&send(&server, step(5, ".", 2))), 3);
        wait_until_empty(&server);
        assert_eq!(sequence_lines(&lines), [ended, free]);
        // A sequence that never began does not end.
        error(&send(&server, step(6, "", 1)));
        assert_eq!(sequence_lines(&lines), [""; 0]);
    }
}

#[test]
fn the_idle_timeout_of_a_sequence_is_logged() {
    let (log, lines) = verbose_log(1);
    // This is long enough for a busy machine to execute the request; the end of an execution may
    // notice the timeout too.
    let batching = "direct { } max_sequence_idle_microseconds: 200000";
    let text = config(2, batching, TWO_INSTANCES);
    let server = ServerSetup::new(text, ScriptedBackend::summing(INLINE)).log(log).serve();
    assert_eq!(value(&send(&server, step(7, "+", 1))), 1);
    // The timer's thread logs it afterwards.
    let is_logged = || lines.lock().unwrap().iter().any(|line: &String| line.ends_with("is free"));
    wait_until(&server, "the end of the sequence", |_| is_logged());
    assert_eq!(
        sequence_lines(&lines),
        [
            "sequence 7 of model 'seq' begins",
            "sequence 7 of model 'seq' takes no further requests: its time was up",
            "sequence 7 of model 'seq' has ended; its slot is free",
        ]
    );
}
