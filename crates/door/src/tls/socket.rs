//! The socket below TLS.
//!
//! rustls reads 4 KiB at a time. This socket requests more from the system at once and serves the
//! rest from memory. A waiting connection holds no such memory.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The number of bytes per read, equal to four full records.
const READ_BYTES: usize = 64 << 10;

/// A socket that reads ahead.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    /// The bytes that were read ahead. No memory is allocated while the connection waits.
    ahead: Vec<u8>,
    /// The start of the bytes in `ahead` that rustls has not read yet.
    start: usize,
}

impl Socket {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: Vec::new(), start: 0 }
    }

    fn poll_refill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ahead.clear();
        self.start = 0;
        self.ahead.reserve_exact(READ_BYTES);
        // The future keeps no state between polls.
        let polled = pin!(self.stream.read_buf(&mut self.ahead)).poll(context);
        if polled.is_pending() {
            self.ahead = Vec::new();
        }
        polled.map_ok(|_| ())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.start >= self.ahead.len() {
            ready!(self.poll_refill(context))?;
        }
        let rest = self.ahead.get(self.start..).unwrap_or_default();
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..count).unwrap_or_default());
        self.start = self.start.saturating_add(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order_and_a_waiting_connection_has_no_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut socket = Socket::new(listener.accept().await.unwrap().0);
        let sent: Vec<u8> = (0..200_000_u32).map(|place| (place % 251) as u8).collect();
        let send = async {
            client.write_all(&sent).await.unwrap();
        };
        let receive = async {
            let mut received = Vec::new();
            let mut piece = [0; 4096];
            while received.len() < sent.len() {
                let count = socket.read(&mut piece).await.unwrap();
                received.extend_from_slice(&piece[..count]);
            }
            received
        };
        let (received, ()) = tokio::join!(receive, send);
        assert!(received == sent);
        let mut piece = [0; 4096];
        let waits = {
            let mut read = pin!(socket.read(&mut piece));
            let mut context = Context::from_waker(std::task::Waker::noop());
            read.as_mut().poll(&mut context).is_pending()
        };
        assert!(waits && socket.ahead.capacity() == 0);
        drop(client);
        assert_eq!(socket.read(&mut piece).await.unwrap(), 0);
    }
}
