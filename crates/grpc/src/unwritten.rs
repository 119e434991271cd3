//! Answers that are made and not yet written, and who has to wait for them.
//!
//! A client decides how fast it reads. What it doesn't read lies in the
//! server, so every answer is counted from the moment at which it is made
//! until `h2` lets go of it: because it was written, because its call was
//! reset, or because the connection is gone. The count is tied to the message
//! itself, so that no way out of the server can be forgotten.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Buf;
use galatea_codec::grpc::MessageChunks;

use crate::signal::{Signal, Use};
use crate::stream::StreamSignal;

/// What an answer takes beside its bytes: frames, lists and reference counts.
/// A guess on the high side, so that many tiny answers count as well.
const OVERHEAD_BYTES: usize = 512;

/// Whose client an answer waits for.
#[derive(Clone)]
pub(crate) enum Holder {
    /// That of a single call.
    Call(Arc<Signal>),
    /// That of a stream.
    Stream(Arc<StreamSignal>),
}

/// An answer on its way out, counted for as long as it exists.
pub(crate) struct Outgoing {
    message: MessageChunks,
    bytes: usize,
    holder: Holder,
}

impl Outgoing {
    /// Counts `message`; `None` if so much waits already that this one is
    /// dropped.
    pub(crate) fn new(message: MessageChunks, holder: Holder) -> Option<Self> {
        let bytes = message.remaining().saturating_add(OVERHEAD_BYTES);
        let taken = match &holder {
            Holder::Call(signal) => signal.hold(bytes, Use::Call),
            Holder::Stream(signal) => signal.hold(bytes),
        };
        // Only what was counted may be dropped as such.
        taken.then(|| Self { message, bytes, holder })
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        match &self.holder {
            Holder::Call(signal) => signal.let_go(self.bytes, Use::Call),
            Holder::Stream(signal) => signal.let_go(self.bytes),
        }
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outgoing({} bytes)", self.bytes)
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.message.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.message.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.message.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.message.advance(count);
    }
}
