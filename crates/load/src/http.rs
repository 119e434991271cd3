//! HTTP/1.1, written by hand: libraries don't send half a request.

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::hostile;
use crate::options::Options;
use crate::report::Served;
use crate::serial;

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    read: BytesMut,
}

/// A response.
struct Reply {
    status: u16,
    body: Vec<u8>,
}

impl serial::Client for Client {
    async fn connect(options: &Options) -> Result<Self, String> {
        let stream = TcpStream::connect(options.address).await.map_err(|error| reason(&error))?;
        let _ = stream.set_nodelay(true);
        Ok(Self { stream, read: BytesMut::new() })
    }

    async fn infer(&mut self, options: &Options, tensor: Vec<u8>) -> Result<Served, String> {
        let sent = self.stream.write_all(&request(options, &tensor)).await;
        // A server that refuses a body may close before it has been sent whole.
        let reply = match (sent, self.reply().await) {
            (_, Ok(reply)) => reply,
            (Err(error), Err(_)) => return Err(reason(&error)),
            (Ok(()), Err(error)) => return Err(error),
        };
        match reply.status {
            200 if reply.body.ends_with(&tensor) => Ok(Served::Well),
            200 => Err(String::from("another request's response")),
            503 if options.expects_refusals => Ok(Served::Refused),
            status => Err(format!("{status} {}", String::from_utf8_lossy(&reply.body))),
        }
    }

    async fn infer_partly(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
        thousandths: u64,
    ) -> Result<(), String> {
        let request = request(options, &tensor);
        let length = request.len() as u64 * thousandths / 1000;
        let part = &request[..usize::try_from(length).unwrap_or(request.len())];
        self.stream.write_all(part).await.map_err(|error| reason(&error))
    }

    async fn attack(&mut self, options: &Options, number: u64) -> (&'static str, String) {
        let attack = hostile::http(&options.model, number);
        let _ = self.stream.write_all(&attack.bytes).await;
        let result = match self.reply().await {
            Ok(reply) => reply.status.to_string(),
            Err(reason) => reason,
        };
        (attack.kind, result)
    }
}

impl Client {
    async fn reply(&mut self) -> Result<Reply, String> {
        loop {
            if let Some(reply) = self.parse()? {
                return Ok(reply);
            }
            let read = self.stream.read_buf(&mut self.read).await;
            if read.map_err(|error| reason(&error))? == 0 {
                return Err(String::from("closed"));
            }
        }
    }

    /// Takes a response with a Content-Length out of the buffer.
    fn parse(&mut self) -> Result<Option<Reply>, String> {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&self.read).map_err(|error| format!("not HTTP: {error}"))?;
        let httparse::Status::Complete(head_length) = parsed else { return Ok(None) };
        let status = head.code.unwrap_or_default();
        let length = head.headers.iter().find(|header| is_length(header.name));
        let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
        let length: usize = length.unwrap_or(0);
        if self.read.len() < head_length + length {
            return Ok(None);
        }
        self.read.advance(head_length);
        Ok(Some(Reply { status, body: self.read.split_to(length).to_vec() }))
    }
}

fn is_length(name: &str) -> bool {
    name.eq_ignore_ascii_case("content-length")
}

fn request(options: &Options, tensor: &[u8]) -> Vec<u8> {
    let json = format!(
        "{{\"inputs\":[{{\"name\":\"{}\",\"datatype\":\"INT32\",\"shape\":[{}],\
         \"parameters\":{{\"binary_data_size\":{}}}}}],\
         \"parameters\":{{\"binary_data_output\":true}}}}",
        options.input,
        options.elements,
        tensor.len()
    );
    let mut request = format!(
        "POST /v2/models/{}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n{json}",
        options.model,
        json.len() + tensor.len(),
        json.len(),
    )
    .into_bytes();
    request.extend_from_slice(tensor);
    request
}

fn reason(error: &std::io::Error) -> String {
    error.kind().to_string()
}
