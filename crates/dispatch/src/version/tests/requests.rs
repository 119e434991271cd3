//! Tests of requests to a loaded version and their replies.

use std::sync::{Arc, Mutex};

use galatea_backend::ExecutionPolicy::{Blocking, Inline};
use galatea_infer::{CancelToken, Code, InferenceRequest, Status};
use galatea_tensor::{Buffer, DataType};

use crate::testing::{ECHO, FakeBackend, LONG, ReplyReceiver, echo_request, send, serve};

fn with(extra: &str) -> String {
    format!("{ECHO} {extra}")
}

#[test]
fn queued_requests_of_equal_shape_share_a_batch() {
    for policy in [Inline, Blocking] {
        let backend = FakeBackend::new(policy);
        let batches = backend.batches.clone();
        let text = with("dynamic_batching { } instance_group { kind: KIND_CPU count: 1 }");
        let server = serve(&text, backend, 5);
        let shapes = [[1, 4], [2, 4], [1, 4], [1, 5], [1, 4]];
        let inboxes: Vec<_> = shapes.iter().map(|dims| send(&server, echo_request(dims))).collect();
        for inbox in inboxes {
            inbox.recv_timeout(LONG).unwrap().unwrap();
        }
        assert_eq!(*batches.lock().unwrap(), [4, 1, 1]);
    }
}

#[test]
fn a_boolean_must_be_zero_or_one() {
    let text = ECHO.replace("TYPE_FP32", "TYPE_BOOL");
    let server = serve(&text, FakeBackend::new(Inline), 0);
    let ask = |bytes: &[u8]| {
        let mut asked = echo_request(&[1, 3]);
        asked.inputs[0].datatype = DataType::Bool;
        asked.inputs[0].data = Buffer::from_vec(bytes.to_vec());
        send(&server, asked).recv_timeout(LONG).unwrap()
    };
    ask(&[0, 1, 1]).unwrap();
    for bytes in [[2, 0, 1], [1, 0, 255], [0, 128, 0]] {
        let status = ask(&bytes).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("each of its bytes must be 0 or 1"), "{status}");
    }
}

#[test]
fn data_for_a_host_policy_must_fit_the_shape() {
    let ask = |datatype: DataType, own: &[u8]| {
        let text = ECHO.replace("FP32", datatype.config_name().trim_start_matches("TYPE_"));
        let server = serve(&text, FakeBackend::new(Inline), 0);
        let mut asked = echo_request(&[1, 2]);
        asked.inputs[0].datatype = datatype;
        let size = datatype.byte_size().unwrap_or(4) * 2;
        let policies = vec![(String::from("far"), Buffer::from_vec(own.to_vec()))];
        asked.inputs[0].data = Buffer::from_vec(vec![0; size]).with_host_policy_buffers(policies);
        let answer = send(&server, asked).recv_timeout(LONG).unwrap();
        answer.map(drop).map_err(|status| status.message().to_owned())
    };
    ask(DataType::Int16, &[1, 2, 3, 4]).unwrap();
    ask(DataType::Bytes, &[1, 0, 0, 0, b'a', 0, 0, 0, 0]).unwrap();
    for (datatype, own, expected) in [
        (DataType::Int16, &[1, 2][..], "Expected 4, got 2"),
        (DataType::Bool, &[1, 2], "must be 0 or 1"),
        (DataType::Bytes, &[0, 0, 0, 0], "expected 2 string elements"),
        (DataType::Bytes, &[9, 0, 0, 0], "for inference input 'IN'"),
    ] {
        let message = ask(datatype, own).unwrap_err();
        assert!(message.contains("data for host policy 'far': "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn requests_that_a_backend_refuses_or_panics_on_fail_and_others_continue() {
    for policy in [Inline, Blocking] {
        let backend =
            FakeBackend::with_action(policy, |requests| match requests[0].request().id.as_str() {
                "refuse" => Err(Status::unavailable("not today")),
                "panic" => panic!("planned"),
                _ => Ok(()),
            });
        let server = serve(ECHO, backend, 0);
        let ask = |id: &str| {
            let asked = InferenceRequest { id: id.into(), ..echo_request(&[1, 1]) };
            send(&server, asked).recv_timeout(LONG).unwrap().map_err(|status| status.code())
        };
        assert_eq!(ask("refuse").unwrap_err(), Code::Unavailable);
        assert_eq!(ask("panic").unwrap_err(), Code::Internal);
        assert!(ask("fine").is_ok());
        let statistics = &server.statistics(None, None).unwrap()[0];
        assert_eq!(statistics.failures, [0, 0, 1, 1]);
    }
}

const ONE_INSTANCE: &str = "instance_group { kind: KIND_CPU count: 1 }";

#[test]
// row: DYN-18 CAN-03
fn a_cancelled_request_leaves_the_queue_at_once() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = serve(&with(ONE_INSTANCE), backend, 0);
    let first = send(&server, echo_request(&[1, 1]));
    entries.recv_timeout(LONG).unwrap();
    let token = CancelToken::new();
    let second = send(&server, InferenceRequest { cancel: token.clone(), ..echo_request(&[1, 1]) });
    token.cancel();
    let status = second.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Cancelled);
    release.send(()).unwrap();
    first.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(server.statistics(None, None).unwrap()[0].failures, [0, 1, 0, 0]);
}

#[test]
fn a_request_whose_timeout_expires_is_rejected_while_the_instance_is_busy() {
    let (backend, entries, release) = FakeBackend::gated();
    let text = with(&format!(
        "{ONE_INSTANCE} dynamic_batching {{ default_queue_policy {{ \
         default_timeout_microseconds: 1000 }} }}"
    ));
    let server = serve(&text, backend, 0);
    let first = send(&server, echo_request(&[1, 1]));
    entries.recv_timeout(LONG).unwrap();
    let second = send(&server, echo_request(&[1, 1]));
    let status = second.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "Request timeout expired");
    release.send(()).unwrap();
    first.recv_timeout(LONG).unwrap().unwrap();
}

#[test]
// row: CFG-08
fn clients_use_the_configured_dims_and_backends_the_reshaped_ones() {
    let text = r#"
        name: "echo" backend: "fake" max_batch_size: 4
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ -1, 1, 2 ] } }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ -1, 1, 2 ] } }
    "#;
    let seen = Arc::new(Mutex::new(None));
    let shape = seen.clone();
    let backend = FakeBackend::with_action(Inline, move |requests| {
        *shape.lock().unwrap() = Some(requests[0].request().inputs[0].shape.clone());
        Ok(())
    });
    let server = serve(text, backend, 0);
    let response = send(&server, echo_request(&[1, 3, 2])).recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(seen.lock().unwrap().as_ref().unwrap().dims(), [1, 3, 1, 2]);
    assert_eq!(response.outputs[0].shape.dims(), [1, 3, 2]);
}

#[test]
fn a_broken_scheduler_fails_the_requests_of_its_model() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = serve(&with(ONE_INSTANCE), backend, 0);
    let running = send(&server, echo_request(&[1, 1]));
    entries.recv_timeout(LONG).unwrap();
    let queued = send(&server, echo_request(&[1, 1]));
    server.model("echo").dispatcher.break_scheduler();
    let code = |inbox: ReplyReceiver| inbox.recv_timeout(LONG).unwrap().unwrap_err().code();
    assert_eq!(code(queued), Code::Internal);
    assert_eq!(code(send(&server, echo_request(&[1, 1]))), Code::Internal);
    release.send(()).unwrap();
    running.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(server.unload_all(LONG), 0);
}

#[test]
fn a_scheduler_that_breaks_during_a_drain_has_drained() {
    let (backend, entries, release) = FakeBackend::gated();
    let server = serve(&with(ONE_INSTANCE), backend, 0);
    let running = send(&server, echo_request(&[1, 1]));
    entries.recv_timeout(LONG).unwrap();
    let queued = send(&server, echo_request(&[1, 1]));
    let model = server.model("echo");
    let dispatcher = &model.dispatcher;
    dispatcher.drain();
    assert!(!dispatcher.is_drained());
    dispatcher.break_scheduler();
    assert!(dispatcher.is_drained());
    assert_eq!(queued.recv_timeout(LONG).unwrap().unwrap_err().code(), Code::Internal);
    release.send(()).unwrap();
    running.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(server.unload_all(LONG), 0);
}

#[test]
fn a_lane_whose_removal_breaks_the_scheduler_is_stopped() {
    let (backend, _entries, _release) = FakeBackend::gated();
    let server = serve(&with(ONE_INSTANCE), backend, 0);
    let model = server.model("echo");
    let dispatcher = &model.dispatcher;
    dispatcher.remove_scheduled_instances();
    dispatcher.drain();
    assert!(dispatcher.is_drained());
    assert_eq!(dispatcher.lane_count(), 0);
}
