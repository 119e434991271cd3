//! gRPC over HTTP/2.

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use tokio::net::{TcpStream, ToSocketAddrs};

use super::reason;
use crate::sample::PREFIX_BYTES;

/// A connection, established by its first call. Must be used within a `LocalSet`.
#[derive(Debug)]
pub struct GrpcConnection {
    stream: Option<TcpStream>,
    calls: Option<SendRequest<Bytes>>,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct GrpcReply {
    /// The status code, as a number; 0 means success.
    pub code: String,
    /// The error message as sent.
    pub text: String,
    /// The response message, without its prefix.
    pub message: Bytes,
}

impl GrpcConnection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection fails.
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| reason(&error))?;
        let _ = stream.set_nodelay(true);
        Ok(Self { stream: Some(stream), calls: None })
    }

    /// Takes the bare connection, if no call has been made.
    pub const fn take_tcp_stream(&mut self) -> Option<TcpStream> {
        self.stream.take()
    }

    /// Returns true if no call has been made.
    #[must_use]
    pub const fn is_unused(&self) -> bool {
        self.stream.is_some()
    }

    /// Calls a method with a prefixed message and waits for the end of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the call ends without a status.
    pub async fn call(&mut self, method: &str, message: Bytes) -> Result<GrpcReply, String> {
        let response = self.begin_call(method, message, true).await?;
        let response = response.await.map_err(|error| text(&error))?;
        let header = |headers: &HeaderMap, name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.map(String::from)
        };
        let first = header(response.headers(), "grpc-status");
        let first_text = header(response.headers(), "grpc-message");
        let mut body = response.into_body();
        let mut message = BytesMut::new();
        while let Some(part) = body.data().await {
            let part = part.map_err(|error| text(&error))?;
            let _ = body.flow_control().release_capacity(part.len());
            message.put(part);
        }
        let trailers = body.trailers().await.map_err(|error| text(&error))?.unwrap_or_default();
        let code = header(&trailers, "grpc-status").or(first);
        let code = code.ok_or_else(|| String::from("no status"))?;
        let text = header(&trailers, "grpc-message").or(first_text).unwrap_or_default();
        let prefix = PREFIX_BYTES.min(message.len());
        Ok(GrpcReply { code, text, message: message.freeze().slice(prefix..) })
    }

    /// Begins a call and sends part of its data.
    ///
    /// # Errors
    ///
    /// Returns an error if the call can't begin.
    pub async fn begin_call(
        &mut self,
        method: &str,
        mut data: Bytes,
        is_whole: bool,
    ) -> Result<ResponseFuture, String> {
        let calls = self.calls().await?;
        let mut calls = calls.ready().await.map_err(|error| text(&error))?;
        let request = Request::post(format!("http://a/inference.GRPCInferenceService/{method}"))
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
        // The task ends when all handles to the connection are dropped.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        self.calls = Some(calls.clone());
        Ok(calls)
    }
}

fn text(error: &h2::Error) -> String {
    error.to_string()
}
