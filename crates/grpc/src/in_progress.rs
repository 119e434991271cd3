//! Requests that are arriving, and those that are not answered, in bytes.
//!
//! A client decides how much it sends before it has an answer. So a message
//! counts while it arrives, and a request from its beginning until whoever works
//! on it lets go of its sink, even if its call was given up long before. While
//! too much is in progress, no further request is read, and the client runs out
//! of window: the server makes room by itself. While too much is arriving, that
//! would not help, because what the client needs to end one message may wait
//! behind others that are not read; so the message that brings too much is
//! refused.

use std::sync::Arc;

use galatea_codec::grpc::GrpcCode;
use galatea_infer::InferenceRequest;

use crate::answer::Failure;
use crate::signal::{Signal, Use};

/// What the server keeps for a request beside what came: its call, its place in a
/// queue, its answer's sink. Rather too much than too little.
const BESIDE_BYTES: usize = 2 << 10;

/// What a request takes that came as a message of so many bytes. Typed elements
/// may take eight times as much as they took in the message, and small inputs,
/// outputs and parameters more than that.
pub(crate) fn taken(message_bytes: usize, request: &InferenceRequest) -> usize {
    let InferenceRequest { inputs, outputs, parameters, .. } = request;
    let parts = size_of_val(inputs.as_slice())
        .saturating_add(size_of_val(outputs.as_slice()))
        .saturating_add(size_of_val(parameters.as_slice()));
    let elements = inputs.iter().map(|input| input.data.len());
    let decoded = elements.fold(parts, usize::saturating_add);
    message_bytes.max(decoded).saturating_add(BESIDE_BYTES)
}

/// A request that somebody works on, counted for as long as this exists.
pub(crate) struct InProgress {
    signal: Arc<Signal>,
    bytes: usize,
    used_for: Use,
}

impl InProgress {
    /// Counts a request that takes this many bytes.
    pub(crate) fn new(signal: Arc<Signal>, bytes: usize, used_for: Use) -> Self {
        signal.begin_request(bytes, used_for);
        Self { signal, bytes, used_for }
    }

    /// The connection that it came on.
    pub(crate) const fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.signal.end_request(self.bytes, self.used_for);
    }
}

/// What is there of a message that is not whole, counted for as long as this
/// exists.
pub(crate) struct Arriving {
    signal: Arc<Signal>,
    bytes: usize,
}

impl Arriving {
    pub(crate) const fn new(signal: Arc<Signal>) -> Self {
        Self { signal, bytes: 0 }
    }

    /// So much more is there.
    ///
    /// # Errors
    ///
    /// As [`Arriving::set`].
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        self.set(self.bytes.saturating_add(bytes))
    }

    /// So much is there.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if that is too much together with what else is
    /// arriving. One message alone may be as long as messages may be.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if self.signal.count_arriving(before, bytes) || bytes == 0 {
            return Ok(());
        }
        let message = "too many bytes of requests are arriving on this connection at once";
        Err(Failure::new(GrpcCode::ResourceExhausted, message))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.signal.count_arriving(self.bytes, 0);
    }
}
