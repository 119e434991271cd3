//! A connection's socket, with what is to be written gathered.
//!
//! `h2` flushes after nearly every frame that carries data: headers and data
//! in one system call, trailers in the next, for each answer. Here its
//! flushes do nothing; its task flushes once it has written all it has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use crate::input::{Allowance, Input};
use crate::staged::{STAGED_BYTES_MAX, Spares, Staged};

/// Gathered bytes beyond this are written without waiting for the flush.
const GATHER_BYTES_MAX: usize = STAGED_BYTES_MAX;

/// A single write from this size on goes to the socket from where it lies:
/// copying it would cost more than the system call it saves. Many clients take
/// frames of 16 KiB at most, and of those several are written at once.
const COPY_BYTES_MAX: usize = 32 * 1024;

/// The side of the socket that `h2` holds.
pub(crate) struct Gathering {
    input: Input,
    output: Arc<Mutex<Output>>,
}

/// The side that the connection's task holds.
#[derive(Clone)]
pub(crate) struct Flusher {
    output: Arc<Mutex<Output>>,
    allowance: Allowance,
}

struct Output {
    write: OwnedWriteHalf,
    gathered: Staged,
    /// Until the task takes over, flushes are flushes.
    gathering: bool,
}

/// Splits a socket.
pub(crate) fn gather(stream: TcpStream, spares: &Arc<Spares>) -> (Gathering, Flusher) {
    let (read, write) = stream.into_split();
    let output = Output { write, gathered: Staged::new(spares.clone()), gathering: false };
    let output = Arc::new(Mutex::new(output));
    let allowance = Allowance::unlimited();
    let input = Input::new(read, allowance.clone(), spares.clone());
    (Gathering { input, output: output.clone() }, Flusher { output, allowance })
}

impl Flusher {
    /// From now on only the task flushes.
    pub(crate) fn take_over(&self) {
        lock(&self.output).gathering = true;
    }

    /// Allows to read this much from now on.
    pub(crate) fn allow_reading(&self, bytes: usize) {
        self.allowance.allow(bytes);
    }

    /// Writes everything that was gathered.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.output).poll_write_out(cx)
    }
}

fn lock(output: &Mutex<Output>) -> MutexGuard<'_, Output> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Output {
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let written = ready!(Pin::new(&mut self.write).poll_write(cx, self.gathered.bytes()))?;
            self.advance(written)?;
        }
        self.gathered.rest();
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.gathered.advance(written);
        Ok(())
    }

    /// Whether `length` more bytes are gathered instead of written.
    fn has_room(&self, length: usize) -> bool {
        length < COPY_BYTES_MAX && self.gathered.len().saturating_add(length) <= GATHER_BYTES_MAX
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        if !self.has_room(length) {
            ready!(self.poll_write_out(cx))?;
        }
        if self.has_room(length) {
            for slice in slices {
                self.gathered.push(slice);
            }
            return Poll::Ready(Ok(length));
        }
        Pin::new(&mut self.write).poll_write_vectored(cx, slices)
    }
}

impl AsyncRead for Gathering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.input.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gathering {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        lock(&self.output).poll_take(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.output).poll_take(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = lock(&self.output);
        if output.gathering { Poll::Ready(Ok(())) } else { output.poll_write_out(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = lock(&self.output);
        ready!(output.poll_write_out(cx))?;
        Pin::new(&mut output.write).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Gathering, Flusher, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (gathering, flusher) = gather(listener.accept().await.unwrap().0, &Arc::default());
        (gathering, flusher, client)
    }

    fn gathered(flusher: &Flusher) -> usize {
        lock(&flusher.output).gathered.len()
    }

    #[tokio::test]
    async fn flushes_wait_for_the_task_and_keep_the_order() {
        let (mut gathering, flusher, mut client) = pair().await;
        gathering.write_all(b"early ").await.unwrap();
        gathering.flush().await.unwrap();
        assert_eq!(gathered(&flusher), 0);
        flusher.take_over();
        gathering.write_all(b"one ").await.unwrap();
        gathering.flush().await.unwrap();
        gathering.write_all(b"two ").await.unwrap();
        assert_eq!(gathered(&flusher), 8);
        // Too large to be gathered, and behind what was.
        let large = vec![7; 3 * COPY_BYTES_MAX];
        let receive = async {
            let mut received = vec![0; 14 + large.len() + 5];
            client.read_exact(&mut received).await.unwrap();
            received
        };
        let send = async {
            gathering.write_all(&large).await.unwrap();
            gathering.write_all(b"three").await.unwrap();
            std::future::poll_fn(|cx| flusher.poll_flush(cx)).await.unwrap();
        };
        let (received, ()) = tokio::join!(receive, send);
        assert_eq!(received, [b"early one two ", large.as_slice(), b"three"].concat());
        assert!(!lock(&flusher.output).gathered.has_memory());
    }

    #[tokio::test]
    async fn short_frames_are_written_together() {
        let (mut gathering, flusher, _client) = pair().await;
        flusher.take_over();
        let frame = [7; 9 + 16 * 1024];
        for count in 1..=3 {
            gathering.write_all(&frame).await.unwrap();
            assert_eq!(gathered(&flusher), count * frame.len());
        }
        gathering.write_all(&frame).await.unwrap();
        assert_eq!(gathered(&flusher), frame.len());
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_stops_the_gathering() {
        let (mut gathering, flusher, _client) = pair().await;
        flusher.take_over();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let piece = [7; 1000];
        // The socket's buffers take some megabytes; what comes then waits.
        let writes = (0..1_000_000)
            .take_while(|_| Pin::new(&mut gathering).poll_write(&mut cx, &piece).is_ready())
            .count();
        assert!(writes < 1_000_000);
        assert!(gathered(&flusher) <= GATHER_BYTES_MAX);
    }
}
