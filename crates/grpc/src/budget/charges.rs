//! Requests that are arriving or in progress, counted by values.

use std::sync::Arc;

use galatea_codec::grpc::GrpcCode;
use galatea_infer::InferenceRequest;

use super::memory_budget::{CallKind, MemoryBudget};
use crate::failure::Failure;

/// What the server keeps for a request beside its message: its call, its place in a queue,
/// its sink. A guess on the high side.
const OVERHEAD_BYTES: usize = 2 << 10;

/// The memory of a request that arrived as a message of `message_bytes`. Typed elements may
/// take eight times as much as in the message, and small inputs, outputs and parameters
/// more than that.
pub(crate) fn request_bytes(message_bytes: usize, request: &InferenceRequest) -> usize {
    let InferenceRequest { inputs, outputs, parameters, .. } = request;
    let parts = size_of_val(inputs.as_slice())
        .saturating_add(size_of_val(outputs.as_slice()))
        .saturating_add(size_of_val(parameters.as_slice()));
    let elements = inputs.iter().map(|input| input.data.len());
    let decoded = elements.fold(parts, usize::saturating_add);
    message_bytes.max(decoded).saturating_add(OVERHEAD_BYTES)
}

/// A request in progress. It counts from its beginning until its sink is dropped, even if
/// its call was cancelled long before.
pub(crate) struct RequestCharge {
    budget: Arc<MemoryBudget>,
    bytes: usize,
    kind: CallKind,
}

impl RequestCharge {
    pub(crate) fn new(budget: Arc<MemoryBudget>, bytes: usize, kind: CallKind) -> Self {
        budget.charge_request(bytes, kind);
        Self { budget, bytes, kind }
    }

    /// The budget of the request's connection.
    pub(crate) const fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }
}

impl Drop for RequestCharge {
    fn drop(&mut self) {
        self.budget.release_request(self.bytes, self.kind);
    }
}

/// The part of an incomplete message that has arrived.
pub(crate) struct ArrivalCharge {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl ArrivalCharge {
    pub(crate) const fn new(budget: Arc<MemoryBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Counts further bytes.
    ///
    /// # Errors
    ///
    /// As [`ArrivalCharge::set`].
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        self.set(self.bytes.saturating_add(bytes))
    }

    /// Counts `bytes` in total.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if that is too much together with other messages. A single
    /// message may be as long as messages may be.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if self.budget.recharge_arriving(before, bytes) || bytes == 0 {
            return Ok(());
        }
        let message = "too many bytes of requests are arriving on this connection at once";
        Err(Failure::new(GrpcCode::ResourceExhausted, message))
    }
}

impl Drop for ArrivalCharge {
    fn drop(&mut self) {
        self.budget.recharge_arriving(self.bytes, 0);
    }
}
