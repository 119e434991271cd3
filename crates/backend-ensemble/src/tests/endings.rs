//! Requests that fail, are cancelled, or come to nothing.

use galatea_infer::{CancelToken, Code, FailureReason, InferenceRequest, Parameter};
use galatea_infer::{ParameterValue, Status};

use super::{Client, World, request};

const DEADLOCK: &str = "InvalidArgument: in ensemble 'E', [request id: r] unexpected deadlock, at \
                        least one output is not set while no more ensemble steps can be made end";

/// Two steps at once, and one behind both.
fn world(limit: u32) -> World {
    World::new(
        "4 IN > OUT",
        &["a 4 X > Y", "b 4 X > Y", "c 4 A B > Y"],
        &["a X=IN > Y=p", "b X=IN > Y=q", "c A=p B=q > Y=OUT"],
        limit,
    )
}

#[track_caller]
fn check_failed(world: &World, client: &Client, expected: &str) {
    assert_eq!(client.replies(), [expected]);
    assert_eq!(world.failures(), [FailureReason::Other]);
    assert_eq!(world.successes(), 0);
}

#[test]
fn a_failing_step_fails_the_request_at_once_and_cancels_the_others() {
    for limit in [0, 1] {
        let world = world(limit);
        let client = world.send("IN=1");
        let (a, b) = (world.take("a"), world.take("b"));
        b.sender.fail(Status::unavailable("[request id: r] Exceeds maximum queue size"));
        let expected = "Unavailable: in ensemble 'E', step 1 (model 'b'): [request id: r] Exceeds \
                        maximum queue size end";
        check_failed(&world, &client, expected);
        assert!(a.request.cancel.is_cancelled());
        a.answer("Y=1");
        assert!(world.asked().is_empty() && client.replies().is_empty());
        assert!(world.books.batches.lock().unwrap().is_empty());
        // Nothing is left that another request would wait for.
        let client = world.send("IN=1");
        world.answer("a", "Y=2");
        world.answer("b", "Y=3");
        world.answer("c", "Y=4");
        assert_eq!(client.replies(), ["OUT=4 end"]);
    }
}

#[test]
fn a_step_whose_request_is_lost_fails() {
    let world = world(0);
    let client = world.send("IN=1");
    drop(world.take("a").sender);
    let expected = "Internal: in ensemble 'E', step 0 (model 'a'): the request was dropped without \
                    a final response end";
    check_failed(&world, &client, expected);
}

#[test]
fn cancelling_cancels_every_step_and_answers_at_once() {
    for limit in [0, 1] {
        let world = world(limit);
        let client = world.send("IN=1");
        client.cancel.cancel();
        let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
        check_failed(&world, &client, expected);
        let (a, b) = (world.take("a"), world.take("b"));
        assert!(a.request.cancel.is_cancelled() && b.request.cancel.is_cancelled());
        a.sender.fail(Status::cancelled("Request cancelled"));
        b.answer("Y=1");
        assert!(world.asked().is_empty() && client.replies().is_empty());
        client.cancel.cancel();
    }
}

#[test]
fn what_is_cancelled_before_it_begins_starts_nothing() {
    let world = world(0);
    let cancel = CancelToken::new();
    cancel.cancel();
    let client = world.send_request(InferenceRequest { cancel, ..request("IN=1", true) });
    let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
    check_failed(&world, &client, expected);
    assert!(world.asked().is_empty());
}

#[test]
fn a_composing_model_may_answer_a_cancellation_at_once() {
    let world = world(0);
    world.act("a", |request, sender| {
        let sender = std::sync::Mutex::new(Some(sender));
        request.cancel.on_cancel(move || {
            let sender = sender.lock().unwrap().take().unwrap();
            sender.fail(Status::cancelled("gone"));
        });
    });
    let client = world.send("IN=1");
    client.cancel.cancel();
    let expected = "Cancelled: in ensemble 'E', [request id: r] Request cancelled end";
    check_failed(&world, &client, expected);
}

#[test]
fn after_the_end_cancelling_does_nothing() {
    let world = world(0);
    let client = world.send("IN=1");
    for model in ["a", "b", "c"] {
        world.answer(model, "Y=2");
    }
    client.cancel.cancel();
    assert_eq!(client.replies(), ["OUT=2 end"]);
    assert_eq!((world.successes(), world.failures()), (1, vec![]));
}

#[test]
fn an_output_that_nobody_makes_any_more_is_a_deadlock() {
    let world = world(0);
    let client = world.send("IN=1");
    world.take("a").sender.finish();
    assert!(client.replies().is_empty(), "another step may fail with more to say");
    world.answer("b", "Y=1");
    check_failed(&world, &client, DEADLOCK);
}

#[test]
fn a_second_response_of_a_model_that_gives_one_is_an_error() {
    for limit in [0, 1] {
        let world = world(limit);
        let client = world.send("IN=1");
        let mut a = world.take("a");
        a.respond("Y=1");
        a.respond("Y=2");
        let expected = "Internal: in ensemble 'E', step 0 (model 'a'): expected a single response, \
                        got more end";
        check_failed(&world, &client, expected);
        assert!(a.request.cancel.is_cancelled());
        a.answer("Y=3");
        world.answer("b", "Y=1");
        assert!(world.asked().is_empty() && client.replies().is_empty());
    }
}

#[test]
fn parameters_of_the_wrong_type_fail_the_step() {
    let check = |name: &str, value, expected: &str| {
        let world = world(0);
        let client = world.send("IN=1");
        let parameters = vec![Parameter { name: name.to_owned(), value }];
        world.take("a").answer_with("Y=1", parameters);
        let expected =
            format!("InvalidArgument: in ensemble 'E', step 0 (model 'a'): {expected} end");
        check_failed(&world, &client, &expected);
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

/// A composing model that panics in the middle takes this request with it, and
/// no other.
#[test]
fn a_request_that_breaks_is_answered_and_leaves_its_places() {
    for limit in [0, 1] {
        let world = world(limit);
        world.act("b", |request, sender| match super::number(&request.inputs[0].data) {
            666 => panic!("as the test wants it"),
            _ => sender.send_final(Ok(super::response(&request, "Y=1"))),
        });
        let waiting = world.send("IN=1");
        let client = world.send("IN=666");
        if limit == 1 {
            // It has not come to the broken step yet.
            world.answer("a", "Y=1");
        }
        let replies = client.replies();
        assert!(replies[0].starts_with("Internal: "), "{replies:?}");
        assert_eq!(world.books.log.lock().unwrap().len(), 1);
        while !world.asked().is_empty() {
            let model = world.asked()[0][..1].to_owned();
            world.answer(&model, "Y=1");
        }
        assert_eq!(waiting.replies(), ["OUT=1 end"]);
        let next = world.send("IN=1");
        world.answer("a", "Y=1");
        world.answer("c", "Y=2");
        assert_eq!(next.replies(), ["OUT=2 end"]);
    }
}

#[test]
fn the_code_of_a_step_is_the_code_of_the_request() {
    for code in [Code::InvalidArgument, Code::NotFound, Code::Unsupported, Code::Internal] {
        let world = world(0);
        let client = world.send("IN=1");
        world.take("a").sender.fail(Status::new(code, "no"));
        let expected = format!("{code:?}: in ensemble 'E', step 0 (model 'a'): no end");
        check_failed(&world, &client, &expected);
    }
}
