//! Clients that send requests faster than they are executed.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::collections::VecDeque;

use bytes::Bytes;
use common::{Fixture, finish, framed, infer_head, infer_request, request};
use galatea_fakes::{HeldRequest, echo};
use galatea_grpc::GrpcOptions;
use galatea_protocol::health::{HealthCheckRequest, HealthCheckResponse};
use galatea_protocol::inference::{InferTensorContents, ModelInferRequest, ModelInferResponse};
use galatea_stdx::testing::wait_in_task;
use h2::Reason;
use h2::client::ResponseFuture;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// More bytes than a request uses in addition to its tensor.
const BESIDE_BYTES: usize = 3 * KIB;
const TOO_MUCH: &str = "too many bytes of requests are arriving on this connection at once";

fn options(request_bytes_max: usize, arriving_bytes_max: usize) -> GrpcOptions {
    let mut options = GrpcOptions::default();
    options.request_bytes_max = request_bytes_max;
    options.arriving_bytes_max = arriving_bytes_max;
    options
}

fn body(model: &str, bytes: usize) -> Bytes {
    framed(&infer_request(model, Bytes::from(vec![7; bytes])))
}

fn respond((request, sender): HeldRequest) {
    sender.send_final(Ok(echo(request)));
}

async fn check_responded(call: ResponseFuture) {
    let _: ModelInferResponse = finish(call).await.unwrap().message();
}

async fn requests_take_at_most(fixture: &Fixture, bytes: usize) {
    wait_in_task("requests are released", || fixture.door.request_bytes() <= bytes).await;
}

/// Ten mebibytes of requests arrive, of which two may be in progress.
#[tokio::test]
async fn requests_in_progress_stop_the_reading_of_further_ones() {
    let mut fixture = Fixture::with(options(2 * MIB, 1 << 30));
    let client = fixture.client().await;
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(client.begin(infer_head(), vec![body("held", MIB)]).await);
    }
    let mut held = VecDeque::new();
    for _ in 0..2 {
        held.push_back(fixture.held.recv().await.unwrap());
    }
    client.settle().await;
    assert!(fixture.held.try_recv().is_err());
    let taken = fixture.door.request_bytes();
    assert!((2 * MIB..=2 * (MIB + BESIDE_BYTES)).contains(&taken), "{taken}");
    // Health checks are still read, and streams continue.
    let head = request("/grpc.health.v1.Health/Check");
    let health = client.call(head, framed(&HealthCheckRequest::default())).await;
    assert_eq!(health.message::<HealthCheckResponse>().status, 1);
    let mut stream = client.stream().await;
    stream.infer("inline", "1");
    stream.check("1 inline:1 1 output .").await;
    // Each response makes room for another request.
    for _ in 0..8 {
        respond(held.pop_front().unwrap());
        held.push_back(fixture.held.recv().await.unwrap());
        client.settle().await;
        assert!(fixture.held.try_recv().is_err());
    }
    held.into_iter().for_each(respond);
    for call in calls {
        check_responded(call).await;
    }
    requests_take_at_most(&fixture, 0).await;
}

/// The request of a call that was reset may still be executing.
#[tokio::test]
async fn requests_count_until_their_sinks_are_dropped() {
    let mut fixture = Fixture::with(options(MIB, 1 << 30));
    let client = fixture.client().await;
    let mut send = client.send.clone().ready().await.unwrap();
    let head = infer_head().body(()).unwrap();
    let (call, mut stream) = send.send_request(head, false).unwrap();
    stream.send_data(body("held", MIB), true).unwrap();
    let (request, sender) = fixture.held.recv().await.unwrap();
    stream.send_reset(Reason::CANCEL);
    drop(call);
    wait_in_task("the request is cancelled", || request.cancel.is_cancelled()).await;
    let next = client.begin(infer_head(), vec![body("inline", KIB)]).await;
    client.settle().await;
    assert!(fixture.door.request_bytes() >= MIB);
    drop((request, sender));
    check_responded(next).await;
    requests_take_at_most(&fixture, 0).await;
}

/// Returns a request whose elements are larger than in its message.
fn typed(elements: usize) -> ModelInferRequest {
    let mut request = infer_request("held", Bytes::from(vec![0; elements]));
    request.raw_input_contents.clear();
    request.inputs[0].datatype = "INT64".into();
    let int64_contents = vec![1; elements];
    request.inputs[0].contents =
        Some(InferTensorContents { int64_contents, ..InferTensorContents::default() });
    request
}

/// Requests count with the size of their memory, not with the length of their messages.
#[tokio::test]
async fn requests_count_with_their_decoded_tensors() {
    let mut fixture = Fixture::with(options(1 << 30, 1 << 30));
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    let call = client.begin(infer_head(), vec![framed(&typed(MIB))]).await;
    let first = fixture.held.recv().await.unwrap();
    let taken = fixture.door.request_bytes();
    assert!((8 * MIB..=8 * MIB + BESIDE_BYTES).contains(&taken), "{taken}");
    stream.request(&typed(MIB));
    let second = fixture.held.recv().await.unwrap();
    let taken = fixture.door.request_bytes();
    assert!((16 * MIB..=16 * MIB + 2 * BESIDE_BYTES).contains(&taken), "{taken}");
    respond(first);
    check_responded(call).await;
    respond(second);
    stream.check("7 held:1 1 output .").await;
    // A small request counts as well.
    for _ in 0..100 {
        stream.infer("held", "");
    }
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(fixture.held.recv().await.unwrap());
    }
    let taken = fixture.door.request_bytes();
    assert!((200 * KIB..=100 * BESIDE_BYTES).contains(&taken), "{taken}");
    drop(held);
}

/// The requests of a stream stop other streams but not unary calls.
#[tokio::test]
async fn requests_of_streams_count_apart() {
    let mut fixture = Fixture::with(options(2 * MIB, 1 << 30));
    let client = fixture.client().await;
    let (mut first, mut second) = (client.stream().await, client.stream().await);
    let large = infer_request("held", Bytes::from(vec![7; MIB]));
    first.request(&large);
    first.request(&large);
    let held = [fixture.held.recv().await.unwrap(), fixture.held.recv().await.unwrap()];
    second.infer("held", "small");
    client.settle().await;
    assert!(fixture.held.try_recv().is_err());
    client.check_echo("inline", Bytes::from_static(b"x")).await;
    held.into_iter().for_each(respond);
    respond(fixture.held.recv().await.unwrap());
    second.check("small held:1 1 output .").await;
    for _ in 0..2 {
        first.check("7 held:1 1 output .").await;
    }
    requests_take_at_most(&fixture, 0).await;
}

#[tokio::test]
async fn arriving_messages_are_bounded() {
    let fixture = Fixture::with(options(1 << 30, MIB));
    let client = fixture.client().await;
    let whole = body("inline", 4 * MIB);
    // A single message may have the maximum length.
    check_responded(client.begin(infer_head(), vec![whole.clone()]).await).await;
    let mut uploads = Vec::new();
    for part in [700 * KIB, 200 * KIB] {
        let mut send = client.send.clone().ready().await.unwrap();
        let head = infer_head().body(()).unwrap();
        let (call, mut stream) = send.send_request(head, false).unwrap();
        stream.send_data(whole.slice(..part), false).unwrap();
        uploads.push((call, stream, part));
        client.settle().await;
    }
    assert_eq!(fixture.door.request_bytes(), 900 * KIB);
    // The message that exceeds the limit fails, and the other continues.
    let (call, mut stream, sent) = uploads.pop().unwrap();
    stream.send_data(whole.slice(sent..MIB), false).unwrap();
    assert_eq!(finish(call).await.unwrap().status(), (8, TOO_MUCH.to_owned()));
    let (call, mut stream, sent) = uploads.pop().unwrap();
    stream.send_data(whole.slice(sent..), true).unwrap();
    check_responded(call).await;
    requests_take_at_most(&fixture, 0).await;
}

#[tokio::test]
async fn arriving_messages_of_streams_are_bounded() {
    let fixture = Fixture::with(options(1 << 30, MIB));
    let client = fixture.client().await;
    let whole = body("inline", 4 * MIB);
    let (mut first, mut second) = (client.stream().await, client.stream().await);
    first.send.send_data(whole.slice(..700 * KIB), false).unwrap();
    client.settle().await;
    assert!(fixture.door.request_bytes() > 600 * KIB);
    second.send.send_data(whole.slice(..700 * KIB), false).unwrap();
    second.check(&format!("end 8 {TOO_MUCH}")).await;
    first.send.send_data(whole.slice(700 * KIB..), false).unwrap();
    first.check("7 inline:1 1 output .").await;
    first.end();
    first.check("end 0 ").await;
    requests_take_at_most(&fixture, 0).await;
}

/// Some messages fit into a frame; others are assembled in the memory of earlier messages.
#[tokio::test]
async fn long_messages_arrive_complete() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let mut stream = client.stream().await;
    for (round, length) in
        [5 * MIB, 3 * MIB, MIB, 2 * MIB - 50, 2 * MIB, 17 * MIB, 16 * MIB].iter().enumerate()
    {
        let data: Vec<u8> = (round..round + length).map(|place| (place % 251) as u8).collect();
        let data = Bytes::from(data);
        client.check_echo("inline", data.clone()).await;
        stream.request(&infer_request("inline", data.clone()));
        let response = stream.next().await.unwrap().infer_response.unwrap();
        assert!(response.raw_output_contents == [data], "other data came back");
    }
}
