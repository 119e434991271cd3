//! The chunked body of a plain request.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes};
use galatea_door::{AwaitedClientStep, ConnectionActivity};
use galatea_gate::ledger::MemoryAccount;
use galatea_stdx::len64;
use tokio::io::AsyncReadExt;

use super::chunks::{ChunkDecoder, Decoded, Malformed};
use super::client_stream::Receiver;
use super::receive_buffer::RECEIVE_BYTES;
use super::writer;
use crate::charged_buffer::ChargedBuffer;
use crate::request_body::{BodyError, BodyLimits, DrainLimits, RequestBody};

/// A chunked body, part of which was received with the head.
pub(super) struct ChunkedBody<'c, 'stream> {
    stream: &'c mut Receiver<'stream>,
    activity: &'c ConnectionActivity,
    account: &'c Arc<MemoryAccount>,
    /// The received bytes.
    received: Vec<u8>,
    /// The number of received bytes that have been decoded.
    decoded: usize,
    decoder: ChunkDecoder,
    /// True if the client waits for an interim response before it sends the body.
    waits_for_continue: bool,
    /// Set at the end of the body.
    is_whole: &'c AtomicBool,
}

impl<'c, 'stream> ChunkedBody<'c, 'stream> {
    /// Creates a body that begins with `early`.
    pub(super) fn new(
        stream: &'c mut Receiver<'stream>,
        activity: &'c ConnectionActivity,
        account: &'c Arc<MemoryAccount>,
        early: &[u8],
        waits_for_continue: bool,
        is_whole: &'c AtomicBool,
    ) -> Self {
        Self {
            stream,
            activity,
            account,
            received: early.to_vec(),
            decoded: 0,
            decoder: ChunkDecoder::new(),
            waits_for_continue,
            is_whole,
        }
    }

    /// Returns the bytes received after the body.
    pub(super) fn into_rest(self) -> Vec<u8> {
        let mut rest = self.received;
        rest.drain(..self.decoded.min(rest.len()));
        rest
    }

    /// Returns the range of the next content in the received bytes, or `None` at the end of the
    /// body.
    async fn content(&mut self) -> Result<Option<Range<usize>>, BodyError> {
        while !self.decoder.is_done() {
            if self.decoded >= self.received.len() {
                self.receive().await?;
            }
            let begin = self.decoded;
            let piece = self.received.get(begin..).unwrap_or_default();
            let Decoded { content, used } =
                self.decoder.decode(piece).map_err(|Malformed| BodyError::Malformed)?;
            self.decoded = begin.saturating_add(used);
            if !content.is_empty() {
                let at = |index: usize| begin.saturating_add(index);
                return Ok(Some(at(content.start)..at(content.end)));
            }
        }
        self.is_whole.store(true, Ordering::Relaxed);
        Ok(None)
    }

    /// Receives more bytes when all have been decoded.
    async fn receive(&mut self) -> Result<(), BodyError> {
        self.received.clear();
        self.decoded = 0;
        self.received.reserve_exact(RECEIVE_BYTES);
        // The bytes after the body must fit into the session's buffer.
        let mut room = (&mut self.received).limit(RECEIVE_BYTES);
        let reading = self.stream.read_buf(&mut room);
        match self.activity.wait_for_client(AwaitedClientStep::Body, reading).await {
            Ok(Ok(1..)) => Ok(()),
            Ok(Ok(0) | Err(_)) => Err(BodyError::Truncated),
            Err(_) => Err(BodyError::Overdue),
        }
    }
}

impl RequestBody for ChunkedBody<'_, '_> {
    fn length_min(&self) -> u64 {
        0
    }

    fn account(&self) -> &Arc<MemoryAccount> {
        self.account
    }

    fn is_whole(&self) -> bool {
        self.decoder.is_done()
    }

    async fn collect(&mut self, limits: BodyLimits) -> Result<Bytes, BodyError> {
        if std::mem::take(&mut self.waits_for_continue) {
            let written = writer::write_continue(self.stream.sender(), self.activity);
            written.await.map_err(|_| BodyError::Truncated)?;
        }
        let mut body = ChargedBuffer::new();
        while let Some(content) = self.content().await? {
            let length = len64(body.len()).saturating_add(len64(content.len()));
            if length > limits.bytes_max {
                return Err(BodyError::TooLarge { length });
            }
            let content = self.received.get(content).unwrap_or_default();
            body.append(content, 0, self.account)?;
            if self.decoder.chunks() > limits.chunks_max {
                return Err(BodyError::TooManyChunks);
            }
        }
        Ok(body.into_bytes())
    }

    async fn drain(&mut self, limits: DrainLimits) {
        let reading = async {
            let mut length: u64 = 0;
            for _ in 0..limits.frames_max {
                let content = tokio::time::timeout(limits.silence_max, self.content()).await;
                let Ok(Ok(Some(content))) = content else { return };
                length = length.saturating_add(len64(content.len()));
                if length > limits.bytes_max {
                    return;
                }
            }
        };
        // The response is now sent, whether or not the body was drained.
        let _ = tokio::time::timeout(limits.time_max, reading).await;
    }
}
