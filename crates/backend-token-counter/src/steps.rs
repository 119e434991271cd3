//! How many tokens each request has had.

use std::collections::HashMap;

use galatea_infer::{CancelToken, PendingRequest, Status};
use galatea_tensor::Buffer;

use crate::interface::StateNames;

/// Where the numbers are kept.
#[derive(Debug)]
pub(crate) enum Steps {
    /// With the sequence: the server brings them along and takes them back.
    WithSequence(StateNames),
    /// Here, by the request's name in the server: correlation IDs are the
    /// clients', who may give several requests the same. A request stays with
    /// its instance.
    Here(HashMap<u64, Entry>),
}

#[derive(Debug)]
pub(crate) struct Entry {
    done: u32,
    /// The request's. One that is cancelled between two executions does not
    /// come back, and nobody says so.
    cancel: CancelToken,
}

impl Steps {
    /// Nothing has been counted yet.
    pub(crate) fn new(state: Option<StateNames>) -> Self {
        state.map_or_else(|| Self::Here(HashMap::new()), Self::WithSequence)
    }

    /// How many tokens the request has had.
    pub(crate) fn done(&mut self, request: &PendingRequest) -> Result<u32, Status> {
        let step = request.step().ok_or_else(|| unknown("it is no step of a sequence"))?;
        if step.flags.start {
            if let Self::Here(entries) = self {
                entries.retain(|_, entry| !entry.cancel.is_cancelled());
            }
            return Ok(0);
        }
        match self {
            Self::WithSequence(state) => {
                let input = request.request().input(&state.input);
                let number = input.and_then(|input| scalar(&input.data));
                number
                    .and_then(|number| u32::try_from(number).ok())
                    .ok_or_else(|| unknown("its state is not there"))
            }
            Self::Here(entries) => entries
                .get(&step.key)
                .map(|entry| entry.done)
                .ok_or_else(|| unknown("it was not executed before")),
        }
    }

    /// Notes how many tokens the request has had, before it is given back.
    pub(crate) fn keep(&mut self, request: &mut PendingRequest, done: u32) -> Result<(), Status> {
        let step = request.step().ok_or_else(|| unknown("it is no step of a sequence"))?;
        match self {
            Self::WithSequence(state) => {
                let incoming = step.states.iter().find(|one| *one.output_name == *state.output);
                let shape = incoming.map(|state| state.shape.clone());
                let shape = shape.ok_or_else(|| unknown("its state is not there"))?;
                let data = Buffer::from_vec(done.to_le_bytes().to_vec());
                request.update_state(&state.output, shape, data)
            }
            Self::Here(entries) => {
                let cancel = request.request().cancel.clone();
                entries.insert(step.key, Entry { done, cancel });
                Ok(())
            }
        }
    }

    /// The request does not come back.
    pub(crate) fn forget(&mut self, request: &PendingRequest) {
        if let (Self::Here(entries), Some(step)) = (self, request.step()) {
            entries.remove(&step.key);
        }
    }

    /// How many requests are remembered here.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        match self {
            Self::WithSequence(_) => 0,
            Self::Here(entries) => entries.len(),
        }
    }
}

/// The only element of an INT32 tensor.
pub(crate) fn scalar(data: &Buffer) -> Option<i32> {
    let bytes = data.host()?.as_ref().try_into().ok()?;
    Some(i32::from_le_bytes(bytes))
}

fn unknown(why: &str) -> Status {
    Status::internal(format!("the number of the request's next token is unknown: {why}"))
}
