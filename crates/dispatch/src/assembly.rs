//! The last step before a backend: the rows of a sequence batch become requests
//! that carry their sequence's controls and states among their inputs.
//!
//! It runs on the thread that executes the batch, so that the dispatcher's lock
//! is not held for it. A model without a sequence batcher has no assembly.

use std::sync::Arc;

use galatea_backend::ModelFiles;
use galatea_config::{ControlKind, FalseTrue, ModelSpec, SchedulingChoice, SequenceBatching};
use galatea_infer::{
    CorrelationId, InferenceRequest, InputTensor, PendingRequest, SequenceContext, SequenceFlags,
    SequenceOwner, StateTensor, Status,
};
use galatea_policy::RequestKey;
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::initial_state::initial_states;

/// A batch as the scheduler closed it, on its way to an instance.
#[derive(Debug)]
pub(crate) enum Work {
    /// Requests that are ready to be executed.
    Requests(Vec<PendingRequest>),
    /// The rows of a sequence batch; `None` is padding.
    Rows(Vec<Option<Row>>),
}

impl Work {
    /// What its inputs take, without those that a sequence adds.
    pub(crate) fn input_bytes(&self) -> usize {
        let size = |request: &PendingRequest| -> usize {
            request.request().inputs.iter().map(|input| input.data.len()).sum()
        };
        match self {
            Self::Requests(requests) => requests.iter().map(size).sum(),
            Self::Rows(rows) => rows.iter().flatten().map(|row| size(&row.request)).sum(),
        }
    }
}

/// The next request of a sequence.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) request: PendingRequest,
    pub(crate) key: RequestKey,
    /// Whether its sequence begins or ends with it.
    pub(crate) flags: SequenceFlags,
    /// What the sequence's previous request left; void if the sequence begins.
    pub(crate) states: Vec<StateTensor>,
}

/// Makes requests of rows, for one model.
#[derive(Debug)]
pub(crate) struct Assembly {
    controls: Vec<Control>,
    /// `[1,1]` in models with batches, `[1]` in others.
    control_shape: Shape,
    /// The states of a sequence that begins.
    initial: Vec<StateTensor>,
    iterative: bool,
}

/// An input that says something about the sequence.
#[derive(Debug)]
struct Control {
    name: String,
    datatype: DataType,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Start(Choice),
    Ready(Choice),
    End(Choice),
    CorrelationId,
}

/// The two contents of a control, made once.
#[derive(Debug)]
struct Choice {
    when_false: Buffer,
    when_true: Buffer,
}

impl Choice {
    fn new(values: &FalseTrue) -> Self {
        Self {
            when_false: Buffer::from_vec(values.when_false.clone()),
            when_true: Buffer::from_vec(values.when_true.clone()),
        }
    }

    fn of(&self, value: bool) -> Buffer {
        if value { self.when_true.clone() } else { self.when_false.clone() }
    }
}

impl Assembly {
    /// `None` for a model without a sequence batcher.
    ///
    /// # Errors
    ///
    /// If a file with an initial state can't be used.
    pub(crate) fn new(spec: &ModelSpec, files: &dyn ModelFiles) -> Result<Option<Self>, Status> {
        match &spec.scheduling {
            SchedulingChoice::Default
            | SchedulingChoice::Dynamic(_)
            | SchedulingChoice::Ensemble(_) => Ok(None),
            SchedulingChoice::Sequence(batching) => {
                let initial = initial_states(spec, files)?;
                Self::of(spec, batching, initial).map(Some)
            }
        }
    }

    fn of(
        spec: &ModelSpec,
        batching: &SequenceBatching,
        initial: Vec<StateTensor>,
    ) -> Result<Self, Status> {
        let control_dims: &[i64] = if spec.max_batch_size > 0 { &[1, 1] } else { &[1] };
        let controls = batching.controls.iter().map(|control| Control {
            name: control.name.clone(),
            datatype: control.datatype,
            content: match &control.kind {
                ControlKind::Start(values) => Content::Start(Choice::new(values)),
                ControlKind::Ready(values) => Content::Ready(Choice::new(values)),
                ControlKind::End(values) => Content::End(Choice::new(values)),
                ControlKind::CorrelationId => Content::CorrelationId,
            },
        });
        Ok(Self {
            controls: controls.collect(),
            control_shape: Shape::new(control_dims)
                .map_err(|error| Status::internal(error.to_string()))?,
            initial,
            iterative: batching.iterative,
        })
    }

    /// How many inputs a request gets in addition to its own.
    pub(crate) fn added_inputs(&self) -> usize {
        self.controls.len() + self.initial.len()
    }

    /// Makes requests of the rows, in their order.
    pub(crate) fn assemble(
        &self,
        rows: Vec<Option<Row>>,
        owner: &Arc<dyn SequenceOwner>,
    ) -> Vec<PendingRequest> {
        let rows: Vec<Option<PendingRequest>> =
            rows.into_iter().map(|row| row.map(|row| self.begin(row, owner))).collect();
        let padding = self.padding(&rows).unwrap_or_default();
        rows.into_iter()
            .map(|row| row.unwrap_or_else(|| PendingRequest::padding(padding.clone())))
            .collect()
    }

    /// Makes the request a step of its sequence.
    fn begin(&self, row: Row, owner: &Arc<dyn SequenceOwner>) -> PendingRequest {
        let Row { mut request, key, flags, mut states } = row;
        // A sequence that goes on has its states; should they be missing, it is
        // better to begin anew than to leave inputs out.
        if flags.start || states.len() != self.initial.len() {
            states.clone_from(&self.initial);
        }
        let correlation_id = request.request().correlation_id.clone();
        let inputs = request.inputs_mut();
        inputs.reserve(self.added_inputs());
        inputs.extend(self.controls(Some((&correlation_id, flags))));
        inputs.extend(states.iter().map(state_input));
        request.begin_step(Box::new(SequenceContext {
            correlation_id,
            flags,
            states,
            owner: owner.clone(),
            key: key.0,
            iterative: self.iterative,
        }));
        request
    }

    /// What padding rows are made of, if there are any: the first real row's
    /// inputs, which have the right types and shapes.
    fn padding(&self, rows: &[Option<PendingRequest>]) -> Option<InferenceRequest> {
        if rows.iter().all(Option::is_some) {
            return None;
        }
        let pattern = rows.iter().flatten().next()?;
        let request = pattern.request();
        let own_inputs = request.inputs.len().saturating_sub(self.added_inputs());
        let mut inputs: Vec<InputTensor> =
            request.inputs.iter().take(own_inputs).cloned().collect();
        inputs.extend(self.controls(None));
        // The initial states if they fit: a sequence's own are in a row that is
        // not its own only where nothing else has the right shape.
        let states = states(pattern);
        let fits =
            states.iter().zip(&self.initial).all(|(own, initial)| own.shape == initial.shape);
        let states = if fits { &self.initial } else { states };
        inputs.extend(states.iter().map(state_input));
        Some(InferenceRequest {
            model_name: request.model_name.clone(),
            model_version: request.model_version,
            inputs,
            ..InferenceRequest::default()
        })
    }

    /// The control inputs of a row; of padding if there is no step.
    fn controls<'a>(
        &'a self,
        step: Option<(&'a CorrelationId, SequenceFlags)>,
    ) -> impl Iterator<Item = InputTensor> + use<'a> {
        self.controls.iter().map(move |control| InputTensor {
            name: control.name.clone(),
            datatype: control.datatype,
            shape: self.control_shape.clone(),
            data: match &control.content {
                Content::Start(choice) => choice.of(step.is_some_and(|(_, flags)| flags.start)),
                Content::Ready(choice) => choice.of(step.is_some()),
                Content::End(choice) => choice.of(step.is_some_and(|(_, flags)| flags.end)),
                Content::CorrelationId => {
                    let id = step.map_or(&CorrelationId::None, |(id, _)| id);
                    Buffer::from_vec(correlation_id_element(id, control.datatype))
                }
            },
        })
    }
}

fn state_input(state: &StateTensor) -> InputTensor {
    InputTensor {
        name: String::from(&*state.input_name),
        datatype: state.datatype,
        shape: state.shape.clone(),
        data: state.data.clone(),
    }
}

/// The states that a request begins with.
fn states(request: &PendingRequest) -> &[StateTensor] {
    request.sequence().map_or(&[], |step| &step.states)
}

/// One element of a control: the low bytes of a number, or a string.
fn correlation_id_element(id: &CorrelationId, datatype: DataType) -> Vec<u8> {
    let number = match id {
        CorrelationId::Number(number) => *number,
        // Admission lets no string through to a number.
        CorrelationId::None | CorrelationId::Text(_) => 0,
    };
    let number = number.to_le_bytes();
    if let Some(low) = datatype.byte_size().and_then(|size| number.get(..size)) {
        return low.to_vec();
    }
    let text = match id {
        CorrelationId::None => String::new(),
        // Only an iterative sequence that has its number from the server.
        CorrelationId::Number(number) => number.to_string(),
        CorrelationId::Text(text) => text.clone(),
    };
    let mut element = Vec::with_capacity(text.len() + 4);
    let framed = push_bytes_element(&mut element, text.as_bytes());
    debug_assert!(framed.is_ok(), "doors refuse long correlation IDs");
    element
}
