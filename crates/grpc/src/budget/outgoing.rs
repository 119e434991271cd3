//! Responses that have been created but not written yet.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Buf;
use galatea_codec_grpc::MessageChunks;
use galatea_gate::ledger::MemoryLimitExceeded;

use super::memory_budget::{CallKind, MemoryBudget};
use super::response_pool::ResponsePool;
use super::stream_budget::StreamBudget;
use crate::call_trace::{CallTrace, SendTrace};
use crate::failure::Failure;

/// The bytes that a response uses in addition to its message: frames, lists and reference counts.
/// The estimate is deliberately high, so that many tiny responses count as well.
const OVERHEAD_BYTES: usize = 512;

/// The budget to which a response is charged.
#[derive(Clone)]
pub(crate) enum ResponseBudget {
    /// The budget of a unary call.
    Call(Arc<MemoryBudget>),
    /// The budget of a stream.
    Stream(Arc<StreamBudget>),
    /// The budget of one stream request.
    Pool(Arc<ResponsePool>),
}

impl ResponseBudget {
    fn connection(&self) -> &MemoryBudget {
        match self {
            Self::Call(budget) => budget,
            Self::Stream(budget) => budget.connection(),
            Self::Pool(pool) => pool.stream().connection(),
        }
    }

    fn charge(&self, bytes: usize) -> bool {
        match self {
            Self::Call(budget) => budget.charge_response(bytes, CallKind::Unary),
            Self::Stream(budget) => budget.charge_response(bytes),
            Self::Pool(pool) => pool.charge_response(bytes),
        }
    }

    fn release(&self, bytes: usize) {
        match self {
            Self::Call(budget) => budget.release_response(bytes, CallKind::Unary),
            Self::Stream(budget) => budget.release_response(bytes),
            Self::Pool(pool) => pool.release_response(bytes),
        }
    }
}

/// A response on its way out. It is counted until `h2` drops it, because it has been written, its
/// call was reset or the connection has ended.
pub(crate) struct Outgoing {
    message: MessageChunks,
    bytes: usize,
    /// The bytes charged to the account, excluding the parts that are charged separately.
    charged: usize,
    budget: ResponseBudget,
    /// Records when the response is written.
    trace: Option<SendTrace>,
}

/// The reason why a response is dropped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum DroppedResponse {
    /// The client does not read earlier responses.
    Overrun,
    /// The memory limit leaves no room for the response.
    Exhausted(MemoryLimitExceeded),
}

impl From<DroppedResponse> for Failure {
    fn from(dropped: DroppedResponse) -> Self {
        match dropped {
            DroppedResponse::Overrun => Self::overrun(),
            DroppedResponse::Exhausted(exhausted) => exhausted.into(),
        }
    }
}

impl Outgoing {
    /// Counts and charges `message`. If unwritten responses keep too much other memory alive, the
    /// message is copied.
    ///
    /// # Errors
    ///
    /// Returns an error if the response is dropped because too many bytes are unwritten or held.
    pub(crate) fn new(
        message: MessageChunks,
        budget: ResponseBudget,
    ) -> Result<Self, DroppedResponse> {
        let bytes = message.remaining().saturating_add(OVERHEAD_BYTES);
        let charged = bytes.saturating_sub(message.charged_bytes());
        let account = budget.connection().account();
        account.charge_unguarded(charged).map_err(DroppedResponse::Exhausted)?;
        // Only a counted value may be dropped as an `Outgoing`.
        if !budget.charge(bytes) {
            account.release(charged);
            return Err(DroppedResponse::Overrun);
        }
        let retained = message.extra_retained_bytes();
        if retained == 0 || budget.connection().charge_retained(retained) {
            return Ok(Self { message, bytes, charged, budget, trace: None });
        }
        let message = message.into_owned();
        Ok(Self { message, bytes, charged, budget, trace: None })
    }

    /// Adds a trace that records when the response is sent.
    pub(crate) fn traced(mut self, trace: Option<&Arc<CallTrace>>) -> Self {
        self.trace = trace.cloned().map(SendTrace::begin);
        self
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        drop(self.trace.take());
        let retained = self.message.extra_retained_bytes();
        if retained > 0 {
            self.budget.connection().release_retained(retained);
        }
        self.budget.connection().account().release(self.charged);
        self.budget.release(self.bytes);
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::Bytes;
    use galatea_codec_grpc::encode_infer_response;
    use galatea_gate::ledger::MemoryAccount;
    use galatea_infer::{InferenceResponse, OutputTensor};
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;
    use crate::budget::BudgetLimits;

    const PART_BYTES: usize = 4000;

    fn response(budget: &Arc<MemoryBudget>, whole: &Bytes) -> Outgoing {
        let part = whole.slice(..PART_BYTES);
        let output = OutputTensor {
            name: "O".into(),
            datatype: DataType::Uint8,
            shape: Shape::new(&[i64::try_from(PART_BYTES).unwrap()]).unwrap(),
            data: Buffer::from_bytes(part).with_retained_bytes(whole.len()),
        };
        let response = InferenceResponse {
            model_name: "m".into(),
            model_version: 1,
            id: String::new(),
            parameters: Default::default(),
            outputs: vec![output],
        };
        let message = encode_infer_response(&response).unwrap();
        Outgoing::new(message, ResponseBudget::Call(budget.clone())).unwrap()
    }

    #[test]
    fn parts_of_large_buffers_are_copied_when_much_is_unwritten() {
        let limits = BudgetLimits {
            call_unwritten_bytes_max: 1 << 30,
            unwritten_bytes_max: 1 << 30,
            unwritten_bytes_dropped: 1 << 30,
            retained_bytes_max: 200_000,
            request_bytes_max: 1 << 30,
            arriving_bytes_max: 1 << 30,
        };
        let account = Arc::new(MemoryAccount::unlimited());
        let budget = Arc::new(MemoryBudget::new(limits, account, Waker::noop().clone()));
        let wholes: Vec<Bytes> = (0..4).map(|value| Bytes::from(vec![value; 100_000])).collect();
        let mut responses: Vec<Outgoing> =
            wholes.iter().map(|whole| response(&budget, whole)).collect();
        let unique = |wholes: &[Bytes]| wholes.iter().map(Bytes::is_unique).collect::<Vec<_>>();
        assert_eq!(unique(&wholes), [false, false, true, true]);
        // A written response makes room.
        responses.remove(0);
        let last = response(&budget, &wholes[0]);
        assert_eq!(unique(&wholes), [false, false, true, true]);
        // Copied responses have the same bytes.
        responses.insert(0, last);
        for (value, mut response) in (0..).zip(responses) {
            let message = response.copy_to_bytes(response.remaining());
            assert!(message.ends_with(&[value; PART_BYTES]));
            assert!(message.len() < PART_BYTES + 50);
        }
        assert_eq!(unique(&wholes), [true; 4]);
        assert!(budget.charge_retained(200_000));
    }
}
