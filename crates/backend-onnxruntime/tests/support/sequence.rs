//! A stand-in for the engine, for models that use the sequence batcher.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};

use galatea_infer::{
    CorrelationId, InferenceRequest, InferenceResponse, InputTensor, PendingRequest, Reply,
    SequenceContext, SequenceFlags, SequenceReleaseHook, StateTensor, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

use super::{TestModel, only_reply, pending};

/// Stores sequences' states by sequence number.
#[derive(Debug, Default)]
pub(crate) struct StateStore {
    initial: Vec<StateTensor>,
    states: Mutex<BTreeMap<u64, Vec<StateTensor>>>,
}

/// One row of a batch.
pub(crate) struct Row {
    pending: PendingRequest,
    replies: Option<mpsc::Receiver<Reply>>,
}

impl SequenceReleaseHook for StateStore {
    fn released(&self, key: u64, states: Vec<StateTensor>) {
        self.states.lock().unwrap().insert(key, states);
    }

    fn rescheduled(&self, _: u64, _: PendingRequest, _: Vec<StateTensor>) {
        panic!("these sequences are not iterative");
    }
}

impl StateStore {
    /// Creates a store whose sequences start with these states.
    pub(crate) fn new(initial: Vec<StateTensor>) -> Arc<Self> {
        Arc::new(Self { initial, ..Self::default() })
    }

    /// A sequence's states.
    pub(crate) fn states(&self, sequence: u64) -> Vec<StateTensor> {
        let states = self.states.lock().unwrap();
        states.get(&sequence).unwrap_or(&self.initial).clone()
    }

    /// The dimensions and bytes of a sequence's only state.
    pub(crate) fn state(&self, sequence: u64) -> (Vec<i64>, Vec<u8>) {
        let [state] = self.states(sequence).try_into().unwrap();
        (state.shape.dims().to_vec(), state.data.host_bytes().unwrap().to_vec())
    }

    /// The address of a sequence's only state.
    pub(crate) fn address(&self, sequence: u64) -> usize {
        let [state] = self.states(sequence).try_into().unwrap();
        state.data.host_bytes().unwrap().as_ptr().addr()
    }

    /// The next request of a sequence.
    pub(crate) fn row(
        self: &Arc<Self>,
        loaded: &TestModel,
        sequence: u64,
        mut request: InferenceRequest,
    ) -> Row {
        let states = self.states.lock().unwrap().remove(&sequence);
        let states = states.unwrap_or_else(|| self.initial.clone());
        request.inputs.extend(states.iter().map(input));
        let (mut pending, replies) = pending(request, &loaded.host);
        pending.begin_sequence_step(Box::new(SequenceContext {
            correlation_id: CorrelationId::Number(sequence),
            flags: SequenceFlags::default(),
            states,
            owner: self.clone(),
            key: sequence,
            iterative: false,
        }));
        Row { pending, replies: Some(replies) }
    }

    /// A padding row with inputs like those of `request`.
    pub(crate) fn padding(&self, mut request: InferenceRequest) -> Row {
        request.inputs.extend(self.initial.iter().map(input));
        Row { pending: PendingRequest::new_padding(request), replies: None }
    }
}

fn input(state: &StateTensor) -> InputTensor {
    let StateTensor { input_name, datatype, shape, data, .. } = state.clone();
    InputTensor { name: input_name.to_string(), datatype, shape, data }
}

impl TestModel {
    /// Executes a batch and returns the results in batch order; padding has no result.
    pub(crate) fn execute_rows(
        &mut self,
        rows: Vec<Row>,
    ) -> Vec<Option<Result<InferenceResponse, Status>>> {
        let (pending, replies): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|row| (row.pending, row.replies)).unzip();
        self.instance.execute(pending).unwrap();
        replies.iter().map(|replies| replies.as_ref().map(only_reply)).collect()
    }

    /// Executes a batch without padding. All requests must succeed.
    pub(crate) fn steps(&mut self, rows: Vec<Row>) -> Vec<InferenceResponse> {
        self.execute_rows(rows).into_iter().map(|result| result.unwrap().unwrap()).collect()
    }
}

/// A state that is passed from `STATE_OUT` to `STATE_IN`.
pub(crate) fn state(datatype: DataType, dims: &[i64], data: Vec<u8>) -> StateTensor {
    named_state(("STATE_IN", "STATE_OUT"), datatype, dims, data)
}

pub(crate) fn named_state(
    (input_name, output_name): (&str, &str),
    datatype: DataType,
    dims: &[i64],
    data: Vec<u8>,
) -> StateTensor {
    StateTensor {
        input_name: Arc::from(input_name),
        output_name: Arc::from(output_name),
        datatype,
        shape: Shape::new(dims).unwrap(),
        data: Buffer::from_vec(data),
    }
}
