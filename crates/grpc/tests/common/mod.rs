//! A door with services that the tests control, and a client for it.

#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

mod stream;

use std::net::TcpListener;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use galatea_fakes::{FakeServer, HeldRequest};
use galatea_grpc::{GrpcOptions, RunningGrpcServer, start};
use galatea_infer::Code;
use galatea_protocol::inference::model_infer_request::InferInputTensor;
use galatea_protocol::inference::{ModelInferRequest, ModelInferResponse};
use galatea_stdx::testing::wait_in_task;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, StatusCode};
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::sync::oneshot;

/// An open door with two workers, each on a dedicated thread.
pub(crate) struct Fixture {
    pub(crate) door: RunningGrpcServer,
    pub(crate) fake: Arc<FakeServer>,
    pub(crate) held: mpsc::UnboundedReceiver<HeldRequest>,
    _ends: Vec<oneshot::Sender<()>>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(GrpcOptions::default())
    }

    pub(crate) fn with(mut options: GrpcOptions) -> Self {
        // Tests use pings to find out that the server has received what they sent.
        options.keepalive.ping_strikes_max = 0;
        let (held_sender, held) = mpsc::unbounded_channel();
        let (mut workers, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (end, ended) = oneshot::channel::<()>();
            workers.push(runtime.handle().clone());
            ends.push(end);
            std::thread::spawn(move || runtime.block_on(ended));
        }
        let hold = move |request| held_sender.send(request).unwrap();
        let fake = Arc::new(FakeServer::with_hold(hold));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = start(&workers, listener, fake.clone(), fake.clone(), options).unwrap();
        Self { door, fake, held, _ends: ends }
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(1 << 20).await
    }

    /// Returns a client with a window of `call_window_bytes` for each call and a large window for
    /// all calls together.
    pub(crate) async fn client_with(&self, call_window_bytes: u32) -> Client {
        let stream = TcpStream::connect(self.door.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (send, mut connection) = h2::client::Builder::new()
            .initial_window_size(call_window_bytes)
            .initial_connection_window_size(1 << 30)
            // Any number of small responses may wait here.
            .data_frame_budget(1 << 30)
            .handshake(stream)
            .await
            .unwrap();
        let ping = tokio::sync::Mutex::new(connection.ping_pong().unwrap());
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Client { send, task, ping }
    }

    /// Waits until the unwritten responses use at least `bytes`. Returns the number of bytes that
    /// they use.
    pub(crate) async fn unwritten_at_least(&self, bytes: usize) -> usize {
        let mut unwritten = 0;
        let is_reached = || {
            unwritten = self.door.unwritten_bytes();
            unwritten >= bytes
        };
        wait_in_task("enough responses are unwritten", is_reached).await;
        unwritten
    }

    /// Waits until the unwritten responses use at most `bytes`.
    pub(crate) async fn unwritten_at_most(&self, bytes: usize) {
        wait_in_task("responses are written", || self.door.unwritten_bytes() <= bytes).await;
    }
}

/// A connection to the door.
pub(crate) struct Client {
    pub(crate) send: SendRequest<Bytes>,
    pub(crate) task: tokio::task::JoinHandle<()>,
    ping: tokio::sync::Mutex<h2::PingPong>,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) http: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) data: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl CallResult {
    /// Returns the code and message of the status, from the headers or from the trailers.
    pub(crate) fn status(&self) -> (u32, String) {
        let get = |name| self.trailers.get(name).or(self.headers.get(name));
        let text = |name| get(name).map_or("", |value| value.to_str().unwrap());
        (text("grpc-status").parse().unwrap(), text("grpc-message").to_owned())
    }

    /// Returns the message of a successful call.
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.status(), (0, String::new()));
        assert_eq!(self.data[0], 0);
        let length = u32::from_be_bytes(self.data[1..5].try_into().unwrap()) as usize;
        assert_eq!(length, self.data.len() - 5);
        M::decode(&self.data[5..]).unwrap()
    }

    pub(crate) fn assert_failed(&self, code: Code, message: &str) {
        assert_eq!(self.status(), (u32::from(number(code)), message.to_owned()));
        assert!(self.data.is_empty());
    }
}

fn number(code: Code) -> u8 {
    galatea_codec_grpc::grpc_code(code).number()
}

pub(crate) fn framed(message: &impl Message) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.encoded_len().try_into().unwrap());
    message.encode(&mut body).unwrap();
    body.freeze()
}

/// Returns a request to `model` with one raw tensor.
pub(crate) fn infer_request(model: &str, data: Bytes) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.into(),
        id: "7".into(),
        inputs: vec![InferInputTensor {
            name: "T".into(),
            datatype: "UINT8".into(),
            shape: vec![data.len().try_into().unwrap()],
            ..Default::default()
        }],
        raw_input_contents: vec![data],
        ..Default::default()
    }
}

pub(crate) fn request(path: &str) -> http::request::Builder {
    Request::builder()
        .method(Method::POST)
        .uri(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

pub(crate) fn inference(method: &str) -> String {
    format!("/inference.GRPCInferenceService/{method}")
}

pub(crate) fn infer_head() -> http::request::Builder {
    request(&inference("ModelInfer"))
}

impl Client {
    /// Sends a call whose body consists of these pieces.
    pub(crate) async fn begin(
        &self,
        head: http::request::Builder,
        pieces: Vec<Bytes>,
    ) -> h2::client::ResponseFuture {
        let mut send = self.send.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(head.body(()).unwrap(), false).unwrap();
        let last = pieces.len().saturating_sub(1);
        for (index, piece) in pieces.into_iter().enumerate() {
            if stream.send_data(piece, index == last).is_err() {
                break; // the response has arrived already
            }
        }
        response
    }

    pub(crate) async fn call(&self, head: http::request::Builder, body: Bytes) -> CallResult {
        let response = self.begin(head, vec![body]).await;
        finish(response).await.unwrap()
    }

    pub(crate) async fn control(&self, method: &str, message: &impl Message) -> CallResult {
        self.call(request(&inference(method)), framed(message)).await
    }

    pub(crate) async fn infer(&self, model: &str, data: Bytes) -> CallResult {
        self.call(infer_head(), framed(&infer_request(model, data))).await
    }

    pub(crate) async fn check_echo(&self, model: &str, data: Bytes) {
        let result = self.infer(model, data.clone()).await;
        let response: ModelInferResponse = result.message();
        assert_eq!(result.http, StatusCode::OK);
        assert_eq!(result.headers["content-type"], "application/grpc");
        assert_eq!((response.model_name.as_str(), response.id.as_str()), (model, "7"));
        assert!(response.raw_output_contents == [data], "other data came back");
    }
}

impl Client {
    /// Waits until the door has processed all sent data: each ping response marks the end of a
    /// round.
    pub(crate) async fn settle(&self) {
        let mut ping = self.ping.lock().await;
        for _ in 0..30 {
            ping.ping(h2::Ping::opaque()).await.unwrap();
        }
    }
}

pub(crate) async fn finish(response: h2::client::ResponseFuture) -> Result<CallResult, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let mut data = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        data.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    Ok(CallResult { http: head.status, headers: head.headers, data: data.freeze(), trailers })
}
