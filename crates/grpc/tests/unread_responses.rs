//! Clients that don't read their responses.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{CallResult, Fixture, finish, framed, infer_head, infer_request, request};
use galatea_fakes::echo;
use galatea_grpc::GrpcOptions;
use galatea_infer::{InferenceRequest, ResponseSender};
use galatea_protocol::health::{HealthCheckRequest, HealthCheckResponse};
use galatea_protocol::inference::ModelInferResponse;
use galatea_stdx::testing::wait_in_task;
use h2::Reason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// The maximum number of bytes of an unread response that may be sent to these clients.
const CALL_WINDOW_BYTES: u32 = 16 << 10;
/// More bytes than a response uses in addition to its tensor.
const BESIDE_BYTES: usize = 4 * KIB;

/// Options with these limits for unary calls and for dropping responses.
fn options(call_unwritten_bytes_max: usize, unwritten_bytes_dropped: usize) -> GrpcOptions {
    let mut options = GrpcOptions::default();
    options.call_unwritten_bytes_max = call_unwritten_bytes_max;
    options.unwritten_bytes_dropped = unwritten_bytes_dropped;
    options
}

/// Options with this limit for all responses of a connection.
fn options_for_all(unwritten_bytes_max: usize) -> GrpcOptions {
    let mut options = GrpcOptions::default();
    options.unwritten_bytes_max = unwritten_bytes_max;
    options
}

/// Reads all responses concurrently, because their order is not defined.
async fn finish_all(calls: Vec<h2::client::ResponseFuture>) -> Vec<CallResult> {
    let calls: Vec<_> = calls.into_iter().map(|call| tokio::spawn(finish(call))).collect();
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap().unwrap());
    }
    results
}

/// Sends fifty mebibytes of responses. At first the client reads none of them, then all.
#[tokio::test]
async fn unread_responses_stop_the_reading_of_requests() {
    let fixture = Fixture::with(options(4 * MIB, 1 << 40));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let body = framed(&infer_request("inline", Bytes::from(vec![7; MIB / 2])));
    let mut calls = Vec::new();
    for _ in 0..100 {
        calls.push(client.begin(infer_head(), vec![body.clone()]).await);
    }
    fixture.unwritten_at_least(4 * MIB).await;
    client.settle().await;
    let unwritten = fixture.door.unwritten_bytes();
    assert!(unwritten <= 4 * MIB + MIB / 2 + BESIDE_BYTES, "{unwritten}");
    // Health checks are still read.
    let head = request("/grpc.health.v1.Health/Check");
    let health = client.call(head, framed(&HealthCheckRequest::default())).await;
    assert_eq!(health.message::<HealthCheckResponse>().status, 1);
    // The other requests are read once there is room.
    for result in finish_all(calls).await {
        let _: ModelInferResponse = result.message();
    }
    fixture.unwritten_at_most(0).await;
}

/// Responses to calls that were reset are never written and must not count forever.
#[tokio::test]
async fn calls_that_are_reset_make_room() {
    let fixture = Fixture::with(options(4 * MIB, 1 << 40));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let body = framed(&infer_request("inline", Bytes::from(vec![7; MIB / 2])));
    for _ in 0..5 {
        let mut given_up = Vec::new();
        for _ in 0..100 {
            let mut send = client.send.clone().ready().await.unwrap();
            let (call, mut stream) =
                send.send_request(infer_head().body(()).unwrap(), false).unwrap();
            stream.send_data(body.clone(), true).unwrap();
            given_up.push((call, stream));
        }
        fixture.unwritten_at_least(4 * MIB).await;
        for (call, mut stream) in given_up {
            stream.send_reset(Reason::CANCEL);
            drop(call);
        }
        fixture.unwritten_at_most(0).await;
    }
    client.check_echo("thread", Bytes::from(vec![1; 100_000])).await;
}

/// A request that was read before the limit was reached may still receive its response.
#[tokio::test]
async fn responses_beyond_the_second_limit_are_dropped() {
    let mut fixture = Fixture::with(options(2 * MIB, 3 * MIB));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let body = framed(&infer_request("held", Bytes::from(vec![7; MIB])));
    let (mut calls, mut held) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        calls.push(client.begin(infer_head(), vec![body.clone()]).await);
        held.push(fixture.held.recv().await.unwrap());
    }
    for (request, sender) in held {
        sender.send_final(Ok(echo(request)));
        client.settle().await;
        let unwritten = fixture.door.unwritten_bytes();
        assert!(unwritten <= 4 * MIB + BESIDE_BYTES, "{unwritten}");
    }
    let codes: Vec<u32> = finish_all(calls).await.iter().map(|result| result.status().0).collect();
    let failed = codes.iter().filter(|code| **code == 8).count();
    let succeeded = codes.iter().filter(|code| **code == 0).count();
    assert_eq!(failed + succeeded, 6, "{codes:?}");
    assert!((1..=3).contains(&failed), "{codes:?}");
    client.check_echo("inline", Bytes::from_static(b"x")).await;
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns a header block without indexed or compressed headers.
fn head() -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "x"),
        (":path", "/inference.GRPCInferenceService/ModelInfer"),
        ("content-type", "application/grpc"),
    ];
    let mut head = Vec::new();
    for (name, value) in fields {
        head.push(0);
        for text in [name, value] {
            head.push(u8::try_from(text.len()).unwrap());
            head.extend(text.as_bytes());
        }
    }
    head
}

/// Reads up to the connection's window update, the last frame that a door sends unprompted.
async fn wait_for_window(socket: &mut TcpStream) {
    let mut kind = 0;
    while kind != 8 {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        kind = head[3];
        socket.read_exact(&mut vec![0; usize::from(head[2])]).await.unwrap();
    }
}

/// Returns the frames of a call.
fn call(number: u32, body: &[u8]) -> Vec<u8> {
    let mut sent = frame(1, 4, number, &head());
    // These are the largest frames that servers must accept.
    let pieces: Vec<&[u8]> = body.chunks(16 * KIB).collect();
    for (index, piece) in pieces.iter().enumerate() {
        sent.extend(frame(0, u8::from(index + 1 == pieces.len()), number, piece));
    }
    sent
}

fn reset(number: u32) -> Vec<u8> {
    frame(3, 0, number, &8_u32.to_be_bytes())
}

/// The client opens every window, sends hundreds of requests and then never reads a byte from its
/// socket.
#[tokio::test]
async fn a_socket_that_is_not_read_is_held_at_the_limit() {
    let mut fixture = Fixture::with(options(MIB, 1 << 40));
    let mut socket = TcpStream::connect(fixture.door.address()).await.unwrap();
    let window = (1_u32 << 30).to_be_bytes();
    let mut settings = vec![0, 4];
    settings.extend(window);
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &settings));
    // This acknowledges the door's settings.
    sent.extend(frame(4, 1, 0, &[]));
    sent.extend(frame(8, 0, 0, &window));
    socket.write_all(&sent).await.unwrap();
    wait_for_window(&mut socket).await;

    socket.write_all(&call(1, &framed(&infer_request("held", Bytes::new())))).await.unwrap();
    let (first, _sender) = fixture.held.recv().await.unwrap();
    let (all_read, everything_was_read) = tokio::sync::oneshot::channel();
    first.cancel.on_cancel(|| all_read.send(()).unwrap());
    let body = framed(&infer_request("inline", Bytes::from(vec![7; 64 * KIB])));
    let numbers: Vec<u32> = (2..400).map(|index| 2 * index + 1).collect();
    let mut sent: Vec<u8> = numbers.iter().flat_map(|&number| call(number, &body)).collect();
    sent.extend(reset(1));
    socket.write_all(&sent).await.unwrap();
    everything_was_read.await.unwrap();
    // The kernel buffers some megabytes before responses are held here.
    let unwritten = fixture.unwritten_at_least(MIB).await;
    assert!(unwritten <= MIB + 64 * KIB + BESIDE_BYTES, "{unwritten}");
    for number in numbers {
        socket.write_all(&reset(number)).await.unwrap();
    }
    // The response that is being written to the socket stays.
    fixture.unwritten_at_most(64 * KIB + BESIDE_BYTES).await;
    let other = fixture.client().await;
    other.check_echo("inline", Bytes::from_static(b"x")).await;
    drop(socket);
    fixture.unwritten_at_most(0).await;
}

/// Only a limited number of requests is begun for a stream whose client doesn't read.
#[tokio::test]
async fn a_stream_begins_a_bounded_number_of_requests_ahead() {
    let mut options = GrpcOptions::default();
    options.stream_messages_max = 100;
    let mut fixture = Fixture::with(options);
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut stream = client.stream().await;
    for number in 0..500 {
        stream.infer("held", &number.to_string());
    }
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(fixture.held.recv().await.unwrap());
    }
    client.settle().await;
    assert!(fixture.held.try_recv().is_err());
    // A written response makes room for one more request.
    for number in 0..20 {
        let (request, sender) = held.remove(0);
        sender.send_final(Ok(echo(request)));
        stream.check(&format!("{number} held:1 1 output .")).await;
        held.push(fixture.held.recv().await.unwrap());
        client.settle().await;
        assert!(fixture.held.try_recv().is_err());
    }
}

/// The limit also applies to bytes. Other streams on the connection continue.
#[tokio::test]
async fn a_stream_that_is_not_read_holds_a_bounded_part() {
    let mut options = GrpcOptions::default();
    options.stream_bytes_max = 2 * MIB;
    let fixture = Fixture::with(options);
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut unread = client.stream().await;
    let request = infer_request("inline", Bytes::from(vec![7; MIB / 4]));
    for _ in 0..100 {
        unread.request(&request);
    }
    fixture.unwritten_at_least(2 * MIB).await;
    client.settle().await;
    let unwritten = fixture.door.unwritten_bytes();
    assert!(unwritten <= 2 * MIB + MIB / 4 + BESIDE_BYTES, "{unwritten}");
    for _ in 0..100 {
        unread.check("7 inline:1 1 output .").await;
    }
    unread.end();
    unread.check("end 0 ").await;
    fixture.unwritten_at_most(0).await;
}

/// Each call has its own window, so an unread stream stops no other stream.
#[tokio::test]
async fn a_stream_that_is_not_read_stops_no_other() {
    let mut options = GrpcOptions::default();
    options.stream_messages_max = 10;
    let fixture = Fixture::with(options);
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut unread = client.stream().await;
    for _ in 0..1000 {
        unread.infer("thread", "1");
    }
    let mut read = client.stream().await;
    for number in 0..200 {
        read.infer("thread", &number.to_string());
        read.check(&format!("{number} thread:1 1 output .")).await;
    }
    client.check_echo("thread", Bytes::from_static(b"x")).await;
    // The first stream was merely slow.
    for _ in 0..1000 {
        unread.check("1 thread:1 1 output .").await;
    }
}

/// A client may leave a stream unread while it waits for the response to a call.
#[tokio::test]
async fn a_stream_that_is_not_read_stops_no_unary_calls() {
    let fixture = Fixture::with(options(MIB, 1 << 40));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut unread = client.stream().await;
    for _ in 0..16 {
        unread.request(&infer_request("inline", Bytes::from(vec![7; MIB / 2])));
    }
    fixture.unwritten_at_least(6 * MIB).await;
    client.check_echo("inline", Bytes::from(vec![7; MIB / 2])).await;
    for _ in 0..16 {
        unread.check("7 inline:1 1 output .").await;
    }
}

/// The responses to unary calls fill the connection, so streams wait as well. Both continue
/// afterwards.
#[tokio::test]
async fn streams_wait_for_room_in_their_connection() {
    let fixture = Fixture::with(options_for_all(2 * MIB));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut stream = client.stream().await;
    let body = framed(&infer_request("inline", Bytes::from(vec![7; MIB])));
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(client.begin(infer_head(), vec![body.clone()]).await);
    }
    fixture.unwritten_at_least(2 * MIB).await;
    for number in 0..10 {
        stream.infer("inline", &number.to_string());
    }
    stream.end();
    client.settle().await;
    let unwritten = fixture.door.unwritten_bytes();
    assert!(unwritten <= 3 * MIB + BESIDE_BYTES, "{unwritten}");
    for result in finish_all(calls).await {
        let _: ModelInferResponse = result.message();
    }
    for number in 0..10 {
        stream.check(&format!("{number} inline:1 1 output .")).await;
    }
    stream.check("end 0 ").await;
}

/// Responses that wait for earlier ones are dropped together with their stream.
#[tokio::test]
async fn a_stream_that_is_reset_makes_room() {
    let mut fixture = Fixture::with(options_for_all(2 * MIB));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut stream = client.stream().await;
    stream.infer("held", "first");
    let _first = fixture.held.recv().await.unwrap();
    for _ in 0..4 {
        stream.request(&infer_request("inline", Bytes::from(vec![7; MIB / 2])));
    }
    fixture.unwritten_at_least(2 * MIB).await;
    let body = framed(&infer_request("inline", Bytes::from_static(b"x")));
    let call = client.begin(infer_head(), vec![body]).await;
    client.settle().await;
    assert!(fixture.door.unwritten_bytes() >= 2 * MIB);
    stream.send.send_reset(Reason::CANCEL);
    let _: ModelInferResponse = finish(call).await.unwrap().message();
    fixture.unwritten_at_most(0).await;
}

/// A model with endless responses is not stopped, but its stream ends and its request is cancelled.
#[tokio::test]
async fn a_stream_with_endless_responses_ends() {
    let mut fixture = Fixture::with(options(MIB, 8 * MIB));
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let mut stream = client.stream().await;
    let mut request = infer_request("decoupled", Bytes::from(vec![7; MIB / 2]));
    request.id = "endless".into();
    stream.request(&request);
    let (request, mut sender) = fixture.held.recv().await.unwrap();
    let window = usize::try_from(CALL_WINDOW_BYTES).unwrap();
    let mut sent = 0;
    while !request.cancel.is_cancelled() {
        sender.send(Ok(echo(request.clone())));
        sent += MIB / 2;
        let unwritten = fixture.door.unwritten_bytes();
        assert!(unwritten <= 9 * MIB, "{unwritten}");
        client.settle().await;
        assert!(sent <= 9 * MIB + window, "{sent}");
    }
    loop {
        match stream.next().await {
            Ok(_) => {}
            Err((code, message)) => {
                assert_eq!((code, message.as_str()), (999, "Some(ENHANCE_YOUR_CALM)"));
                break;
            }
        }
    }
    sender.finish_without_response();
    fixture.unwritten_at_most(0).await;
    client.check_echo("inline", Bytes::from_static(b"x")).await;
}

/// A model that sends responses until its reader is congested.
struct Endless {
    request: InferenceRequest,
    sender: ResponseSender,
    left: usize,
    sent: Arc<AtomicUsize>,
}

impl Endless {
    fn go_on(mut self) {
        while self.left > 0 {
            if self.request.backpressure.is_congested() {
                return self.request.backpressure.clone().when_free(move || self.go_on());
            }
            self.left -= 1;
            self.sender.send(Ok(echo(self.request.clone())));
            self.sent.fetch_add(1, Ordering::SeqCst);
        }
        self.sender.finish_without_response();
    }
}

/// A decoupled model pauses for a client that does not read, and resumes when the client reads or
/// disconnects.
#[tokio::test]
async fn a_decoupled_model_pauses_for_a_client_that_does_not_read() {
    const RESPONSES: usize = 2_000;
    let mut options = GrpcOptions::default();
    options.stream_messages_max = 20;
    let mut fixture = Fixture::with(options);
    let client = fixture.client_with(CALL_WINDOW_BYTES).await;
    let sent = Arc::<AtomicUsize>::default();
    let count = || sent.load(Ordering::SeqCst);
    for reads in [true, false] {
        sent.store(0, Ordering::SeqCst);
        let mut stream = client.stream().await;
        // In addition to the responses that the client reads, its window has room for some hundred.
        let mut request = infer_request("decoupled", Bytes::from(vec![7; KIB]));
        request.id = "1".into();
        stream.request(&request);
        let (request, sender) = fixture.held.recv().await.unwrap();
        let cancelled = request.cancel.clone();
        let endless = Endless { request, sender, left: RESPONSES, sent: sent.clone() };
        std::thread::spawn(move || endless.go_on());
        fixture.unwritten_at_least(20 * KIB).await;
        client.settle().await;
        let unread = usize::try_from(CALL_WINDOW_BYTES).unwrap() / KIB;
        assert!(count() <= 20 + unread + 2, "{} were made", count());
        if reads {
            for number in 0..RESPONSES {
                stream.check("1 decoupled:1 1 output +").await;
                assert!(count() <= number + 1 + 20 + unread + 2);
            }
        } else {
            stream.send.send_reset(Reason::CANCEL);
            fixture.unwritten_at_most(0).await;
            // It resumes without a client, because a cancelled model decides for itself when to
            // end.
            let has_ended = || count() >= RESPONSES && cancelled.is_cancelled();
            wait_in_task("the model has ended", has_ended).await;
        }
    }
}
