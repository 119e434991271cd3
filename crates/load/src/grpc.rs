//! gRPC over HTTP/2.

use bytes::{BufMut, Bytes, BytesMut};
use galatea_protocol::inference::{ModelInferRequest, ModelInferResponse, model_infer_request};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::hostile;
use crate::options::Options;
use crate::report::Served;
use crate::serial;

/// The code of RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: &str = "8";

/// The bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A connection, which begins with its first call.
pub(crate) struct Client {
    stream: Option<TcpStream>,
    calls: Option<SendRequest<Bytes>>,
}

/// The result of a call.
struct Reply {
    code: String,
    message: Bytes,
}

impl serial::Client for Client {
    async fn connect(options: &Options) -> Result<Self, String> {
        let stream = TcpStream::connect(options.address).await;
        let stream = stream.map_err(|error| error.kind().to_string())?;
        let _ = stream.set_nodelay(true);
        Ok(Self { stream: Some(stream), calls: None })
    }

    async fn infer(&mut self, options: &Options, tensor: Vec<u8>) -> Result<Served, String> {
        let reply = self.call(message(options, &tensor)).await?;
        match reply.code.as_str() {
            "0" => {}
            RESOURCE_EXHAUSTED if options.expects_refusals => return Ok(Served::Refused),
            code => return Err(format!("code {code}")),
        }
        let body = reply.message.get(PREFIX_BYTES..).unwrap_or_default();
        let response = ModelInferResponse::decode(body).map_err(|error| error.to_string())?;
        match response.raw_output_contents.as_slice() {
            [output] if output[..] == tensor[..] => Ok(Served::Well),
            _ => Err(String::from("another request's response")),
        }
    }

    async fn infer_partly(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
        thousandths: u64,
    ) -> Result<(), String> {
        let message = message(options, &tensor);
        let length = message.len() as u64 * thousandths / 1000;
        let part = message.slice(..usize::try_from(length).unwrap_or(message.len()));
        self.begin(part, false).await.map(drop)
    }

    async fn attack(&mut self, _: &Options, number: u64) -> (&'static str, String) {
        // Half of the attacks are on connections that have not begun.
        if self.stream.is_some() && number.is_multiple_of(2) {
            let attack = hostile::http2(number / 2);
            return (attack.kind, self.attack_connection(&attack.bytes).await);
        }
        let attack = hostile::message(number / 2);
        let result = self.call(Bytes::from(attack.bytes)).await;
        (attack.kind, result.map_or_else(|reason| reason, |reply| format!("code {}", reply.code)))
    }
}

impl Client {
    /// Sends a message, and awaits the end of the call.
    async fn call(&mut self, message: Bytes) -> Result<Reply, String> {
        let response = self.begin(message, true).await?;
        let response = response.await.map_err(|error| text(&error))?;
        let code = |headers: &HeaderMap| {
            let code = headers.get("grpc-status").and_then(|code| code.to_str().ok());
            code.map(String::from)
        };
        let first = code(response.headers());
        let mut body = response.into_body();
        let mut message = BytesMut::new();
        while let Some(part) = body.data().await {
            let part = part.map_err(|error| text(&error))?;
            let _ = body.flow_control().release_capacity(part.len());
            message.put(part);
        }
        let trailers = body.trailers().await.map_err(|error| text(&error))?;
        let last = trailers.as_ref().and_then(code);
        let code = last.or(first).ok_or_else(|| String::from("no status"))?;
        Ok(Reply { code, message: message.freeze() })
    }

    async fn begin(
        &mut self,
        mut data: Bytes,
        is_whole: bool,
    ) -> Result<h2::client::ResponseFuture, String> {
        let calls = self.calls().await?;
        let mut calls = calls.ready().await.map_err(|error| text(&error))?;
        let request = Request::post("http://a/inference.GRPCInferenceService/ModelInfer")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(|error| error.to_string())?;
        let (response, mut body) =
            calls.send_request(request, false).map_err(|error| text(&error))?;
        self.calls = Some(calls);
        while !data.is_empty() {
            body.reserve_capacity(data.len());
            let granted = std::future::poll_fn(|context| body.poll_capacity(context)).await;
            let Some(Ok(granted)) = granted else { return Ok(response) };
            let part = data.split_to(granted.min(data.len()));
            let is_end = is_whole && data.is_empty();
            if body.send_data(part, is_end).is_err() {
                return Ok(response);
            }
        }
        Ok(response)
    }

    async fn calls(&mut self) -> Result<SendRequest<Bytes>, String> {
        if let Some(calls) = &self.calls {
            return Ok(calls.clone());
        }
        let stream = self.stream.take().ok_or_else(|| String::from("closed"))?;
        let (calls, connection) =
            h2::client::handshake(stream).await.map_err(|error| text(&error))?;
        // It ends when all handles of it are dropped.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        self.calls = Some(calls.clone());
        Ok(calls)
    }

    async fn attack_connection(&mut self, bytes: &[u8]) -> String {
        let Some(mut stream) = self.stream.take() else { return String::from("closed") };
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer).await {
            Ok(_) => String::from("closed"),
            Err(error) => error.kind().to_string(),
        }
    }
}

fn message(options: &Options, tensor: &[u8]) -> Bytes {
    let input = model_infer_request::InferInputTensor {
        name: options.input.clone(),
        datatype: String::from("INT32"),
        shape: vec![i64::try_from(options.elements).unwrap_or(i64::MAX)],
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: options.model.clone(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::copy_from_slice(tensor)],
        ..Default::default()
    };
    let length = request.encoded_len();
    let mut message = BytesMut::with_capacity(PREFIX_BYTES + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.put(request.encode_to_vec().as_slice());
    message.freeze()
}

fn text(error: &h2::Error) -> String {
    error.to_string()
}
