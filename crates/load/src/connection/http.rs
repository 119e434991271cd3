//! HTTP/1.1, implemented here because libraries can't send half a request.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};

use super::reason;

/// A connection.
#[derive(Debug)]
pub struct HttpConnection {
    stream: TcpStream,
    read: BytesMut,
}

/// A response.
#[derive(Clone, Debug)]
pub struct HttpReply {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl HttpConnection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection fails.
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| reason(&error))?;
        let _ = stream.set_nodelay(true);
        Ok(Self { stream, read: BytesMut::new() })
    }

    /// Sends bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes can't be sent.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).await.map_err(|error| reason(&error))
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    ///
    /// Returns an error if no response arrives.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<HttpReply, String> {
        let sent = self.send(request).await;
        // A server that refuses a body may close the connection before the body has been sent.
        match (sent, self.read_reply().await) {
            (_, Ok(reply)) => Ok(reply),
            (Err(error), Err(_)) | (Ok(()), Err(error)) => Err(error),
        }
    }

    /// Reads the next response.
    ///
    /// # Errors
    ///
    /// Returns an error if no response arrives.
    pub async fn read_reply(&mut self) -> Result<HttpReply, String> {
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
    fn parse(&mut self) -> Result<Option<HttpReply>, String> {
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
        Ok(Some(HttpReply { status, body: self.read.split_to(length).freeze() }))
    }
}

fn is_length(name: &str) -> bool {
    name.eq_ignore_ascii_case("content-length")
}
