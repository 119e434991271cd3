//! Charges for requests that are arriving or in progress.

use std::sync::Arc;

use galatea_codec_grpc::GrpcCode;
use galatea_gate::ledger::{MemoryAccount, MemoryLimitExceeded};
use galatea_infer::InferenceRequest;

use super::memory_budget::{CallKind, MemoryBudget};
use crate::failure::Failure;

/// The bytes that a request uses in addition to its message: for its call, its queue entry and its
/// sink. The estimate is deliberately high.
const OVERHEAD_BYTES: usize = 2 << 10;

/// The memory of a request.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RequestSize {
    /// The total size.
    pub(crate) bytes: usize,
    /// The size of the parts that aren't charged separately. Long messages and tensors are charged
    /// by their owners.
    uncharged: usize,
}

impl RequestSize {
    /// The memory that an undecoded message uses.
    pub(crate) const fn of_message(bytes: usize) -> Self {
        let is_small = bytes <= MemoryAccount::SMALL_BYTES_MAX;
        Self { bytes, uncharged: if is_small { bytes } else { 0 } }
    }

    /// The memory used by a request that arrived as a message of `message_bytes`. Typed elements
    /// may occupy eight times as much memory as in the message, and small inputs, outputs and
    /// parameters even more.
    pub(crate) fn new(message_bytes: usize, request: &InferenceRequest) -> Self {
        let InferenceRequest { inputs, outputs, parameters, .. } = request;
        let parts = size_of_val(inputs.as_slice())
            .saturating_add(size_of_val(outputs.as_slice()))
            .saturating_add(size_of_val(parameters.as_slice()));
        let (mut decoded, mut uncharged) = (parts, parts);
        for input in inputs {
            decoded = decoded.saturating_add(input.data.len());
            if !input.data.is_charged() {
                uncharged = uncharged.saturating_add(input.data.len());
            }
        }
        let message = Self::of_message(message_bytes);
        Self {
            bytes: message.bytes.max(decoded).saturating_add(OVERHEAD_BYTES),
            uncharged: message.uncharged.max(uncharged).saturating_add(OVERHEAD_BYTES),
        }
    }
}

/// A request in progress. It counts from its beginning until its sink is dropped, even if its call
/// was cancelled long before.
pub(crate) struct RequestCharge {
    budget: Arc<MemoryBudget>,
    bytes: usize,
    /// The bytes charged to the account, excluding the parts that are charged separately.
    charged: usize,
    kind: CallKind,
}

impl RequestCharge {
    /// Counts a request, and charges the parts that aren't charged separately.
    ///
    /// # Errors
    ///
    /// [`MemoryLimitExceeded`] if the memory limit leaves no room for the request.
    pub(crate) fn new(
        budget: Arc<MemoryBudget>,
        size: RequestSize,
        kind: CallKind,
    ) -> Result<Self, MemoryLimitExceeded> {
        budget.account().charge_unguarded(size.uncharged)?;
        Ok(Self::begin(budget, size.bytes, size.uncharged, kind))
    }

    /// Counts a refused request and charges nothing.
    pub(crate) fn of_refused(budget: Arc<MemoryBudget>, size: RequestSize, kind: CallKind) -> Self {
        Self::begin(budget, size.bytes, 0, kind)
    }

    fn begin(budget: Arc<MemoryBudget>, bytes: usize, charged: usize, kind: CallKind) -> Self {
        budget.charge_request(bytes, kind);
        Self { budget, bytes, charged, kind }
    }

    /// The budget of the request's connection.
    pub(crate) const fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }
}

impl Drop for RequestCharge {
    fn drop(&mut self) {
        if self.charged > 0 {
            self.budget.account().release(self.charged);
        }
        self.budget.release_request(self.bytes, self.kind);
    }
}

/// The received part of an incomplete message.
pub(crate) struct ArrivalCharge {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl ArrivalCharge {
    pub(crate) const fn new(budget: Arc<MemoryBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Counts more bytes.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ArrivalCharge::set`].
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        self.set(self.bytes.saturating_add(bytes))
    }

    /// Sets the counted size to `bytes`.
    ///
    /// # Errors
    ///
    /// `RESOURCE_EXHAUSTED` if `bytes` and the other messages exceed the limit together. A single
    /// message may always reach the maximum message length.
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
