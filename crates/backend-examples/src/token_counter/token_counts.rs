//! The number of tokens that each request has received.

use std::collections::HashMap;

use galatea_infer::{CancelToken, PendingRequest, Status};
use galatea_tensor::Buffer;

use crate::token_counter::interface::StateNames;

/// Stores the number of tokens that each request has received.
#[derive(Debug)]
pub(crate) enum TokenCounts {
    /// In the implicit state of the sequences, which arrives as an input with each request and is
    /// returned with it.
    ImplicitState(StateNames),
    /// In the instance, indexed by the scheduler's key, because clients choose correlation IDs and
    /// may use the same one for several requests. A request stays on its instance.
    Instance(HashMap<u64, TokenCount>),
}

#[derive(Debug)]
pub(crate) struct TokenCount {
    done: u32,
    /// The request's cancel token. A request that is cancelled between two executions doesn't
    /// return, and the instance isn't notified.
    cancel: CancelToken,
}

impl TokenCounts {
    /// Creates a store without requests.
    pub(crate) fn new(state: Option<StateNames>) -> Self {
        state.map_or_else(|| Self::Instance(HashMap::new()), Self::ImplicitState)
    }

    /// The number of tokens that the request has received. The start of a sequence also removes
    /// cancelled requests' counts.
    pub(crate) fn get(&mut self, request: &PendingRequest) -> Result<u32, Status> {
        let step = request.sequence().ok_or_else(|| unknown("it is no step of a sequence"))?;
        if step.flags.start {
            if let Self::Instance(counts) = self {
                counts.retain(|_, count| !count.cancel.is_cancelled());
            }
            return Ok(0);
        }
        match self {
            Self::ImplicitState(state) => {
                let input = request.request().input(&state.input);
                let count = input.and_then(|input| read_scalar(&input.data));
                count
                    .and_then(|count| u32::try_from(count).ok())
                    .ok_or_else(|| unknown("its state is not there"))
            }
            Self::Instance(counts) => counts
                .get(&step.key)
                .map(|count| count.done)
                .ok_or_else(|| unknown("it was not executed before")),
        }
    }

    /// Stores the number of tokens that the request has received, before it is rescheduled.
    pub(crate) fn set(&mut self, request: &mut PendingRequest, done: u32) -> Result<(), Status> {
        let step = request.sequence().ok_or_else(|| unknown("it is no step of a sequence"))?;
        match self {
            Self::ImplicitState(state) => {
                let incoming = step.states.iter().find(|one| *one.output_name == *state.output);
                let shape = incoming.map(|state| state.shape.clone());
                let shape = shape.ok_or_else(|| unknown("its state is not there"))?;
                let data = Buffer::from_vec(done.to_le_bytes().to_vec());
                request.update_state(&state.output, shape, data)
            }
            Self::Instance(counts) => {
                let cancel = request.request().cancel.clone();
                counts.insert(step.key, TokenCount { done, cancel });
                Ok(())
            }
        }
    }

    /// Removes the count of a request that will not return.
    pub(crate) fn remove(&mut self, request: &PendingRequest) {
        if let (Self::Instance(counts), Some(step)) = (self, request.sequence()) {
            counts.remove(&step.key);
        }
    }

    /// The number of counts in the instance.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::ImplicitState(_) => 0,
            Self::Instance(counts) => counts.len(),
        }
    }
}

/// The only element in an INT32 tensor; `None` unless there is exactly one.
pub(crate) fn read_scalar(data: &Buffer) -> Option<i32> {
    let bytes = data.host_bytes()?.as_ref().try_into().ok()?;
    Some(i32::from_le_bytes(bytes))
}

fn unknown(why: &str) -> Status {
    Status::internal(format!("the number of the request's next token is unknown: {why}"))
}
