//! Tests of the whole engine with requests, replies and a fake backend.

mod gpu_loss;
mod loading;
mod watching;

use std::time::Duration;

use galatea_backend::ExecutionPolicy::{Blocking, Inline};
use galatea_control::ModelState;
use galatea_infer::{AccessPass, Code, InferenceRequest};
use galatea_tensor::{DataType, Shape};

use crate::testing::{ECHO, FakeBackend, LONG, TrustedControl, echo_request, send, serve};

fn with(extra: &str) -> String {
    format!("{ECHO} {extra}")
}

#[test]
fn a_request_is_answered_inline_and_by_a_thread() {
    for policy in [Inline, Blocking] {
        let (server, failures) = serve(ECHO, FakeBackend::new(policy), &[1], 0);
        assert!(failures.is_empty());
        let mut asked = echo_request(&[2, 3]);
        asked.id = String::from("seven");
        let response = send(&server, asked).recv_timeout(LONG).unwrap().unwrap();
        assert_eq!((response.id.as_str(), response.model_version), ("seven", 1));
        assert_eq!(response.outputs[0].shape, Shape::new(&[2, 3]).unwrap());
        let statistics = &server.statistics(None, None).unwrap()[0];
        assert_eq!((statistics.inference_count, statistics.execution_count), (2, 1));
        assert_eq!(statistics.inference.success.count, 1);
        assert_eq!(statistics.batches[0].batch_size, 2);
    }
}

#[test]
fn errors_name_what_was_wrong() {
    let (server, _) = serve(ECHO, FakeBackend::new(Inline), &[2, 4], 0);
    let check = |change: &dyn Fn(&mut InferenceRequest), code: Code, part: &str| {
        let mut asked = echo_request(&[1, 4]);
        change(&mut asked);
        let status = send(&server, asked).recv_timeout(LONG).unwrap().unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(part), "{status}");
    };
    let invalid = Code::InvalidArgument;
    check(&|r| r.model_name = "no".into(), Code::NotFound, "unknown model: 'no' is not found");
    check(&|r| r.model_version = Some(3), Code::NotFound, "'echo' version 3 is not found");
    check(&|r| r.inputs.clear(), invalid, "[request id: <id_unknown>] expected 1 inputs but got 0");
    check(&|r| r.inputs[0].name = "X".into(), invalid, "unexpected inference input 'X'");
    check(
        &|r| r.outputs = vec!["X".into()],
        invalid,
        "unexpected inference output 'X' for model 'echo'",
    );
    check(&|r| r.outputs = vec!["OUT".into(), "OUT".into()], invalid, "already exists");
    check(&|r| r.inputs.push(r.inputs[0].clone()), invalid, "input 'IN' already exists");
    check(
        &|r| r.inputs[0].datatype = DataType::Int32,
        invalid,
        "data-type is 'INT32', but model 'echo' expects 'FP32'",
    );
    check(
        &|r| r.inputs[0].shape = Shape::new(&[4]).unwrap(),
        invalid,
        "Expected [-1,-1], got [4]. NOTE",
    );
    check(&|r| r.inputs[0].shape = Shape::new(&[]).unwrap(), invalid, "has no shape");
    check(&|r| r.inputs[0].shape = Shape::new(&[9, 4]).unwrap(), invalid, "must be <= 8");
    check(&|r| r.inputs[0].shape = Shape::new(&[0, 4]).unwrap(), invalid, "must be >= 1");
    check(&|r| r.inputs[0].shape = Shape::new(&[1, 5]).unwrap(), invalid, "Expected 20, got 16");
    assert_eq!(server.statistics(Some("echo"), Some(4)).unwrap()[0].inference_count, 0);
    assert_eq!(server.statistics(Some("no"), None).unwrap_err().code(), invalid);
}

#[test]
fn the_newest_ready_version_answers_unless_another_is_named() {
    let (server, _) = serve(ECHO, FakeBackend::new(Inline), &[2, 10], 0);
    let version = |wanted| {
        let asked = InferenceRequest { model_version: wanted, ..echo_request(&[1, 1]) };
        send(&server, asked).recv_timeout(LONG).unwrap().unwrap().model_version
    };
    assert_eq!((version(None), version(Some(2))), (10, 2));
    assert_eq!(server.model_metadata("echo", None).unwrap().versions, [2, 10]);
    assert_eq!(server.model_metadata("echo", Some(2)).unwrap().versions, [2]);
}

#[test]
fn a_request_goes_to_the_version_that_its_door_found() {
    let (server, _) = serve(ECHO, FakeBackend::new(Inline), &[1, 2], 0);
    let control: &dyn galatea_control::ServerControl = &*server;
    let find = || control.model_for_inference(AccessPass::in_process(), "echo", Some(1));
    let found = find().unwrap();
    // The name and version are not looked up again, and the version does not end before the
    // request.
    assert_eq!(server.unload_all(Duration::ZERO), 1);
    assert!(find().is_err());
    let asked = InferenceRequest {
        model_name: "other".into(),
        found_model: Some(found),
        ..echo_request(&[1, 1])
    };
    let response = send(&server, asked).recv_timeout(LONG).unwrap().unwrap();
    assert_eq!((&*response.model_name, response.model_version), ("echo", 1));
    assert_eq!(server.unload_all(LONG), 0);
}

#[test]
fn a_version_that_fails_to_load_is_listed_with_its_reason() {
    let text = with(r#"parameters { key: "refuse_load" value { string_value: "1" } }"#);
    let (server, failures) = serve(&text, FakeBackend::new(Inline), &[1], 0);
    assert_eq!(failures[0].status.message(), "refused as configured");
    let index = server.repository_index(false);
    assert_eq!(index[0].state, Some(ModelState::Unavailable));
    assert_eq!(index[0].reason, "Invalid argument: refused as configured");
    assert!(server.repository_index(true).is_empty());
    assert_eq!(server.ready(), Ok(false));
    assert_eq!(server.model_ready("echo", None), Ok(false));
    assert_eq!(server.model_ready("echo", Some(1)), Ok(false));
    assert_eq!(server.model_ready("absent", None), Ok(false));
}

const ONE_INSTANCE: &str = "instance_group { kind: KIND_CPU count: 1 }";

#[test]
// row: DYN-19
fn unloading_executes_queued_requests_and_refuses_later_ones() {
    let (backend, entries, release) = FakeBackend::gated();
    let (server, _) = serve(&with(ONE_INSTANCE), backend, &[1], 0);
    let early: Vec<_> = (0..3).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    entries.recv_timeout(LONG).unwrap();
    server.begin_exit();
    assert_eq!(server.ready().unwrap_err().code(), Code::Unavailable);
    let late = send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(late.code(), Code::Unavailable);
    assert_eq!(server.unload_all(Duration::ZERO), 1);
    for _ in 0..3 {
        release.send(()).unwrap();
    }
    assert_eq!(server.unload_all(LONG), 0);
    for inbox in early {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(server.repository_index(false)[0].reason, "unloaded");
}
