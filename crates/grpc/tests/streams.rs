//! Streams of inference requests: order, ends and failures.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use bytes::Bytes;
use common::{Client, Fixture, framed, infer_request, inference, request};
use galatea_fakes::{HeldRequest, echo};
use galatea_infer::{CancelToken, Status};
use galatea_protocol::inference::InferParameter;
use galatea_protocol::inference::infer_parameter::ParameterChoice;
use h2::Reason;
use tokio::sync::oneshot;

/// Resolves when the request is cancelled.
fn cancelled(cancel: &CancelToken) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    cancel.on_cancel(move || {
        let _ = sender.send(());
    });
    receiver
}

fn respond((request, sender): HeldRequest) {
    sender.send_final(Ok(echo(request)));
}

#[tokio::test]
async fn responses_arrive_in_the_order_of_their_requests() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    for (model, id) in [("held", "1"), ("inline", "2"), ("thread", "3"), ("held", "4")] {
        stream.infer(model, id);
    }
    stream.end();
    let first = fixture.held.recv().await.unwrap();
    let last = fixture.held.recv().await.unwrap();
    respond(last);
    client.settle().await;
    respond(first);
    stream.check("1 held:1 1 output .").await;
    stream.check("2 inline:1 1 output .").await;
    stream.check("3 thread:1 1 output .").await;
    stream.check("4 held:1 1 output .").await;
    stream.check("end 0 ").await;
}

#[tokio::test]
async fn large_tensors_pass_in_both_directions() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    for length in [0, 1, 2047, 2049, 100_000, 5 << 20] {
        let data = Bytes::from((0..length).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        stream.request(&infer_request("thread", data.clone()));
        let response = stream.next().await.unwrap().infer_response.unwrap();
        assert!(response.raw_output_contents == [data], "{length} bytes came back otherwise");
    }
}

/// The boundaries of frames don't matter.
#[tokio::test]
async fn messages_may_be_split_into_any_frames() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut body = Vec::new();
    for number in 0..300 {
        let mut request = infer_request("inline", Bytes::from_static(b"0123456789"));
        request.id = number.to_string();
        body.extend_from_slice(&framed(&request));
    }
    for size in [3, 70, 1000, body.len()] {
        let mut stream = client.stream().await;
        for piece in body.chunks(size) {
            stream.send.send_data(Bytes::copy_from_slice(piece), false).unwrap();
        }
        stream.end();
        for number in 0..300 {
            stream.check(&format!("{number} inline:1 1 output .")).await;
        }
        stream.check("end 0 ").await;
    }
}

#[tokio::test]
async fn responses_of_decoupled_models_do_not_wait() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    stream.infer("held", "first");
    stream.infer("decoupled", "a");
    stream.infer("decoupled", "b");
    stream.end();
    let held = fixture.held.recv().await.unwrap();
    let (a, mut to_a) = fixture.held.recv().await.unwrap();
    let (b, mut to_b) = fixture.held.recv().await.unwrap();
    to_b.send(Ok(echo(b.clone())));
    stream.check("b decoupled:1 1 output +").await;
    to_a.send(Ok(echo(a.clone())));
    stream.check("a decoupled:1 1 output +").await;
    // The final reply may lack a response, in which case it is sent only if the client has
    // requested that.
    to_b.finish_without_response();
    to_a.send(Ok(echo(a.clone())));
    to_a.send_final(Ok(echo(a)));
    stream.check("a decoupled:1 1 output +").await;
    stream.check("a decoupled:1 1 output .").await;
    respond(held);
    stream.check("first held:1 1 output .").await;
    stream.check("end 0 ").await;
}

#[tokio::test]
async fn empty_final_responses_are_sent_on_request() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    let mut request = infer_request("decoupled", Bytes::new());
    let enabled = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    request.parameters.insert("triton_enable_empty_final_response".into(), enabled);
    request.model_version = "3".into();
    stream.request(&request);
    let (_, sender) = fixture.held.recv().await.unwrap();
    sender.finish_without_response();
    stream.check("7 decoupled:3 empty .").await;
    // The final response itself marks the end.
    stream.request(&request);
    respond(fixture.held.recv().await.unwrap());
    stream.check("7 decoupled:3 1 output .").await;
    // Other models have no empty final response.
    request.model_name = "split".into();
    stream.request(&request);
    stream.check("7 split:3 1 output +").await;
    stream.end();
    stream.check("end 0 ").await;
}

#[tokio::test]
async fn failures_are_messages_and_the_stream_goes_on() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    let mut check = async |model: &str, expected: &str| {
        stream.infer(model, "i");
        stream.check(expected).await;
    };
    let unknown = "i : Request for unknown model: 'unknown' is not found -";
    check("unknown", unknown).await;
    check("refusing", "i refusing: nicht jetzt – später .").await;
    check("dropping", "i dropping: the request was dropped without a final response .").await;
    check("panicking", "i panicking: the request was dropped without a final response .").await;
    check("buggy", "i : the server failed on this request -").await;
    check("silent", "i silent: expected a single response, got 0 .").await;
    check("twice", "i twice:1 1 output +").await;
    check("inline", "i inline:1 1 output .").await;

    let mut request = infer_request("inline", Bytes::new());
    request.model_version = "x".into();
    stream.request(&request);
    let next_as_text = stream.next_as_text().await;
    assert!(next_as_text.starts_with("7 : failed to get model version"), "{next_as_text}");
    request.model_version = "1".into();
    request.raw_input_contents.clear();
    stream.request(&request);
    let missing = "unable to find data for input tensor 'T' for model 'inline' in request.";
    stream.check(&format!("7 : {missing} -")).await;
    stream.send.send_data(Bytes::from_static(b"\0\0\0\0\x01\xff"), false).unwrap();
    stream.check(" : Unable to parse request -").await;

    // A decoupled model may fail and continue.
    stream.infer("decoupled", "d");
    let (request, mut sender) = fixture.held.recv().await.unwrap();
    sender.send(Err(Status::internal("once")));
    sender.send(Ok(echo(request)));
    sender.fail(Status::internal("for good"));
    stream.check("d decoupled: once +").await;
    stream.check("d decoupled:1 1 output +").await;
    stream.check("d decoupled: for good .").await;
    stream.end();
    stream.check("end 0 ").await;
}

#[tokio::test]
async fn failures_keep_the_order_of_requests() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    stream.infer("held", "1");
    stream.infer("unknown", "2");
    stream.infer("refusing", "3");
    let held = fixture.held.recv().await.unwrap();
    client.settle().await;
    respond(held);
    stream.check("1 held:1 1 output .").await;
    stream.check("2 : Request for unknown model: 'unknown' is not found -").await;
    stream.check("3 refusing: nicht jetzt – später .").await;
}

#[tokio::test]
async fn a_failure_ends_the_stream_if_the_client_requests_that() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let head = || request(&inference("ModelStreamInfer")).header("triton_grpc_error", "true");
    // The requests in progress are cancelled, even earlier ones.
    let mut stream = client.stream_with(head()).await;
    stream.infer("held", "1");
    let first = fixture.held.recv().await.unwrap();
    let mut told = vec![cancelled(&first.0.cancel)];
    let mut held = vec![first];
    // A request that reaches no model doesn't count as a failure in this sense.
    stream.infer("unknown", "2");
    for (model, id) in [("held", "3"), ("decoupled", "4")] {
        stream.infer(model, id);
        let one = fixture.held.recv().await.unwrap();
        told.push(cancelled(&one.0.cancel));
        held.push(one);
    }
    stream.infer("refusing", "5");
    stream.check("end 14 nicht jetzt %E2%80%93 sp%C3%A4ter").await;
    for one in told {
        one.await.unwrap();
    }
    held.into_iter().for_each(respond);
    let mut stream = client.stream_with(head()).await;
    stream.infer("unknown", "1");
    stream.check("1 : Request for unknown model: 'unknown' is not found -").await;
    stream.infer("inline", "2");
    stream.check("2 inline:1 1 output .").await;
    stream.infer("refusing", "3");
    stream.check("end 14 nicht jetzt %E2%80%93 sp%C3%A4ter").await;
    // The same applies to one of several responses.
    let mut stream = client.stream_with(head()).await;
    stream.infer("decoupled", "1");
    let (request, mut sender) = fixture.held.recv().await.unwrap();
    let cancellation = cancelled(&request.cancel);
    sender.send(Ok(echo(request)));
    sender.send(Err(Status::invalid_argument("bad")));
    sender.send(Err(Status::invalid_argument("worse")));
    stream.check("1 decoupled:1 1 output +").await;
    stream.check("end 3 bad").await;
    cancellation.await.unwrap();
    sender.finish_without_response();
    client.check_echo("inline", Bytes::from_static(b"x")).await;
    fixture.unwritten_at_most(0).await;
}

#[tokio::test]
async fn a_stream_without_requests_succeeds() {
    let fixture = Fixture::new();
    let mut stream = fixture.client().await.stream().await;
    stream.end();
    stream.check("end 0 ").await;
}

#[tokio::test]
async fn malformed_bodies_end_the_stream() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    for (body, is_end, expected) in [
        (&b"\0\0"[..], true, "end 13 the body ends inside a message"),
        (b"\0\xff\xff\xff\xff", false, "end 8 Received message larger than max (4294967295 vs. "),
    ] {
        let mut stream = client.stream().await;
        stream.infer("held", "1");
        let held = fixture.held.recv().await.unwrap();
        let cancellation = cancelled(&held.0.cancel);
        stream.send.send_data(Bytes::from_static(body), is_end).unwrap();
        let next_as_text = stream.next_as_text().await;
        assert!(next_as_text.starts_with(expected), "{next_as_text}");
        cancellation.await.unwrap();
    }
}

#[tokio::test]
async fn a_reset_cancels_all_requests_of_a_stream() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut other = client.stream().await;
    other.infer("held", "other");
    let other_held = fixture.held.recv().await.unwrap();
    for is_half_closed in [false, true] {
        let mut stream = client.stream().await;
        let mut cancellation = Vec::new();
        let mut held = Vec::new();
        for model in ["held", "decoupled", "held"] {
            stream.infer(model, "1");
            let one = fixture.held.recv().await.unwrap();
            cancellation.push(cancelled(&one.0.cancel));
            held.push(one);
        }
        if is_half_closed {
            stream.end();
        }
        // One response is waiting for an earlier one when the stream is reset.
        respond(held.pop().unwrap());
        cancellation.pop();
        client.settle().await;
        stream.send.send_reset(Reason::CANCEL);
        for one in cancellation {
            one.await.unwrap();
        }
        // Late responses find no stream.
        held.into_iter().for_each(respond);
    }
    assert!(!other_held.0.cancel.is_cancelled());
    respond(other_held);
    other.check("other held:1 1 output .").await;
    client.settle().await;
    assert_eq!(fixture.door.unwritten_bytes(), 0);
}

#[tokio::test]
async fn a_lost_connection_cancels_its_streams() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    stream.infer("decoupled", "1");
    let (request, mut sender) = fixture.held.recv().await.unwrap();
    let cancellation = cancelled(&request.cancel);
    client.task.abort();
    drop(client);
    cancellation.await.unwrap();
    for _ in 0..100 {
        sender.send(Ok(echo(request.clone())));
    }
    fixture.unwritten_at_most(0).await;
}

#[tokio::test]
async fn a_deadline_ends_a_stream() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    // On a busy machine, the shortest timeout may pass before everything has begun.
    for timeout in ["100m", "1S", "10S", "60S"] {
        if ends_by_its_deadline(&mut fixture, &client, timeout).await {
            return;
        }
        while fixture.held.try_recv().is_ok() {}
    }
    panic!("nothing begins before the deadline");
}

/// Checks how a stream ends. Returns false if its timeout passed before everything had begun.
async fn ends_by_its_deadline(fixture: &mut Fixture, client: &Client, timeout: &str) -> bool {
    const END: &str = "end 4 Deadline Exceeded";
    let head = request(&inference("ModelStreamInfer")).header("grpc-timeout", timeout);
    let mut stream = client.stream_with(head).await;
    if !stream.try_infer("inline", "1") || !stream.try_infer("held", "2") {
        stream.check(END).await;
        return false;
    }
    let first = stream.next_as_text().await;
    if first == END {
        return false;
    }
    assert_eq!(first, "1 inline:1 1 output .");
    let held = tokio::select! {
        biased;
        held = fixture.held.recv() => held.unwrap(),
        end = stream.next_as_text() => {
            assert_eq!(end, END);
            return false;
        }
    };
    let cancellation = cancelled(&held.0.cancel);
    stream.check(END).await;
    cancellation.await.unwrap();
    true
}

const STOPPING: &str = "GRPC server is shutting down and has stopped accepting new requests.";

#[tokio::test]
async fn a_stopping_door_finishes_the_requests_of_streams() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let (mut idle, mut busy) = (client.stream().await, client.stream().await);
    idle.infer("inline", "1");
    idle.check("1 inline:1 1 output .").await;
    busy.infer("held", "1");
    busy.infer("decoupled", "2");
    let held = fixture.held.recv().await.unwrap();
    let (request, mut sender) = fixture.held.recv().await.unwrap();
    fixture.door.begin_drain();
    idle.check(&format!("end 14 {STOPPING}")).await;
    busy.infer("inline", "3");
    sender.send(Ok(echo(request)));
    busy.check("2 decoupled:1 1 output +").await;
    respond(held);
    busy.check("1 held:1 1 output .").await;
    busy.check(&format!("3 : {STOPPING} -")).await;
    sender.finish_without_response();
    busy.check(&format!("end 14 {STOPPING}")).await;
    fixture.door.drained().await;
    client.task.await.unwrap();
    // A later request is refused immediately.
    let late = fixture.client().await;
    late.stream().await.check(&format!("end 14 {STOPPING}")).await;
}

#[tokio::test]
async fn a_closed_door_cancels_streams() {
    let mut fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    stream.infer("held", "1");
    let held = fixture.held.recv().await.unwrap();
    let cancellation = cancelled(&held.0.cancel);
    fixture.door.close();
    cancellation.await.unwrap();
    stream.check("end 1 CANCELLED").await;
    respond(held);
    fixture.unwritten_at_most(0).await;
}
