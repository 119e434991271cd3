//! Reads from a connection's socket.
//!
//! `h2` reads until nothing is left and only then hands out the data. A long message would thus be
//! buffered completely, and then assembled from memory that has already left the caches. The
//! connection's task therefore grants a quota for each of its rounds.
//!
//! `h2` also reads little at a time when frames are short: a frame of 16 KiB takes two system
//! calls. When that happens repeatedly, bytes are read ahead and served from a staging buffer. A
//! connection that waits for more data has no such buffer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use galatea_door::StreamReadHalf;
use tokio::io::{AsyncRead, ReadBuf};

use super::staging::{STAGING_BYTES, StagingBuffer, StagingPool};

/// The number of bytes that are read ahead at a time. Reads of this size or more are not read
/// ahead.
const AHEAD_BYTES: usize = STAGING_BYTES;
/// The number of consecutive short, completely filled reads after which bytes are read ahead.
const FULL_READS: u32 = 2;

/// The number of bytes that may still be read in a round.
#[derive(Clone, Debug)]
pub(crate) struct ReadQuota(Arc<AtomicUsize>);

impl ReadQuota {
    /// Creates an unlimited quota.
    pub(crate) fn unlimited() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    /// Sets the quota.
    pub(crate) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Charges bytes to the quota. Only the connection's task changes it.
    fn charge(&self, bytes: usize) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
    }
}

/// The read half of a stream.
#[derive(Debug)]
pub(crate) struct ReadAhead<R = StreamReadHalf> {
    read: R,
    quota: ReadQuota,
    /// The bytes that were read ahead.
    ahead: StagingBuffer,
    /// The number of consecutive short reads that have been filled.
    full_reads: u32,
}

impl<R: AsyncRead + Unpin> ReadAhead<R> {
    pub(crate) fn new(read: R, quota: ReadQuota, pool: Arc<StagingPool>) -> Self {
        Self { read, quota, ahead: StagingBuffer::new(pool), full_reads: 0 }
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            if self.quota.is_exhausted() {
                // The task continues reading after it has processed the available data.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let polled = self.poll_more(cx, buffer);
            if polled.is_pending() {
                self.ahead.release_if_empty();
            }
            ready!(polled)?;
        }
        self.hand_on(buffer);
        Poll::Ready(Ok(()))
    }

    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(self.ahead.bytes().get(..count).unwrap_or_default());
        self.ahead.advance(count);
    }

    /// Reads into `buffer` or ahead.
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
        self.quota.charge(count);
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
        self.quota.charge(count);
        if count < AHEAD_BYTES / 8 {
            self.full_reads = 0;
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads once and returns the number of bytes.
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

    /// A source of `bytes` that returns at most `at_once` per read and counts the reads.
    struct Source {
        bytes: usize,
        at_once: usize,
        given: usize,
        reads: usize,
    }

    fn source(bytes: usize, at_once: usize) -> ReadAhead<Source> {
        let read = Source { bytes, at_once, given: 0, reads: 0 };
        ReadAhead::new(read, ReadQuota::unlimited(), Arc::default())
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

    /// Reads into a buffer of this size. Returns `None` if nothing is available.
    fn read(input: &mut ReadAhead<Source>, size: usize) -> Option<Vec<u8>> {
        let mut space = vec![0; size];
        let mut buffer = ReadBuf::new(&mut space);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let is_ready = input.poll_read(&mut cx, &mut buffer).is_ready();
        is_ready.then(|| buffer.filled().to_vec())
    }

    /// Reads everything, cycling through pieces of these sizes.
    fn read_all(input: &mut ReadAhead<Source>, sizes: &[usize]) -> Vec<u8> {
        let mut sizes = sizes.iter().cycle();
        std::iter::from_fn(|| read(input, *sizes.next().unwrap())).flatten().collect()
    }

    #[test]
    fn bytes_arrive_in_order_however_they_are_read() {
        let all: Vec<u8> = (0..1_000_000).map(byte).collect();
        for sizes in [&[8192, 8201][..], &[1, 100_000, 70], &[300_000], &[8192, 8192, 8192, 70_000]]
        {
            for at_once in [1000, 20_000, usize::MAX] {
                assert!(read_all(&mut source(1_000_000, at_once), sizes) == all, "{sizes:?}");
            }
        }
    }

    #[test]
    fn repeated_short_frames_are_read_ahead() {
        let mut input = source(64 * 16_393, usize::MAX);
        read_all(&mut input, &[8192, 8201]);
        assert!(input.read.reads < 20, "{}", input.read.reads);
    }

    #[test]
    fn long_frames_are_not_staged() {
        let mut input = source(1_000_000, usize::MAX);
        assert!(read(&mut input, 8192).is_some());
        for _ in 0..4 {
            assert!(read(&mut input, 200_000).is_some() && !input.ahead.has_memory());
        }
    }

    #[test]
    fn memory_is_held_only_while_bytes_are_staged() {
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
        // The buffer is released when nothing arrives, however often the connection reads.
        for _ in 0..3 {
            while read(&mut input, 8192).is_some() {}
            assert!(!input.ahead.has_memory());
            input.read.bytes = 100_000;
        }
    }

    #[test]
    fn reading_stops_at_the_quota() {
        let mut input = source(1_000_000, 3000);
        input.quota.set(10_000);
        // The read that exhausts the quota is not cut short.
        assert_eq!(read_all(&mut input, &[8192]).len(), 12_000);
        assert_eq!(read_all(&mut input, &[8192]).len(), 0);
        input.quota.set(1);
        assert_eq!(read_all(&mut input, &[200_000]).len(), 3000);
    }
}
