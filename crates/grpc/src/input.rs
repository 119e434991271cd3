//! What is read from a connection's socket.
//!
//! `h2` reads until nothing is left, and hands out what it read after that. A
//! client with a long message then has the server put all of it aside before it
//! is put together, in memory that is cold by then. So the task allows a share
//! for each of its rounds.
//!
//! And `h2` reads little at a time when frames are short: two system calls for one
//! of 16 KiB. When it does so again and again, more is read ahead, and handed on
//! from here. A connection that waits for more has no memory for that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

use crate::staged::{STAGED_BYTES_MAX, Spares, Staged};

/// How much is read ahead at once, and how large a read goes to where it is wanted
/// without that.
const AHEAD_BYTES: usize = STAGED_BYTES_MAX;
/// After how many reads that took all they could more is read ahead.
const FULL_READS: u32 = 2;

/// How much may still be read in this round.
#[derive(Clone, Debug)]
pub(crate) struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    /// Allows everything.
    pub(crate) fn unlimited() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    /// Allows this much from now on.
    pub(crate) fn allow(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Only the connection's task reads and allows.
    fn take(&self, bytes: usize) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
    }
}

/// The side of the socket that is read.
#[derive(Debug)]
pub(crate) struct Input<R = OwnedReadHalf> {
    read: R,
    allowance: Allowance,
    /// What was read and not asked for yet.
    ahead: Staged,
    /// Short reads in a row that took all they could.
    full_reads: u32,
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(crate) fn new(read: R, allowance: Allowance, spares: Arc<Spares>) -> Self {
        Self { read, allowance, ahead: Staged::new(spares), full_reads: 0 }
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            if self.allowance.is_used_up() {
                // The task comes back when it has looked at what there is.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let outcome = self.poll_more(cx, buffer);
            if outcome.is_pending() {
                self.ahead.rest();
            }
            ready!(outcome)?;
        }
        self.hand_on(buffer);
        Poll::Ready(Ok(()))
    }

    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(self.ahead.bytes().get(..count).unwrap_or_default());
        self.ahead.advance(count);
    }

    /// Reads to where it is wanted, or ahead.
    fn poll_more(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() >= AHEAD_BYTES {
            self.full_reads = 0;
            return self.poll_fill(cx, buffer).map_ok(|_| ());
        }
        if self.full_reads < FULL_READS { self.poll_short(cx, buffer) } else { self.poll_ahead(cx) }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(poll_count(&mut self.read, cx, buffer))?;
        self.allowance.take(count);
        Poll::Ready(Ok(count))
    }

    fn poll_short(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx, buffer))?;
        if buffer.remaining() == 0 {
            self.full_reads = self.full_reads.saturating_add(1);
        } else {
            self.full_reads = 0;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = ReadBuf::new(self.ahead.refill());
        let count = ready!(poll_count(&mut self.read, cx, &mut space))?;
        self.ahead.set_filled(count);
        self.allowance.take(count);
        if count < AHEAD_BYTES / 8 {
            self.full_reads = 0;
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads once; returns how much.
fn poll_count(
    read: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<usize>> {
    let before = buffer.filled().len();
    ready!(Pin::new(read).poll_read(cx, buffer))?;
    Poll::Ready(Ok(buffer.filled().len().saturating_sub(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has so many bytes, gives at most so many at once, and counts how often.
    struct Source {
        bytes: usize,
        at_once: usize,
        given: usize,
        reads: usize,
    }

    fn source(bytes: usize, at_once: usize) -> Input<Source> {
        let read = Source { bytes, at_once, given: 0, reads: 0 };
        Input::new(read, Allowance::unlimited(), Arc::default())
    }

    fn byte(place: usize) -> u8 {
        u8::try_from(place % 251).unwrap()
    }

    impl AsyncRead for Source {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let count = self.bytes.min(self.at_once).min(buffer.remaining());
            if count == 0 {
                return Poll::Pending;
            }
            let start = self.given;
            let bytes: Vec<u8> = (start..start.saturating_add(count)).map(byte).collect();
            buffer.put_slice(&bytes);
            self.reads = self.reads.saturating_add(1);
            self.given = self.given.saturating_add(count);
            self.bytes = self.bytes.saturating_sub(count);
            Poll::Ready(Ok(()))
        }
    }

    /// Reads into a buffer of this size; `None` if there is nothing now.
    fn read(input: &mut Input<Source>, size: usize) -> Option<Vec<u8>> {
        let mut space = vec![0; size];
        let mut buffer = ReadBuf::new(&mut space);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let is_ready = input.poll_read(&mut cx, &mut buffer).is_ready();
        is_ready.then(|| buffer.filled().to_vec())
    }

    /// Reads all there is in pieces of these sizes, again and again.
    fn read_all(input: &mut Input<Source>, sizes: &[usize]) -> Vec<u8> {
        let mut sizes = sizes.iter().cycle();
        std::iter::from_fn(|| read(input, *sizes.next().unwrap())).flatten().collect()
    }

    #[test]
    fn bytes_come_in_their_order_however_they_are_read() {
        let all: Vec<u8> = (0..1_000_000).map(byte).collect();
        for sizes in [&[8192, 8201][..], &[1, 100_000, 70], &[300_000], &[8192, 8192, 8192, 70_000]]
        {
            for at_once in [1000, 20_000, usize::MAX] {
                assert!(read_all(&mut source(1_000_000, at_once), sizes) == all, "{sizes:?}");
            }
        }
    }

    #[test]
    fn short_frames_that_keep_coming_are_read_ahead() {
        let mut input = source(64 * 16_393, usize::MAX);
        read_all(&mut input, &[8192, 8201]);
        assert!(input.read.reads < 20, "{}", input.read.reads);
    }

    #[test]
    fn long_frames_go_where_they_are_wanted() {
        let mut input = source(1_000_000, usize::MAX);
        assert!(read(&mut input, 8192).is_some());
        for _ in 0..4 {
            assert!(read(&mut input, 200_000).is_some() && !input.ahead.has_memory());
        }
    }

    #[test]
    fn memory_is_there_while_bytes_are() {
        let mut input = source(20_000, 1000);
        while read(&mut input, 8192).is_some() {
            assert!(!input.ahead.has_memory());
        }
        input.read.bytes = 100_000;
        input.read.at_once = usize::MAX;
        for _ in 0..=FULL_READS {
            assert_eq!(read(&mut input, 8192).unwrap().len(), 8192);
        }
        assert_eq!(input.ahead.len(), AHEAD_BYTES - 8192);
        // It is left to others when nothing comes, however often somebody asks.
        for _ in 0..3 {
            while read(&mut input, 8192).is_some() {}
            assert!(!input.ahead.has_memory());
            input.read.bytes = 100_000;
        }
    }

    #[test]
    fn no_more_is_read_than_is_allowed() {
        let mut input = source(1_000_000, 3000);
        input.allowance.allow(10_000);
        // The read that uses it up is not cut short.
        assert_eq!(read_all(&mut input, &[8192]).len(), 12_000);
        assert_eq!(read_all(&mut input, &[8192]).len(), 0);
        input.allowance.allow(1);
        assert_eq!(read_all(&mut input, &[200_000]).len(), 3000);
    }
}
