//! The memory that clients can make the process hold without sending much.
//!
//! The test measures the memory of the process, so it is the only test in this file.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use bytes::Bytes;
use common::{Client, Fixture, finish, framed, infer_head, infer_request};
use galatea_fakes::echo;
use galatea_grpc::GrpcOptions;
use galatea_protocol::inference::ModelInferResponse;
use galatea_stdx::testing::wait_in_task;
use h2::SendStream;
use h2::client::ResponseFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

#[tokio::test]
async fn memory_held_by_clients_is_bounded() {
    // The order matters: one check may leave memory for the next.
    idle_connections_take_little().await;
    unread_responses_retain_little_memory().await;
    announced_messages_take_no_memory().await;
    announced_messages_take_no_pooled_memory().await;
    begun_messages_take_twice_what_has_arrived().await;
}

/// Returns the resident memory of the process.
fn resident_bytes() -> usize {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    sizes.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4 * KIB
}

/// Returns the first `there` bytes of a message of this length.
fn beginning(bytes: usize, there: usize) -> Bytes {
    let mut beginning = vec![0];
    beginning.extend(u32::try_from(bytes).unwrap().to_be_bytes());
    beginning.resize(5 + there, 7);
    Bytes::from(beginning)
}

/// Begins a call that has sent these bytes of its message.
async fn begin(client: &Client, beginning: &Bytes) -> (ResponseFuture, SendStream<Bytes>) {
    let mut send = client.send.clone().ready().await.unwrap();
    let (call, mut body) = send.send_request(infer_head().body(()).unwrap(), false).unwrap();
    body.send_data(beginning.clone(), false).unwrap();
    (call, body)
}

/// The CVE-2025-23331 attack: long messages are announced but not sent.
async fn announced_messages_take_no_memory() {
    let fixture = Fixture::new();
    let client = fixture.client().await;
    let before = resident_bytes();
    let beginning = beginning(250 * MIB, 100);
    let mut calls = Vec::new();
    for _ in 0..1000 {
        calls.push(begin(&client, &beginning).await);
    }
    let mut stream = client.stream().await;
    stream.send.send_data(beginning.clone(), false).unwrap();
    client.settle().await;
    assert_eq!(fixture.door.request_bytes(), 1000 * beginning.len() + 100);
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < 50 * MIB, "{taken}");
    client.check_echo("inline", Bytes::from(vec![7; MIB])).await;
    drop((calls, stream));
    wait_in_task("requests are released", || fixture.door.request_bytes() == 0).await;
}

/// Runs rounds in which a client sends a complete message of `announced` bytes, and others begin
/// `each` messages of that length, of which they send `there` bytes. Returns the memory that these
/// messages use.
async fn bytes_of_begun_messages(
    rounds: usize,
    each: usize,
    announced: usize,
    there: usize,
) -> usize {
    let fixture = Fixture::new();
    let sender = fixture.client().await;
    let beginners = [fixture.client().await, fixture.client().await, fixture.client().await];
    let long = framed(&infer_request("decoupled", Bytes::from(vec![7; announced])));
    let beginning = beginning(announced, there);
    let before = resident_bytes();
    let mut calls = Vec::new();
    for client in beginners.iter().cycle().take(rounds) {
        let result = finish(sender.begin(infer_head(), vec![long.clone()]).await).await;
        assert_ne!(result.unwrap().status().0, 0);
        sender.settle().await;
        for _ in 0..each {
            calls.push(begin(client, &beginning).await);
        }
        client.settle().await;
    }
    let (count, arrived) = (calls.len(), fixture.door.request_bytes());
    assert!((count * there..count * (there + KIB)).contains(&arrived), "{arrived}");
    resident_bytes().saturating_sub(before)
}

/// Complete long messages leave memory behind, in the door and in the allocator. Clients that only
/// announce messages don't get that memory...
async fn announced_messages_take_no_pooled_memory() {
    // The door keeps 64 MiB.
    let taken = bytes_of_begun_messages(12, 1, 60 * MIB, 100).await;
    assert!(taken < 150 * MIB, "{taken}");
    let taken = bytes_of_begun_messages(12, 100, 16 * MIB, 5 * KIB).await;
    assert!(taken < 150 * MIB, "{taken}");
}

/// ...and neither do clients that send part of a message.
async fn begun_messages_take_twice_what_has_arrived() {
    let taken = bytes_of_begun_messages(150, 1, 16 * MIB, MIB + 100 * KIB).await;
    assert!(taken < 360 * MIB, "{taken}");
}

/// The responses are small slices of their requests, like slices of a batch output.
async fn unread_responses_retain_little_memory() {
    let mut options = GrpcOptions::default();
    options.retained_bytes_max = 16 * MIB;
    let mut fixture = Fixture::with(options);
    let client = fixture.client_with(1000).await;
    let mut request = infer_request("held", Bytes::from(vec![7; 4 * KIB]));
    let other = infer_request("held", Bytes::from(vec![8; 300 * KIB]));
    request.inputs.extend(other.inputs);
    request.raw_input_contents.extend(other.raw_input_contents);
    let body = framed(&request);
    let before = resident_bytes();
    let mut calls = Vec::new();
    for _ in 0..1000 {
        calls.push(client.begin(infer_head(), vec![body.clone()]).await);
        let (mut request, sender) = fixture.held.recv().await.unwrap();
        request.inputs.truncate(1);
        sender.send_final(Ok(echo(request)));
    }
    assert!(fixture.unwritten_at_least(1000 * 3 * KIB).await < 10 * MIB);
    let taken = resident_bytes().saturating_sub(before);
    assert!(taken < 100 * MIB, "{taken}");
    // The bytes are the same, whether or not they were copied.
    for call in calls {
        let response: ModelInferResponse = finish(call).await.unwrap().message();
        assert_eq!(response.raw_output_contents, [vec![7; 4 * KIB]]);
    }
}

/// An HTTP/2 client that uses no memory itself, so that all memory of the process is the server's.
struct RawClient {
    socket: TcpStream,
    received: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

impl RawClient {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    async fn new(fixture: &Fixture) -> Self {
        let mut socket = TcpStream::connect(fixture.door.address()).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let window = (1_u32 << 28).to_be_bytes();
        let settings = frame(Self::SETTINGS, 0, 0, &[&[0, 4][..], &window].concat());
        let update = frame(Self::WINDOW_UPDATE, 0, 0, &window);
        socket.write_all(&[settings, update].concat()).await.unwrap();
        let mut client = Self { socket, received: Vec::new() };
        client.receive(Self::SETTINGS, 0).await;
        client.socket.write_all(&frame(Self::SETTINGS, 1, 0, &[])).await.unwrap();
        client.receive(Self::WINDOW_UPDATE, 0).await;
        client
    }

    /// Reads up to a frame of this kind with these flags.
    async fn receive(&mut self, kind: u8, flags: u8) {
        loop {
            let mut head = [0; 9];
            self.socket.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            self.received.resize(length, 0);
            self.socket.read_exact(&mut self.received).await.unwrap();
            if head[3] == kind && head[4] & 1 == flags {
                return;
            }
        }
    }

    /// Makes a call with a message in frames of this length, and receives its response.
    async fn call(&mut self, message: &[u8], frame_bytes: usize) {
        let mut head = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ModelInfer"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ] {
            let length = |text: &str| u8::try_from(text.len()).unwrap();
            head.extend([0, length(name)]);
            head.extend(name.as_bytes());
            head.push(length(value));
            head.extend(value.as_bytes());
        }
        let mut bytes = frame(Self::HEADERS, 4, 1, &head);
        for piece in message.chunks(frame_bytes) {
            bytes.extend(frame(Self::DATA, 0, 1, piece));
        }
        bytes.extend(frame(Self::DATA, 1, 1, &[]));
        self.socket.write_all(&bytes).await.unwrap();
        self.receive(Self::HEADERS, 1).await;
        // The server has finished the call.
        self.socket.write_all(&frame(Self::PING, 0, 0, &[7; 8])).await.unwrap();
        self.receive(Self::PING, 1).await;
        self.received = Vec::new();
    }
}

/// The connections have received short frames, which are read ahead, and sent short frames, which
/// are gathered.
async fn idle_connections_take_little() {
    let fixture = Fixture::new();
    let message = framed(&infer_request("inline", Bytes::from(vec![7; 300 * KIB])));
    RawClient::new(&fixture).await.call(&message, 16 * KIB).await;
    let before = resident_bytes();
    let mut clients = Vec::new();
    for _ in 0..400 {
        let mut client = RawClient::new(&fixture).await;
        client.call(&message, 16 * KIB).await;
        clients.push(client);
    }
    let taken = resident_bytes().saturating_sub(before) / clients.len();
    assert!(taken < 90 * KIB, "{taken}");
}
