//! The body of a plain request, which is a known number of bytes without framing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes};
use galatea_door::{AwaitedClientStep, ConnectionActivity};
use galatea_gate::ledger::MemoryAccount;
use galatea_stdx::len64;
use tokio::io::AsyncReadExt;

use super::client_stream::Receiver;
use super::writer;
use crate::charged_buffer::ChargedBuffer;
use crate::request_body::{BodyError, BodyLimits, DrainLimits, RequestBody};

/// A body, part of which was received with the head.
pub(super) struct PlainBody<'c, 'stream> {
    stream: &'c mut Receiver<'stream>,
    activity: &'c ConnectionActivity,
    /// The bytes received with the head.
    early: &'c [u8],
    length: u64,
    /// The number of bytes that have yet to be received.
    missing: u64,
    /// True if the client waits for an interim response before it sends the body.
    waits_for_continue: bool,
    /// Set once the whole body has been received.
    is_whole: &'c AtomicBool,
    /// The first byte after the body, if it was received with the body.
    byte_after_body: Option<u8>,
    account: &'c Arc<MemoryAccount>,
}

/// The number of bytes per read while a body is drained.
const DRAIN_BYTES: usize = 16 << 10;

impl<'c, 'stream> PlainBody<'c, 'stream> {
    /// Creates a body of `length` bytes that consists of `early` and then the data from the stream.
    pub(super) fn new(
        stream: &'c mut Receiver<'stream>,
        activity: &'c ConnectionActivity,
        account: &'c Arc<MemoryAccount>,
        early: &'c [u8],
        length: u64,
        waits_for_continue: bool,
        is_whole: &'c AtomicBool,
    ) -> Self {
        let missing = length.saturating_sub(len64(early.len()));
        is_whole.store(missing == 0, Ordering::Relaxed);
        let waits_for_continue = waits_for_continue && length > 0;
        Self {
            stream,
            activity,
            early,
            length,
            missing,
            waits_for_continue,
            is_whole,
            byte_after_body: None,
            account,
        }
    }

    /// The first byte after the body, if it was received with the body.
    pub(super) const fn byte_after_body(&self) -> Option<u8> {
        self.byte_after_body
    }

    /// Receives some of the missing bytes into `buffer` and returns their number.
    ///
    /// Each read requests one byte more than is missing. If the system returns fewer bytes than
    /// requested, nothing is left, and no further system call is needed to find that out.
    async fn read(&mut self, buffer: &mut Vec<u8>) -> Result<usize, BodyError> {
        let spare = buffer.capacity().saturating_sub(buffer.len());
        let wanted = usize::try_from(self.missing).unwrap_or(usize::MAX).saturating_add(1);
        let mut room = buffer.limit(spare.min(wanted));
        let reading = self.stream.read_buf(&mut room);
        let count = match self.activity.wait_for_client(AwaitedClientStep::Body, reading).await {
            Ok(Ok(count @ 1..)) => count,
            Ok(Ok(0) | Err(_)) => return Err(BodyError::Truncated),
            Err(_) => return Err(BodyError::Overdue),
        };
        if count == wanted {
            self.byte_after_body = buffer.pop();
        }
        self.missing = self.missing.saturating_sub(len64(count));
        self.is_whole.store(self.missing == 0, Ordering::Relaxed);
        Ok(count)
    }
}

impl RequestBody for PlainBody<'_, '_> {
    fn length_min(&self) -> u64 {
        self.length
    }

    fn is_whole(&self) -> bool {
        self.missing == 0
    }

    fn account(&self) -> &Arc<MemoryAccount> {
        self.account
    }

    async fn collect(&mut self, limits: BodyLimits) -> Result<Bytes, BodyError> {
        if self.length > limits.bytes_max {
            return Err(BodyError::TooLarge { length: self.length });
        }
        if std::mem::take(&mut self.waits_for_continue) {
            let written = writer::write_continue(self.stream.sender(), self.activity);
            written.await.map_err(|_| BodyError::Truncated)?;
        }
        if self.missing == 0 {
            return Ok(Bytes::copy_from_slice(self.early));
        }
        let expected = usize::try_from(self.length).unwrap_or(usize::MAX).saturating_add(1);
        let mut buffer = ChargedBuffer::new();
        buffer.reserve(self.early.len().saturating_add(1), expected, self.account)?;
        buffer.bytes_mut().extend_from_slice(self.early);
        while self.missing > 0 {
            buffer.reserve(buffer.len().saturating_add(1), expected, self.account)?;
            self.read(buffer.bytes_mut()).await?;
        }
        Ok(buffer.into_bytes())
    }

    async fn drain(&mut self, limits: DrainLimits) {
        let reading = async {
            let mut buffer = Vec::with_capacity(DRAIN_BYTES);
            let mut length: u64 = 0;
            for _ in 0..limits.frames_max {
                if self.missing == 0 {
                    return;
                }
                buffer.clear();
                let read = tokio::time::timeout(limits.silence_max, self.read(&mut buffer)).await;
                let Ok(Ok(count)) = read else { return };
                length = length.saturating_add(len64(count));
                if length > limits.bytes_max {
                    return;
                }
            }
        };
        // The response is now sent, whether or not the body was drained.
        let _ = tokio::time::timeout(limits.time_max, reading).await;
    }
}
