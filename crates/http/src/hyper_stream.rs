//! The socket of a connection that hyper serves.
//!
//! hyper has its own timers, but they count a connection's idle time towards the next head. This
//! stream therefore reports the next step that its client must take, as `plain` does. The passing
//! bytes show when a head begins, and [`Exchange`] reports when requests begin and end.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use galatea_door::{
    AwaitedClientStep, ClientTimedOut, ConnectionActivity, ConnectionStream, UptimeSeconds,
};
use galatea_stdx::Lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The response to a head that takes too long.
const OVERDUE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\n\
    Content-Type: application/json\r\n\
    Connection: close\r\n\
    Content-Length: 58\r\n\r\n\
    {\"error\":\"The head of the request did not arrive in time\"}";

/// The progress of a request.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    stage: AtomicU8,
    /// The received bytes of the head and possibly of the body, if the head is to be kept.
    head: Option<Lock<Vec<u8>>>,
}

/// The maximum number of head bytes that are kept, equal to hyper's own limit.
const HEAD_BYTES_MAX: usize = 64 << 10;

const BETWEEN: u8 = 0;
const BEGUN: u8 = 1;
const RESPONDED: u8 = 2;

impl Exchange {
    /// Creates an exchange that keeps heads as they are received, if they are wanted.
    pub(crate) fn new(wants_heads: bool) -> Self {
        let head = wants_heads.then(Lock::default);
        Self { stage: AtomicU8::new(BETWEEN), head }
    }

    /// Notes that the head was read. Returns the bytes received since the last request.
    pub(crate) fn begin(&self) -> Vec<u8> {
        self.stage.store(BEGUN, Ordering::Relaxed);
        let head = self.head.as_ref();
        head.map(|head| std::mem::take(&mut *head.lock("take a head"))).unwrap_or_default()
    }

    /// Notes that bytes of a head were received.
    fn received(&self, bytes: &[u8]) {
        if let Some(head) = &self.head {
            let mut head = head.lock("keep a head");
            let room = HEAD_BYTES_MAX.saturating_sub(head.len());
            head.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    /// Notes that hyper has the whole response, which it may still have to write.
    pub(crate) fn end(&self) {
        self.stage.store(RESPONDED, Ordering::Relaxed);
    }

    fn is_between(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == BETWEEN
    }

    /// Notes that all output was written.
    fn flushed(&self) -> bool {
        let (ordering, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.stage.compare_exchange(RESPONDED, BETWEEN, ordering, failure).is_ok()
    }
}

/// A stream that first returns bytes that were already read from it.
pub(crate) struct HyperStream {
    read: Bytes,
    stream: ConnectionStream,
    activity: Arc<ConnectionActivity>,
    exchange: Arc<Exchange>,
    /// The time at which the current head began.
    head_since: Option<UptimeSeconds>,
    /// The step that this stream waits for, as reported to the activity.
    waiting: Option<AwaitedClientStep>,
}

impl HyperStream {
    pub(crate) fn new(
        read: Bytes,
        stream: ConnectionStream,
        activity: Arc<ConnectionActivity>,
        exchange: Arc<Exchange>,
    ) -> Self {
        Self { read, stream, activity, exchange, head_since: None, waiting: None }
    }

    fn poll_read_stream(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.read.len().min(buffer.remaining());
        buffer.put_slice(self.read.get(..length).unwrap_or_default());
        self.read.advance(length);
        if self.read.is_empty() {
            self.read = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the client to take this step. The error ends the connection because the step took
    /// too long.
    fn wait<T>(
        &mut self,
        context: &mut Context<'_>,
        waiting: AwaitedClientStep,
        since: UptimeSeconds,
    ) -> Poll<io::Result<T>> {
        if self.waiting.replace(waiting) != Some(waiting) {
            self.activity.begin_wait(waiting, since);
        }
        if !self.activity.has_expired() {
            return Poll::Pending;
        }
        if waiting == AwaitedClientStep::Head {
            // If the socket is full, the client isn't reading.
            let _ = Pin::new(&mut self.stream).poll_write(context, OVERDUE);
            let _ = Pin::new(&mut self.stream).poll_flush(context);
        }
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Notes that the client has taken the awaited step, if `done` contains that step.
    fn resume(&mut self, done: &[AwaitedClientStep]) -> io::Result<()> {
        let is_done = self.waiting.is_some_and(|waiting| done.contains(&waiting));
        if is_done {
            self.waiting = None;
            self.activity
                .end_wait()
                .map_err(|ClientTimedOut| io::Error::from(ErrorKind::ConnectionAborted))?;
        }
        Ok(())
    }

    /// Waits for a client that isn't reading its response.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.wait(context, AwaitedClientStep::Response, self.activity.now());
        }
        self.resume(&[AwaitedClientStep::Response])?;
        written
    }
}

impl AsyncRead for HyperStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.poll_read_stream(context, buffer);
        if !self.exchange.is_between() {
            // The body reports what it waits for.
            self.head_since = None;
            return read;
        }
        if read.is_pending() {
            let now = self.activity.now();
            return match self.head_since {
                Some(since) => self.wait(context, AwaitedClientStep::Head, since),
                None => self.wait(context, AwaitedClientStep::Idle, now),
            };
        }
        self.resume(&[AwaitedClientStep::Idle, AwaitedClientStep::Head])?;
        if let Some(received @ [_, ..]) = buffer.filled().get(before..) {
            self.exchange.received(received);
            let now = self.activity.now();
            self.head_since.get_or_insert(now);
        }
        read
    }
}

impl AsyncWrite for HyperStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.written(context, flushed))?;
        if self.exchange.flushed() {
            self.head_since = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_overdue_response_is_right() {
        let text = std::str::from_utf8(OVERDUE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{}", body.len());
    }
}
