//! Writes to a connection's socket, gathering small writes.
//!
//! `h2` flushes after nearly every frame that carries data. Each response takes two system calls:
//! one for the headers and data, and one for the trailers. Here its flushes do nothing; instead,
//! the connection's task flushes when it has written everything.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use galatea_door::{ConnectionStream, StreamWriteHalf};
use galatea_stdx::Lock;
use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{FrameCounts, ReceivedFrames, SentFrames};
use super::read_ahead::{ReadAhead, ReadQuota};
use super::staging::{STAGING_BYTES, StagingBuffer, StagingPool};

/// The number of gathered bytes at which they are written without waiting for the flush.
const GATHER_BYTES_MAX: usize = STAGING_BYTES;

/// The size at which writes are no longer gathered: copying them would cost more than the system
/// call that it saves. Many clients only accept frames of up to 16 KiB, several of which are
/// gathered.
const COPY_BYTES_MAX: usize = 32 * 1024;

/// The half of the socket held by `h2`.
pub(crate) struct GatheringSocket {
    input: ReadAhead,
    received: ReceivedFrames,
    output: Arc<Lock<GatheredOutput>>,
}

/// The half of the socket held by the connection's task.
#[derive(Clone)]
pub(crate) struct Flusher {
    output: Arc<Lock<GatheredOutput>>,
    quota: ReadQuota,
    frames: FrameCounts,
}

struct GatheredOutput {
    write: StreamWriteHalf,
    gathered: StagingBuffer,
    sent: SentFrames,
    /// True if the flushes of `h2` do nothing.
    is_gathering: bool,
}

/// Splits a stream.
pub(crate) fn gather(
    stream: ConnectionStream,
    pool: &Arc<StagingPool>,
) -> (GatheringSocket, Flusher) {
    let (read, write) = stream.into_split();
    let frames = FrameCounts::default();
    let gathered = StagingBuffer::new(pool.clone());
    let sent = SentFrames::new(frames.clone());
    let output = GatheredOutput { write, gathered, sent, is_gathering: false };
    let output = Arc::new(Lock::new(output));
    let quota = ReadQuota::unlimited();
    let input = ReadAhead::new(read, quota.clone(), pool.clone());
    let received = ReceivedFrames::new(frames.clone());
    (GatheringSocket { input, received, output: output.clone() }, Flusher { output, quota, frames })
}

impl Flusher {
    /// Takes over flushing from `h2`.
    pub(crate) fn take_over(&self) {
        self.output.lock("take over flushing").is_gathering = true;
    }

    /// Sets the quota of bytes that may be read from now on.
    pub(crate) fn set_read_quota(&self, bytes: usize) {
        self.quota.set(bytes);
    }

    /// The counts of frames.
    pub(crate) const fn frames(&self) -> &FrameCounts {
        &self.frames
    }

    /// Appends a final frame to the output of `h2`, to report to the client why the connection
    /// ends. Nothing is appended if `h2` is in the middle of a frame because the client reads too
    /// slowly.
    pub(crate) fn push_goaway(&self, reason: Reason, text: &[u8]) {
        let mut output = self.output.lock("end a connection");
        if let Some(frame) = output.sent.goaway(reason, text)
            && output.has_room(frame.len())
        {
            output.gathered.push(&frame);
        }
    }

    /// Writes all gathered bytes.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.lock("flush").poll_write_out(cx)
    }
}

impl GatheredOutput {
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let written = ready!(Pin::new(&mut self.write).poll_write(cx, self.gathered.bytes()))?;
            self.advance(written)?;
        }
        self.gathered.release_if_empty();
        // TLS may hold back encrypted bytes; a socket doesn't.
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn advance(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.gathered.advance(written);
        Ok(())
    }

    /// Returns true if `length` more bytes are gathered instead of written.
    fn has_room(&self, length: usize) -> bool {
        length < COPY_BYTES_MAX && self.gathered.len().saturating_add(length) <= GATHER_BYTES_MAX
    }

    fn poll_write_or_gather(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        if !self.has_room(length) {
            ready!(self.poll_write_out(cx))?;
        }
        let written = if self.has_room(length) {
            for slice in slices {
                self.gathered.push(slice);
            }
            length
        } else {
            ready!(Pin::new(&mut self.write).poll_write_vectored(cx, slices))?
        };
        self.scan(slices, written);
        Poll::Ready(Ok(written))
    }

    /// Scans the first `length` bytes for frames.
    fn scan(&mut self, slices: &[IoSlice<'_>], mut length: usize) {
        for slice in slices {
            let part = slice.len().min(length);
            self.sent.scan(slice.get(..part).unwrap_or_default());
            length = length.saturating_sub(part);
        }
    }
}

impl AsyncRead for GatheringSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let before = buffer.filled().len();
        ready!(socket.input.poll_read(cx, buffer))?;
        socket.received.scan(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GatheringSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.output.lock("write").poll_write_or_gather(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.output.lock("write").poll_write_or_gather(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.output.lock("flush");
        if output.is_gathering { Poll::Ready(Ok(())) } else { output.poll_write_out(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.output.lock("shut down");
        ready!(output.poll_write_out(cx))?;
        Pin::new(&mut output.write).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (GatheringSocket, Flusher, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, flusher) = gather(listener.accept().await.unwrap().0.into(), &Arc::default());
        (socket, flusher, client)
    }

    fn gathered(flusher: &Flusher) -> usize {
        flusher.output.lock("check").gathered.len()
    }

    #[tokio::test]
    async fn flushes_are_left_to_the_task_and_keep_the_order() {
        let (mut socket, flusher, mut client) = pair().await;
        socket.write_all(b"early ").await.unwrap();
        socket.flush().await.unwrap();
        assert_eq!(gathered(&flusher), 0);
        flusher.take_over();
        socket.write_all(b"one ").await.unwrap();
        socket.flush().await.unwrap();
        socket.write_all(b"two ").await.unwrap();
        assert_eq!(gathered(&flusher), 8);
        // This write is too large to be gathered and is written after the gathered bytes.
        let large = vec![7; 3 * COPY_BYTES_MAX];
        let receive = async {
            let mut received = vec![0; 14 + large.len() + 5];
            client.read_exact(&mut received).await.unwrap();
            received
        };
        let send = async {
            socket.write_all(&large).await.unwrap();
            socket.write_all(b"three").await.unwrap();
            std::future::poll_fn(|cx| flusher.poll_flush(cx)).await.unwrap();
        };
        let (received, ()) = tokio::join!(receive, send);
        assert_eq!(received, [b"early one two ", large.as_slice(), b"three"].concat());
        assert!(!flusher.output.lock("check").gathered.has_memory());
    }

    #[tokio::test]
    async fn short_frames_are_gathered() {
        let (mut socket, flusher, _client) = pair().await;
        flusher.take_over();
        let frame = [7; 9 + 16 * 1024];
        for count in 1..=3 {
            socket.write_all(&frame).await.unwrap();
            assert_eq!(gathered(&flusher), count * frame.len());
        }
        socket.write_all(&frame).await.unwrap();
        assert_eq!(gathered(&flusher), frame.len());
    }

    #[tokio::test]
    async fn gathering_stops_when_the_client_does_not_read() {
        let (mut socket, flusher, _client) = pair().await;
        flusher.take_over();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let piece = [7; 1000];
        // The socket's buffers hold some megabytes; later writes wait.
        let writes = (0..1_000_000)
            .take_while(|_| Pin::new(&mut socket).poll_write(&mut cx, &piece).is_ready())
            .count();
        assert!(writes < 1_000_000);
        assert!(gathered(&flusher) <= GATHER_BYTES_MAX);
    }
}
