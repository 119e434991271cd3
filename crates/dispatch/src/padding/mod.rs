//! Padding, which lets requests of unequal lengths share a batch.
//!
//! Admission determines a request's length, and creates its mask if the client sends none. The
//! scheduler decides which requests share a batch. Before a backend receives the batch, the inputs
//! of shorter requests are padded to the longest (`gather`); their responses are cut back on the
//! way to the client (`cut`).
//!
//! A backend sees requests whose inputs have equal shapes, as it does without padding. Padding
//! therefore works for all backends, both those that join the requests and those that read them one
//! by one.
//!
//! The memory for padded inputs is charged to the ledger before it is allocated, until the backend
//! has released it. If the memory limit is reached, the requests are executed one by one, which
//! needs no additional memory.

mod cut;
mod cut_statistics;
mod gather;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use galatea_config::{BatchPaddingSettings, ModelSpec};
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{InferenceRequest, InputTensor, PendingRequest};
use galatea_tensor::{Buffer, Shape};

use self::cut::{CutSink, ResponseCut};
use self::cut_statistics::CutStatistics;
use crate::lane::AssembledBatch;

/// A model's padding plan.
#[derive(Debug)]
pub(crate) struct PaddingPlan {
    spec: BatchPaddingSettings,
}

/// Pads a model's batches.
#[derive(Debug)]
pub(crate) struct BatchPadding {
    plan: PaddingPlan,
    /// The account to which padded inputs are charged.
    account: Arc<MemoryAccount>,
}

/// A request's length for padding purposes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PaddedLength {
    /// All padded inputs have this length.
    Common(u32),
    /// The padded inputs have different lengths, and this is the longest. The request shares a
    /// batch only with requests of the same shapes.
    Mixed(u32),
}

impl PaddedLength {
    /// The length that determines the cost of an execution.
    pub(crate) const fn longest(self) -> u32 {
        match self {
            Self::Common(length) | Self::Mixed(length) => length,
        }
    }
}

impl PaddingPlan {
    /// Creates a plan; `None` for a model whose requests are not padded.
    pub(crate) fn new(spec: &ModelSpec) -> Option<Self> {
        spec.own.padding.clone().map(|spec| Self { spec })
    }

    /// Returns true if the input may be omitted because the server creates it.
    pub(crate) fn makes(&self, input: &str) -> bool {
        self.spec.mask.as_ref().is_some_and(|mask| mask.name == input)
    }

    /// Returns true if the input is padded.
    pub(crate) fn pads(&self, input: &str) -> bool {
        self.spec.inputs.iter().any(|padded| padded.name == input)
    }

    /// Checks that the inputs of an admitted request can be padded. The error states the reason why
    /// they can't.
    pub(crate) fn check(&self, inputs: &[InputTensor]) -> Result<(), String> {
        for input in inputs.iter().filter(|input| self.pads(&input.name)) {
            if input.data.host_bytes().is_none() {
                return Err(format!("input '{}' must be in CPU memory to be padded", input.name));
            }
            if !input.data.host_policy_buffers().is_empty() {
                return Err(format!(
                    "input '{}' has data for host policies, which can't be padded",
                    input.name
                ));
            }
        }
        Ok(())
    }

    /// Creates the mask for an admitted request without one. The mask is all ones, because all of
    /// the request's elements are its own. Returns true if a mask was created.
    pub(crate) fn make_mask(&self, inputs: &mut Vec<InputTensor>) -> bool {
        let Some(mask) = &self.spec.mask else { return false };
        if inputs.iter().any(|input| input.name == mask.name) {
            return false;
        }
        let sized = self.spec.inputs.iter().find_map(|padded| {
            let input = inputs.iter().find(|input| input.name == padded.name)?;
            let dims = input.shape.dims();
            Some([*dims.first()?, *dims.get(padded.axis)?])
        });
        let Some(shape) = sized.and_then(|dims| Shape::new(&dims).ok()) else { return false };
        // The mask has no more elements than an input that is already in memory.
        let Ok(count) = usize::try_from(shape.element_count()) else { return false };
        let data = Buffer::from_vec(mask.one.repeat(count));
        let (name, datatype) = (mask.name.clone(), mask.datatype);
        inputs.push(InputTensor { name, datatype, shape, data });
        true
    }

    /// The length of an admitted request.
    pub(crate) fn length(&self, request: &InferenceRequest) -> PaddedLength {
        let lengths = self.spec.inputs.iter().filter_map(|padded| {
            let size = *request.input(&padded.name)?.shape.dims().get(padded.axis)?;
            Some(u32::try_from(size).unwrap_or(u32::MAX))
        });
        let (mut shortest, mut longest) = (u32::MAX, 0);
        for length in lengths {
            (shortest, longest) = (shortest.min(length), longest.max(length));
        }
        if shortest >= longest {
            PaddedLength::Common(longest)
        } else {
            PaddedLength::Mixed(longest)
        }
    }
}

impl BatchPadding {
    /// Creates the padding; `None` for a model whose requests are not padded.
    pub(crate) fn new(spec: &ModelSpec, account: &Arc<MemoryAccount>) -> Option<Self> {
        PaddingPlan::new(spec).map(|plan| Self { plan, account: account.clone() })
    }

    /// Pads the requests in a batch to the length of the longest.
    pub(crate) fn pad_batch(&self, mut requests: Vec<PendingRequest>) -> AssembledBatch {
        if requests.len() < 2 {
            return AssembledBatch::Together(requests);
        }
        let lengths: Vec<u32> =
            requests.iter().map(|one| self.plan.length(one.request()).longest()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if lengths.iter().all(|length| *length == longest) {
            return AssembledBatch::Together(requests);
        }
        let spec = &self.plan.spec;
        let Some(charges) = self.charge(longest, &requests) else {
            return AssembledBatch::Apart(requests);
        };
        for (input, charge) in spec.inputs.iter().zip(charges) {
            gather::pad(input, longest, &mut requests, charge);
        }
        if !spec.outputs.is_empty() {
            for (request, length) in requests.iter_mut().zip(lengths) {
                if length < longest {
                    let outputs = spec.outputs.clone();
                    let mut statistics = None;
                    request.wrap_observer(|inner| {
                        let observer = CutStatistics::new(inner);
                        statistics = Some(observer.clone());
                        observer
                    });
                    let cut = ResponseCut { outputs, length, padded_length: longest };
                    let sink = |inner| CutSink::boxed(cut, statistics, inner);
                    request.wrap_sender(|sender| sender.wrap(sink));
                }
            }
        }
        AssembledBatch::Together(requests)
    }

    /// Charges the memory for the padded inputs, either for all of them or for none.
    fn charge(&self, length: u32, requests: &[PendingRequest]) -> Option<Vec<MemoryCharge>> {
        let bytes = |input| gather::byte_count(input, length, requests);
        let inputs = self.plan.spec.inputs.iter();
        inputs.map(|input| MemoryCharge::if_there_is_room(&self.account, bytes(input))).collect()
    }
}
