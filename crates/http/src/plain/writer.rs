//! Writes responses.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use galatea_door::{AwaitedClientStep, ClientTimedOut, ConnectionActivity};
use hyper::StatusCode;
use smallvec::SmallVec;

use super::client_stream::Sender;
use crate::http_response::{HttpResponse, reason};

/// The maximum size of a body that is copied after the head: writing one buffer is cheaper than
/// writing several.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// The number of buffers that one system call accepts.
const PARTS_MAX: usize = 64;

/// The number of bytes written without a wait after which the thread serves its other connections.
/// The runtime doesn't count writes that bypass it.
const WRITTEN_IN_A_ROW_MAX: usize = 1 << 20;

/// The part of a response that the system has accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The system has accepted this many bytes.
    Part(usize),
}

/// Writes the responses of a connection.
#[derive(Default)]
pub(super) struct ResponseWriter {
    /// The head, followed by the body if it is short.
    buffer: Vec<u8>,
    date: Date,
}

impl ResponseWriter {
    /// Writes a response, except for the `sent` bytes that the client already has, as far as the
    /// system accepts it immediately.
    pub(super) fn send(
        &mut self,
        stream: Sender<'_>,
        response: &HttpResponse,
        sent: usize,
        closes: bool,
    ) -> io::Result<Sent> {
        let length = response.chunks.iter().map(Bytes::len).fold(0, usize::saturating_add);
        self.buffer.clear();
        self.push_head(response, Some(length), closes);
        if length > COPIED_BYTES_MAX {
            return Ok(Sent::Part(0));
        }
        response.chunks.iter().for_each(|chunk| self.buffer.extend_from_slice(chunk));
        let unsent = unsent(&self.buffer, sent);
        match stream.try_write(&[IoSlice::new(unsent)]) {
            Ok(count) if count == unsent.len() && stream.try_flush()? => Ok(Sent::All),
            Ok(0) => Err(ErrorKind::WriteZero.into()),
            Ok(count) => Ok(Sent::Part(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Sent::Part(0)),
            Err(error) => Err(error),
        }
    }

    /// Writes the remainder after [`Self::send`], which wrote `count` bytes.
    pub(super) async fn send_rest(
        &self,
        stream: Sender<'_>,
        activity: &ConnectionActivity,
        response: &HttpResponse,
        sent: usize,
        count: usize,
    ) -> io::Result<()> {
        let length = response.chunks.iter().map(Bytes::len).fold(0, usize::saturating_add);
        let others = if length > COPIED_BYTES_MAX { &response.chunks[..] } else { &[] };
        write(stream, activity, unsent(&self.buffer, sent.saturating_add(count)), others).await
    }

    /// Returns the head of a response whose body consists of events, except for the `sent` bytes
    /// that the client already has. The events may be gathered after it.
    pub(super) fn events_head(
        &mut self,
        response: &HttpResponse,
        sent: usize,
        closes: bool,
    ) -> &mut Vec<u8> {
        self.buffer.clear();
        self.push_head(response, None, closes);
        self.buffer.drain(..sent.min(self.buffer.len()));
        &mut self.buffer
    }

    /// Writes the head in the same way as hyper, so that a response doesn't depend on which of the
    /// two served it. A body without a known length is sent in chunks.
    fn push_head(&mut self, response: &HttpResponse, length: Option<usize>, closes: bool) {
        let mut digits = itoa::Buffer::new();
        let mut push = |parts: &[&str]| {
            parts.iter().for_each(|part| self.buffer.extend_from_slice(part.as_bytes()));
        };
        if response.code == StatusCode::OK {
            push(&["HTTP/1.1 200 OK\r\n"]);
        } else {
            push(&["HTTP/1.1 ", response.code.as_str(), " ", reason(response.code), "\r\n"]);
        }
        match (response.content_type, response.header_length) {
            (Some(content_type), Some(length)) if response.has_length_in_type => {
                push(&["Content-Type: ", content_type, digits.format(length), "\r\n"]);
            }
            (content_type, length) => {
                if let Some(content_type) = content_type {
                    push(&["Content-Type: ", content_type, "\r\n"]);
                }
                if let Some(length) = length {
                    let length = digits.format(length);
                    push(&["Inference-Header-Content-Length: ", length, "\r\n"]);
                }
            }
        }
        if let Some(coding) = response.content_encoding {
            push(&["Content-Encoding: ", coding, "\r\n"]);
        }
        if let Some(accepted) = response.accept_encoding {
            push(&["Accept-Encoding: ", accepted, "\r\n"]);
        }
        if let Some(report) = response.load_report.as_ref().and_then(|text| text.to_str().ok()) {
            push(&["endpoint-load-metrics: ", report, "\r\n"]);
        }
        for (name, value) in response.headers.iter().flatten() {
            push(&[name, ": ", value.to_str().unwrap_or_default(), "\r\n"]);
        }
        if let Some(seconds) = response.retry_after_secs {
            push(&["Retry-After: ", digits.format(seconds), "\r\n"]);
        }
        if closes {
            push(&["Connection: close\r\n"]);
        }
        match length.filter(|_| response.code != StatusCode::NOT_MODIFIED) {
            Some(length) => push(&["Content-Length: ", digits.format(length), "\r\nDate: "]),
            None if length.is_some() => push(&["Date: "]),
            None => push(&["Transfer-Encoding: chunked\r\nDate: "]),
        }
        push(&[self.date.text(SystemTime::now()), "\r\n\r\n"]);
    }
}

/// The date of the last response, cached because many responses are created within a second.
#[derive(Default)]
struct Date {
    second: Option<u64>,
    text: String,
}

impl Date {
    /// Returns the time in HTTP format.
    fn text(&mut self, now: SystemTime) -> &str {
        let second = now.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
        if self.text.is_empty() || self.second != second {
            self.text = httpdate::fmt_http_date(now);
            self.second = second;
        }
        &self.text
    }
}

/// Writes the interim response to a client that waits for it before it sends a body.
pub(super) async fn write_continue(
    stream: Sender<'_>,
    activity: &ConnectionActivity,
) -> io::Result<()> {
    write(stream, activity, b"HTTP/1.1 100 Continue\r\n\r\n", &[]).await
}

fn unsent(bytes: &[u8], sent: usize) -> &[u8] {
    bytes.get(sent..).unwrap_or_default()
}

/// Writes `first`, followed by `others`, without copying.
pub(super) async fn write(
    stream: Sender<'_>,
    activity: &ConnectionActivity,
    first: &[u8],
    others: &[Bytes],
) -> io::Result<()> {
    let mut parts: SmallVec<[IoSlice<'_>; 4]> = SmallVec::new();
    parts.push(IoSlice::new(first));
    parts.extend(others.iter().map(|part| IoSlice::new(part)));
    let mut parts = &mut parts[..];
    IoSlice::advance_slices(&mut parts, 0);
    let mut in_a_row: usize = 0;
    while !parts.is_empty() {
        if in_a_row >= WRITTEN_IN_A_ROW_MAX {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
        match stream.try_write(parts.get(..PARTS_MAX).unwrap_or(parts)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => {
                in_a_row = in_a_row.saturating_add(count);
                IoSlice::advance_slices(&mut parts, count);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                in_a_row = 0;
                room(stream, activity).await?;
            }
            Err(error) => return Err(error),
        }
    }
    if stream.try_flush()? { Ok(()) } else { room(stream, activity).await }
}

/// Waits until the socket accepts more data.
async fn room(stream: Sender<'_>, activity: &ConnectionActivity) -> io::Result<()> {
    let room = poll_fn(|context| stream.poll_room(context));
    let room = activity.wait_for_client(AwaitedClientStep::Response, room).await;
    room.map_err(|ClientTimedOut| io::Error::from(ErrorKind::TimedOut))?
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::net::TcpListener;

    use super::*;

    /// Polls a write once and returns the number of bytes that arrived.
    async fn written_in_a_row(parts: &[Bytes]) -> usize {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.writable().await.unwrap();
        {
            let activity = ConnectionActivity::default();
            let mut writing = pin!(write(Sender::Tcp(&stream), &activity, b"", parts));
            let polled = poll_fn(|context| Poll::Ready(writing.as_mut().poll(context)));
            assert!(polled.await.is_pending());
        }
        drop(stream);
        let mut buffer = vec![0; 1 << 20];
        let mut arrived: usize = 0;
        loop {
            match client.read(&mut buffer) {
                Ok(0) => return arrived,
                Ok(count) => arrived = arrived.saturating_add(count),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    #[test]
    fn long_writes_yield_to_other_connections() {
        // The part is so short that the system accepts only a few of them at once.
        let part = Bytes::from_static(&[b'x'; 1 << 10]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let written = runtime.block_on(written_in_a_row(&vec![part; 16 << 10]));
        assert!(written > 0);
        assert!(written <= WRITTEN_IN_A_ROW_MAX + (PARTS_MAX << 10), "{written} bytes");
    }
}
