//! Decoupled steps, which can have any number of responses.

use galatea_infer::{InferenceRequest, Status};

use super::{TestEnsemble, request};

/// A decoupled step, a step that consumes its responses, and a step that runs once.
fn stream_and_side() -> TestEnsemble {
    TestEnsemble::new(
        "0 IN > OUT SIDE",
        &["stream* 0 X > Y", "net 0 X W > Y", "side 0 X > Y"],
        &["stream X=IN > Y=wave", "net X=wave W=SIDE > Y=OUT", "side X=IN > Y=SIDE"],
        0,
    )
}

fn stream_chain() -> TestEnsemble {
    let models = ["stream* 0 X > Y", "net 0 X > Y"];
    TestEnsemble::new("0 IN > OUT", &models, &["stream X=IN > Y=wave", "net X=wave > Y=OUT"], 0)
}

#[test]
fn each_response_passes_through_the_later_steps() {
    let ensemble = stream_chain();
    let client = ensemble.send("IN=1");
    let mut stream = ensemble.take("stream");
    stream.respond("Y=10");
    stream.respond("Y=20");
    assert_eq!(ensemble.pending_requests(), ["net(X=10)", "net(X=20)"]);
    let first = ensemble.take("net");
    ensemble.complete("net", "Y=21");
    assert_eq!(client.replies(), ["OUT=21"]);
    first.complete("Y=11");
    assert_eq!(client.replies(), ["OUT=11"]);
    stream.complete("Y=30");
    ensemble.complete("net", "Y=31");
    // The last response and the end arrive in a single reply.
    assert_eq!(client.replies(), ["OUT=31 end"]);
    assert_eq!(ensemble.successes(), 1);
}

#[test]
fn a_decoupled_step_may_end_without_a_response() {
    let ensemble = stream_chain();
    let client = ensemble.send("IN=1");
    let mut stream = ensemble.take("stream");
    stream.respond("Y=10");
    ensemble.complete("net", "Y=11");
    assert_eq!(client.replies(), ["OUT=11"]);
    stream.sender.finish_without_response();
    assert_eq!(client.replies(), ["end"]);
    let silent = ensemble.send("IN=1");
    ensemble.take("stream").sender.finish_without_response();
    assert_eq!(silent.replies(), ["end"]);
    assert_eq!((ensemble.successes(), ensemble.failures()), (2, vec![]));
}

#[test]
fn each_response_joins_the_single_response_of_another_step() {
    let ensemble = stream_and_side();
    let client = ensemble.send("IN=1");
    let mut stream = ensemble.take("stream");
    stream.respond("Y=10");
    stream.respond("Y=20");
    assert_eq!(ensemble.pending_requests(), ["side(X=1)"]);
    ensemble.complete("side", "Y=5");
    assert_eq!(ensemble.pending_requests(), ["net(W=5,X=10)", "net(W=5,X=20)"]);
    ensemble.complete("net", "Y=11");
    assert_eq!(client.replies(), ["OUT=11,SIDE=5"]);
    stream.respond("Y=30");
    assert_eq!(ensemble.pending_requests(), ["net(W=5,X=20)", "net(W=5,X=30)"]);
    stream.sender.finish_without_response();
    ensemble.complete("net", "Y=21");
    ensemble.complete("net", "Y=31");
    assert_eq!(client.replies(), ["OUT=21,SIDE=5", "OUT=31,SIDE=5 end"]);
}

#[test]
fn a_decoupled_ensemble_sends_one_response_if_no_wanted_output_is_decoupled() {
    let ensemble = stream_and_side();
    let outputs = vec![String::from("SIDE")];
    let client = ensemble.send_request(InferenceRequest { outputs, ..request("IN=1", false) });
    assert_eq!(ensemble.pending_requests(), ["side(X=1)"]);
    ensemble.complete("side", "Y=5");
    assert_eq!(client.replies(), ["SIDE=5 end"]);
}

#[test]
fn an_error_between_responses_ends_the_request() {
    let ensemble = stream_chain();
    let client = ensemble.send("IN=1");
    let mut stream = ensemble.take("stream");
    stream.respond("Y=10");
    stream.sender.send(Err(Status::internal("no more")));
    let expected = "Internal: in ensemble 'E', no more end";
    assert_eq!(client.replies(), [expected]);
    assert!(stream.request.cancel.is_cancelled());
    assert!(ensemble.take("net").request.cancel.is_cancelled());
    stream.respond("Y=20");
    assert!(ensemble.pending_requests().is_empty());
    stream.sender.finish_without_response();
    assert!(client.replies().is_empty());
}

#[test]
fn an_error_of_a_later_step_ends_the_request_after_earlier_responses() {
    let ensemble = stream_chain();
    let client = ensemble.send("IN=1");
    let mut stream = ensemble.take("stream");
    stream.respond("Y=10");
    stream.respond("Y=20");
    ensemble.complete("net", "Y=11");
    ensemble.take("net").sender.fail(Status::invalid_argument("not this"));
    let expected = "InvalidArgument: in ensemble 'E', not this end";
    assert_eq!(client.replies(), ["OUT=11", expected]);
    assert!(stream.request.cancel.is_cancelled());
}

#[test]
fn decoupled_steps_may_follow_each_other() {
    let models = ["one* 0 X > Y", "two* 0 X > Y"];
    let steps = ["one X=IN > Y=wave", "two X=wave > Y=OUT"];
    let ensemble = TestEnsemble::new("0 IN > OUT", &models, &steps, 0);
    let client = ensemble.send("IN=1");
    let mut one = ensemble.take("one");
    one.respond("Y=10");
    one.complete("Y=20");
    let mut ten = ensemble.take("two");
    let mut twenty = ensemble.take("two");
    twenty.respond("Y=21");
    ten.respond("Y=11");
    twenty.sender.finish_without_response();
    assert_eq!(client.replies(), ["OUT=21", "OUT=11"]);
    ten.complete("Y=12");
    assert_eq!(client.replies(), ["OUT=12 end"]);
}
