//! Buffers between a socket and `h2`, for bytes that were read ahead or are to be written together.
//!
//! A connection has such a buffer only while it contains bytes. A worker runs one task at a time,
//! and few tasks leave bytes behind, so the worker's connections share a few buffers, which stay in
//! the processor's caches.

use std::sync::Arc;

use galatea_stdx::Lock;

/// The size of a buffer.
pub(crate) const STAGING_BYTES: usize = 64 * 1024;
/// The maximum number of unused buffers that a worker keeps.
const POOLED_MAX: usize = 4;

/// The buffers that a worker's connections share.
#[derive(Debug, Default)]
pub(crate) struct StagingPool(Lock<Vec<Box<[u8]>>>);

impl StagingPool {
    fn take(&self) -> Box<[u8]> {
        let pooled = self.0.lock("take a buffer").pop();
        pooled.unwrap_or_else(|| vec![0; STAGING_BYTES].into_boxed_slice())
    }

    fn put(&self, memory: Box<[u8]>) {
        let mut pooled = self.0.lock("return a buffer");
        if pooled.len() < POOLED_MAX {
            pooled.push(memory);
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock("count buffers").len()
    }
}

/// An ordered sequence of bytes, at most [`STAGING_BYTES`] long.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    /// The buffer's memory; empty while the buffer has none.
    memory: Box<[u8]>,
    start: usize,
    end: usize,
    pool: Arc<StagingPool>,
}

impl StagingBuffer {
    pub(crate) fn new(pool: Arc<StagingPool>) -> Self {
        Self { memory: Box::default(), start: 0, end: 0, pool }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) const fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops bytes from the front of the buffer.
    pub(crate) fn advance(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
    }

    /// Appends bytes, for which the buffer must have room.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.take_memory();
        if self.end.saturating_add(bytes.len()) > self.memory.len() {
            self.memory.copy_within(self.start..self.end, 0);
            self.end = self.len();
            self.start = 0;
        }
        let end = self.end.saturating_add(bytes.len());
        if let Some(room) = self.memory.get_mut(self.end..end) {
            room.copy_from_slice(bytes);
            self.end = end;
        }
    }

    /// Returns the whole memory to be refilled.
    pub(crate) fn refill(&mut self) -> &mut [u8] {
        self.take_memory();
        (self.start, self.end) = (0, 0);
        &mut self.memory
    }

    /// Marks the first `count` bytes of the memory as filled.
    pub(crate) fn set_filled(&mut self, count: usize) {
        self.end = count.min(self.memory.len());
    }

    fn take_memory(&mut self) {
        if self.memory.is_empty() {
            self.memory = self.pool.take();
        }
    }

    /// Returns the memory to the pool if the buffer is empty.
    pub(crate) fn release_if_empty(&mut self) {
        if self.is_empty() {
            self.release();
        }
    }

    fn release(&mut self) {
        if self.memory.is_empty() {
            return;
        }
        (self.start, self.end) = (0, 0);
        self.pool.put(std::mem::take(&mut self.memory));
    }

    #[cfg(test)]
    pub(crate) const fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order() {
        let mut buffer = StagingBuffer::new(Arc::default());
        let mut expected = Vec::<u8>::new();
        // Bytes are repeatedly pushed at the end of the memory while others remain in front.
        let steps = [(40_000, 39_999), (60_000, 50_000), (55_535, 100)].repeat(3);
        for (step, (pushed, advanced)) in (0..).zip(steps) {
            let room = STAGING_BYTES - buffer.len();
            let bytes: Vec<u8> = (0..=u8::MAX).map(|byte| byte ^ step).collect();
            let bytes: Vec<u8> = bytes.into_iter().cycle().take(pushed.min(room)).collect();
            buffer.push(&bytes);
            expected.extend(&bytes);
            let advanced = expected.len().min(advanced);
            buffer.advance(advanced);
            expected.drain(..advanced);
            assert!(expected == buffer.bytes());
        }
    }

    #[test]
    fn a_buffer_has_memory_only_while_it_has_bytes() {
        let pool = Arc::<StagingPool>::default();
        let mut one = StagingBuffer::new(pool.clone());
        assert!(!one.has_memory());
        one.push(&[1, 2, 3]);
        one.release_if_empty();
        one.advance(2);
        one.release_if_empty();
        assert_eq!((one.bytes(), one.len(), pool.count()), (&[3][..], 1, 0));
        one.advance(1);
        one.release_if_empty();
        assert!(!one.has_memory() && one.bytes().is_empty());
        let place = pool.0.lock("check")[0].as_ptr();
        // The next buffer takes the memory, and returns it when dropped.
        let mut other = StagingBuffer::new(pool.clone());
        let room = other.refill();
        assert_eq!((room.len(), room.as_ptr()), (STAGING_BYTES, place));
        room[..5].copy_from_slice(&[7; 5]);
        other.set_filled(5);
        assert_eq!((other.bytes(), pool.count()), (&[7; 5][..], 0));
        drop(other);
        assert_eq!(pool.count(), 1);
    }

    #[test]
    fn few_unused_buffers_are_kept() {
        let pool = Arc::<StagingPool>::default();
        let mut busy: Vec<StagingBuffer> =
            (0..10).map(|_| StagingBuffer::new(pool.clone())).collect();
        busy.iter_mut().for_each(|buffer| buffer.push(&[7]));
        drop(busy);
        assert_eq!(pool.count(), POOLED_MAX);
    }
}
