//! Bytes that were received but not served yet.

use std::io;

use bytes::BufMut;
use tokio::io::AsyncReadExt;

use super::client_stream::Receiver;

/// The maximum number of bytes received at once: heads, and bodies that are no longer than this. An
/// idle connection keeps this much memory and never more.
pub(super) const RECEIVE_BYTES: usize = 16 << 10;

/// The receive buffer, which never grows.
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// The start of the bytes that have not been served.
    start: usize,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(RECEIVE_BYTES), start: 0 }
    }

    /// Returns the bytes that have not been served.
    pub(super) fn unread(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Marks the next `count` bytes as served.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.bytes.len());
    }

    /// Appends bytes that were received with a body.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        // Otherwise, a full buffer would grow.
        self.compact();
        self.bytes.extend_from_slice(bytes);
    }

    /// Receives as many bytes as fit into the buffer. Returns their number, which is 0 at the end
    /// of the stream.
    pub(super) async fn receive(&mut self, stream: &mut Receiver<'_>) -> io::Result<usize> {
        self.compact();
        let room = RECEIVE_BYTES.saturating_sub(self.bytes.len());
        stream.read_buf(&mut (&mut self.bytes).limit(room)).await
    }

    /// Reclaims the space of the bytes that have been served.
    fn compact(&mut self) {
        self.bytes.drain(..self.start);
        self.start = 0;
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
