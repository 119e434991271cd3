//! Requests that fail, are cancelled, or end without outputs.

use galatea_infer::{CancelToken, Code, FailureReason, InferenceRequest, Parameter};
use galatea_infer::{ParameterValue, Status};

use super::{Client, TestEnsemble, request};

const DEADLOCK: &str = "InvalidArgument: in ensemble 'E', [request id: r] unexpected deadlock, at \
                        least one output is not set while no more ensemble steps can be made end";

/// Two parallel steps, and a step that uses the outputs of both.
fn fork_join(limit: u32) -> TestEnsemble {
    TestEnsemble::new(
        "4 IN > OUT",
        &["a 4 X > Y", "b 4 X > Y", "c 4 A B > Y"],
        &["a X=IN > Y=p", "b X=IN > Y=q", "c A=p B=q > Y=OUT"],
        limit,
    )
}

#[track_caller]
fn check_failed(ensemble: &TestEnsemble, client: &Client, expected: &str) {
    assert_eq!(client.replies(), [expected]);
    // Counted twice, as in Triton.
    assert_eq!(ensemble.failures(), [FailureReason::Other, FailureReason::Other]);
    assert_eq!(ensemble.successes(), 0);
}

#[test]
fn a_failing_step_fails_the_request_at_once_and_cancels_the_others() {
    for limit in [0, 1] {
        let ensemble = fork_join(limit);
        let client = ensemble.send("IN=1");
        let (a, b) = (ensemble.take("a"), ensemble.take("b"));
        b.sender.fail(Status::unavailable("[request id: r] Exceeds maximum queue size"));
        let expected = "Unavailable: in ensemble 'E', [request id: r] Exceeds \
                        maximum queue size end";
        check_failed(&ensemble, &client, expected);
        assert!(a.request.cancel.is_cancelled());
        a.complete("Y=1");
        assert!(ensemble.pending_requests().is_empty() && client.replies().is_empty());
        assert!(ensemble.host.batches.lock().unwrap().is_empty());
        // The failed request doesn't occupy a place at a gate.
        let client = ensemble.send("IN=1");
        ensemble.complete("a", "Y=2");
        ensemble.complete("b", "Y=3");
        ensemble.complete("c", "Y=4");
        assert_eq!(client.replies(), ["OUT=4 end"]);
    }
}

#[test]
fn a_step_whose_sender_is_dropped_fails() {
    let ensemble = fork_join(0);
    let client = ensemble.send("IN=1");
    drop(ensemble.take("a").sender);
    let expected = "Internal: in ensemble 'E', the request was dropped without \
                    a final response end";
    check_failed(&ensemble, &client, expected);
}

#[test]
fn cancellation_cancels_every_step_and_replies_at_once() {
    for limit in [0, 1] {
        let ensemble = fork_join(limit);
        let client = ensemble.send("IN=1");
        client.cancel.cancel();
        let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
        check_failed(&ensemble, &client, expected);
        let (a, b) = (ensemble.take("a"), ensemble.take("b"));
        assert!(a.request.cancel.is_cancelled() && b.request.cancel.is_cancelled());
        a.sender.fail(Status::cancelled("Request cancelled"));
        b.complete("Y=1");
        assert!(ensemble.pending_requests().is_empty() && client.replies().is_empty());
        client.cancel.cancel();
    }
}

#[test]
fn a_request_cancelled_before_its_start_starts_no_step() {
    let ensemble = fork_join(0);
    let cancel = CancelToken::new();
    cancel.cancel();
    let client = ensemble.send_request(InferenceRequest { cancel, ..request("IN=1", true) });
    let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
    check_failed(&ensemble, &client, expected);
    assert!(ensemble.pending_requests().is_empty());
}

#[test]
fn a_composing_model_may_reply_while_it_is_cancelled() {
    let ensemble = fork_join(0);
    ensemble.set_handler("a", |request, sender| {
        let sender = std::sync::Mutex::new(Some(sender));
        request.cancel.on_cancel(move || {
            let sender = sender.lock().unwrap().take().unwrap();
            sender.fail(Status::cancelled("gone"));
        });
    });
    let client = ensemble.send("IN=1");
    client.cancel.cancel();
    let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
    check_failed(&ensemble, &client, expected);
}

#[test]
fn cancellation_after_the_end_does_nothing() {
    let ensemble = fork_join(0);
    let client = ensemble.send("IN=1");
    for model in ["a", "b", "c"] {
        ensemble.complete(model, "Y=2");
    }
    client.cancel.cancel();
    assert_eq!(client.replies(), ["OUT=2 end"]);
    assert_eq!((ensemble.successes(), ensemble.failures()), (1, vec![]));
}

#[test]
// row: ENS-11
fn a_missing_output_is_reported_as_a_deadlock() {
    let ensemble = fork_join(0);
    let client = ensemble.send("IN=1");
    ensemble.take("a").sender.finish_without_response();
    assert!(client.replies().is_empty(), "another step may fail with more to say");
    ensemble.complete("b", "Y=1");
    check_failed(&ensemble, &client, DEADLOCK);
}

#[test]
fn a_second_response_of_a_model_that_is_not_decoupled_is_an_error() {
    for limit in [0, 1] {
        let ensemble = fork_join(limit);
        let client = ensemble.send("IN=1");
        let mut a = ensemble.take("a");
        a.respond("Y=1");
        a.respond("Y=2");
        let expected = "Internal: in ensemble 'E', expected a single response, \
                        got more end";
        check_failed(&ensemble, &client, expected);
        assert!(a.request.cancel.is_cancelled());
        a.complete("Y=3");
        ensemble.complete("b", "Y=1");
        assert!(ensemble.pending_requests().is_empty() && client.replies().is_empty());
    }
}

#[test]
fn parameters_of_the_wrong_type_fail_the_step() {
    let check = |name: &str, value, expected: &str| {
        let ensemble = fork_join(0);
        let client = ensemble.send("IN=1");
        let parameters = vec![Parameter { name: name.to_owned(), value }];
        ensemble.take("a").complete_with("Y=1", parameters);
        let expected = format!("InvalidArgument: in ensemble 'E', {expected} end");
        check_failed(&ensemble, &client, &expected);
    };
    check(
        "sequence_id",
        ParameterValue::Bool(true),
        "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or \
         TRITONSERVER_PARAMETER_STRING",
    );
    for name in ["sequence_start", "sequence_end"] {
        let expected = format!("expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL");
        check(name, ParameterValue::Int64(1), &expected);
    }
}

/// A panic in a composing model fails only its own request.
#[test]
fn a_run_that_panics_replies_and_gives_back_its_gate_places() {
    for limit in [0, 1] {
        let ensemble = fork_join(limit);
        ensemble.set_handler("b", |request, sender| match super::number(&request.inputs[0].data) {
            666 => panic!("on purpose"),
            _ => sender.send_final(Ok(super::response(&request, "Y=1"))),
        });
        let waiting = ensemble.send("IN=1");
        let client = ensemble.send("IN=666");
        if limit == 1 {
            // The request has not started the step that panics.
            ensemble.complete("a", "Y=1");
        }
        let replies = client.replies();
        assert!(replies[0].starts_with("Internal: "), "{replies:?}");
        assert_eq!(ensemble.host.log.lock().unwrap().len(), 1);
        while !ensemble.pending_requests().is_empty() {
            let model = ensemble.pending_requests()[0][..1].to_owned();
            ensemble.complete(&model, "Y=1");
        }
        assert_eq!(waiting.replies(), ["OUT=1 end"]);
        let next = ensemble.send("IN=1");
        ensemble.complete("a", "Y=1");
        ensemble.complete("c", "Y=2");
        assert_eq!(next.replies(), ["OUT=2 end"]);
    }
}

#[test]
fn the_request_fails_with_the_code_of_the_step() {
    for code in [Code::InvalidArgument, Code::NotFound, Code::Unsupported, Code::Internal] {
        let ensemble = fork_join(0);
        let client = ensemble.send("IN=1");
        ensemble.take("a").sender.fail(Status::new(code, "no"));
        let expected = format!("{code:?}: in ensemble 'E', no end");
        check_failed(&ensemble, &client, &expected);
    }
}

/// Triton would run the step over and over.
#[test]
fn an_ensemble_whose_step_makes_its_input_fails_requests_at_once() {
    let ensemble = TestEnsemble::new("4 IN > OUT", &["a 4 X > Y Z"], &["a X=IN > Y=OUT Z=IN"], 0);
    let client = ensemble.send("IN=1");
    let expected = "Internal: ensemble 'E' can't run: its input 'IN' is made by step 0 as well end";
    assert_eq!(client.replies(), [expected]);
    assert!(ensemble.pending_requests().is_empty());
}
