//! The body of a plain request: so many bytes, without any framing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::ReadHalf;

use crate::body::{BodyError, BodyLimits, DiscardLimits, RequestBody, reserve};

use super::answer;

/// A body, of which some bytes came with the head.
pub(super) struct PlainBody<'c, 'stream> {
    stream: &'c mut ReadHalf<'stream>,
    early: &'c [u8],
    length: u64,
    /// How many bytes are still to be read from the stream.
    missing: u64,
    /// The client waits to be told to send it.
    waits: bool,
    /// Nothing is missing.
    whole: &'c AtomicBool,
    /// The first byte of what follows the body, if it was read along.
    surplus: Option<u8>,
}

/// What is read at once of a body that nobody wants.
const DISCARDED_BYTES: usize = 16 << 10;

impl<'c, 'stream> PlainBody<'c, 'stream> {
    /// A body of so many bytes: `early`, and then what comes from the stream.
    pub(super) fn new(
        stream: &'c mut ReadHalf<'stream>,
        early: &'c [u8],
        length: u64,
        waits: bool,
        whole: &'c AtomicBool,
    ) -> Self {
        let missing = length.saturating_sub(u64::try_from(early.len()).unwrap_or(u64::MAX));
        whole.store(missing == 0, Ordering::Relaxed);
        let waits = waits && length > 0;
        Self { stream, early, length, missing, waits, whole, surplus: None }
    }

    /// The first byte behind the body, if it was read along with it.
    pub(super) const fn surplus(&self) -> Option<u8> {
        self.surplus
    }

    /// Reads some of what is missing into `buffer`; `None` at the end of the stream.
    ///
    /// It asks for one byte more than there should be: who gets less than they asked
    /// for knows without a further system call that nothing is left.
    async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let spare = buffer.capacity().saturating_sub(buffer.len());
        let wanted = usize::try_from(self.missing).unwrap_or(usize::MAX).saturating_add(1);
        let count = self.stream.read_buf(&mut buffer.limit(spare.min(wanted))).await?;
        if count == wanted {
            self.surplus = buffer.pop();
        }
        self.missing = self.missing.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        self.whole.store(self.missing == 0, Ordering::Relaxed);
        Ok((count > 0).then_some(count))
    }
}

impl RequestBody for PlainBody<'_, '_> {
    fn length_min(&self) -> u64 {
        self.length
    }

    fn missing_min(&self) -> u64 {
        self.missing
    }

    async fn collect(&mut self, limits: BodyLimits) -> Result<Bytes, BodyError> {
        if self.length > limits.bytes_max {
            return Err(BodyError::TooLarge { length: self.length });
        }
        if std::mem::take(&mut self.waits) {
            let told = answer::write(self.stream.as_ref(), b"HTTP/1.1 100 Continue\r\n\r\n", &[]);
            told.await.map_err(|_| BodyError::Truncated)?;
        }
        if self.missing == 0 {
            return Ok(Bytes::copy_from_slice(self.early));
        }
        let expected = usize::try_from(self.length).unwrap_or(usize::MAX).saturating_add(1);
        let mut buffer = Vec::new();
        reserve(&mut buffer, self.early.len().saturating_add(1), expected);
        buffer.extend_from_slice(self.early);
        while self.missing > 0 {
            let needed = buffer.len().saturating_add(1);
            reserve(&mut buffer, needed, expected);
            match self.read(&mut buffer).await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Err(BodyError::Truncated),
            }
        }
        Ok(Bytes::from(buffer))
    }

    async fn discard(&mut self, limits: DiscardLimits) {
        let reading = async {
            let mut buffer = Vec::with_capacity(DISCARDED_BYTES);
            let mut length: u64 = 0;
            for _ in 0..limits.frames_max {
                if self.missing == 0 {
                    return;
                }
                buffer.clear();
                let read = tokio::time::timeout(limits.silence_max, self.read(&mut buffer)).await;
                let Ok(Ok(Some(count))) = read else { return };
                length = length.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
                if length > limits.bytes_max {
                    return;
                }
            }
        };
        // However far it came, the answer goes out now.
        let _ = tokio::time::timeout(limits.time_max, reading).await;
    }
}
