//! Steps that answer any number of times.

use galatea_infer::{InferenceRequest, Status};

use super::{World, request};

/// A decoupled step, one behind it, and one that runs once beside them.
fn world() -> World {
    World::new(
        "0 IN > OUT SIDE",
        &["stream* 0 X > Y", "net 0 X W > Y", "side 0 X > Y"],
        &["stream X=IN > Y=wave", "net X=wave W=SIDE > Y=OUT", "side X=IN > Y=SIDE"],
        0,
    )
}

fn plain() -> World {
    let models = ["stream* 0 X > Y", "net 0 X > Y"];
    World::new("0 IN > OUT", &models, &["stream X=IN > Y=wave", "net X=wave > Y=OUT"], 0)
}

#[test]
fn each_response_goes_through_the_steps_behind() {
    let world = plain();
    let client = world.send("IN=1");
    let mut stream = world.take("stream");
    stream.respond("Y=10");
    stream.respond("Y=20");
    assert_eq!(world.asked(), ["net(X=10)", "net(X=20)"]);
    let first = world.take("net");
    world.answer("net", "Y=21");
    assert_eq!(client.replies(), ["OUT=21"]);
    first.answer("Y=11");
    assert_eq!(client.replies(), ["OUT=11"]);
    stream.answer("Y=30");
    world.answer("net", "Y=31");
    // The last response and the end are one reply.
    assert_eq!(client.replies(), ["OUT=31 end"]);
    assert_eq!(world.successes(), 1);
}

#[test]
fn the_end_may_come_without_a_response() {
    let world = plain();
    let client = world.send("IN=1");
    let mut stream = world.take("stream");
    stream.respond("Y=10");
    world.answer("net", "Y=11");
    assert_eq!(client.replies(), ["OUT=11"]);
    stream.sender.finish();
    assert_eq!(client.replies(), ["end"]);
    let silent = world.send("IN=1");
    world.take("stream").sender.finish();
    assert_eq!(silent.replies(), ["end"]);
    assert_eq!((world.successes(), world.failures()), (2, vec![]));
}

#[test]
fn responses_meet_what_comes_once() {
    let world = world();
    let client = world.send("IN=1");
    let mut stream = world.take("stream");
    stream.respond("Y=10");
    stream.respond("Y=20");
    assert_eq!(world.asked(), ["side(X=1)"]);
    world.answer("side", "Y=5");
    assert_eq!(world.asked(), ["net(W=5,X=10)", "net(W=5,X=20)"]);
    world.answer("net", "Y=11");
    assert_eq!(client.replies(), ["OUT=11,SIDE=5"]);
    stream.respond("Y=30");
    assert_eq!(world.asked(), ["net(W=5,X=20)", "net(W=5,X=30)"]);
    stream.sender.finish();
    world.answer("net", "Y=21");
    world.answer("net", "Y=31");
    assert_eq!(client.replies(), ["OUT=21,SIDE=5", "OUT=31,SIDE=5 end"]);
}

#[test]
fn without_its_responses_a_decoupled_ensemble_answers_once() {
    let world = world();
    let outputs = vec![String::from("SIDE")];
    let client = world.send_request(InferenceRequest { outputs, ..request("IN=1", false) });
    assert_eq!(world.asked(), ["side(X=1)"]);
    world.answer("side", "Y=5");
    assert_eq!(client.replies(), ["SIDE=5 end"]);
}

#[test]
fn an_error_between_responses_ends_the_request() {
    let world = plain();
    let client = world.send("IN=1");
    let mut stream = world.take("stream");
    stream.respond("Y=10");
    stream.sender.send(Err(Status::internal("no more")));
    let expected = "Internal: in ensemble 'E', step 0 (model 'stream'): no more end";
    assert_eq!(client.replies(), [expected]);
    assert!(stream.request.cancel.is_cancelled());
    assert!(world.take("net").request.cancel.is_cancelled());
    stream.respond("Y=20");
    assert!(world.asked().is_empty());
    stream.sender.finish();
    assert!(client.replies().is_empty());
}

#[test]
fn an_error_behind_ends_the_request_after_the_responses_before() {
    let world = plain();
    let client = world.send("IN=1");
    let mut stream = world.take("stream");
    stream.respond("Y=10");
    stream.respond("Y=20");
    world.answer("net", "Y=11");
    world.take("net").sender.fail(Status::invalid_argument("not this"));
    let expected = "InvalidArgument: in ensemble 'E', step 1 (model 'net'): not this end";
    assert_eq!(client.replies(), ["OUT=11", expected]);
    assert!(stream.request.cancel.is_cancelled());
}

#[test]
fn decoupled_steps_may_follow_each_other() {
    let models = ["one* 0 X > Y", "two* 0 X > Y"];
    let steps = ["one X=IN > Y=wave", "two X=wave > Y=OUT"];
    let world = World::new("0 IN > OUT", &models, &steps, 0);
    let client = world.send("IN=1");
    let mut one = world.take("one");
    one.respond("Y=10");
    one.answer("Y=20");
    let mut ten = world.take("two");
    let mut twenty = world.take("two");
    twenty.respond("Y=21");
    ten.respond("Y=11");
    twenty.sender.finish();
    assert_eq!(client.replies(), ["OUT=21", "OUT=11"]);
    ten.answer("Y=12");
    assert_eq!(client.replies(), ["OUT=12 end"]);
}
