//! Adds a sequence's controls and states to the inputs of its requests. This is the last step
//! before the backend.
//!
//! This code runs on the thread that executes the batch, without holding the dispatcher's lock.

use std::sync::Arc;

use galatea_backend::ModelFiles;
use galatea_config::{ControlKind, ControlValues, ModelSpec, SchedulingChoice, SequenceBatching};
use galatea_infer::{
    CorrelationId, InferenceRequest, InputTensor, PendingRequest, SequenceContext, SequenceFlags,
    SequenceReleaseHook, StateTensor, Status,
};
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};

use super::SequenceRow;
use super::initial_state::initial_states;

/// Turns the rows of a model's sequence batches into requests for its backend.
#[derive(Debug)]
pub(crate) struct SequenceAssembler {
    controls: Vec<ControlInput>,
    /// The shape of controls: `[1,1]` in models with batching, `[1]` in others.
    control_shape: Shape,
    /// The states for a new sequence.
    initial: Vec<StateTensor>,
    is_iterative: bool,
}

/// A control input from the configuration.
#[derive(Debug)]
struct ControlInput {
    name: String,
    datatype: DataType,
    content: ControlContent,
}

#[derive(Debug)]
enum ControlContent {
    Start(FlagBuffers),
    Ready(FlagBuffers),
    End(FlagBuffers),
    CorrelationId,
}

/// The two possible contents of a flag control, allocated once.
#[derive(Debug)]
struct FlagBuffers {
    when_false: Buffer,
    when_true: Buffer,
}

impl FlagBuffers {
    fn new(values: &ControlValues) -> Self {
        Self {
            when_false: Buffer::from_vec(values.when_false.clone()),
            when_true: Buffer::from_vec(values.when_true.clone()),
        }
    }

    fn select(&self, value: bool) -> Buffer {
        if value { self.when_true.clone() } else { self.when_false.clone() }
    }
}

impl SequenceAssembler {
    /// Creates an assembler; `None` for a model without a sequence batcher.
    ///
    /// # Errors
    ///
    /// Returns an error if an initial-state file can't be used.
    pub(crate) fn new(spec: &ModelSpec, files: &dyn ModelFiles) -> Result<Option<Self>, Status> {
        match &spec.scheduling {
            SchedulingChoice::Default
            | SchedulingChoice::Dynamic(_)
            | SchedulingChoice::Ensemble(_) => Ok(None),
            SchedulingChoice::Sequence(batching) => {
                let initial = initial_states(spec, files)?;
                Self::with_states(spec, batching, initial).map(Some)
            }
        }
    }

    fn with_states(
        spec: &ModelSpec,
        batching: &SequenceBatching,
        initial: Vec<StateTensor>,
    ) -> Result<Self, Status> {
        let control_dims: &[i64] = if spec.max_batch_size > 0 { &[1, 1] } else { &[1] };
        let controls = batching.controls.iter().map(|control| ControlInput {
            name: control.name.clone(),
            datatype: control.datatype,
            content: match &control.kind {
                ControlKind::Start(values) => ControlContent::Start(FlagBuffers::new(values)),
                ControlKind::Ready(values) => ControlContent::Ready(FlagBuffers::new(values)),
                ControlKind::End(values) => ControlContent::End(FlagBuffers::new(values)),
                ControlKind::CorrelationId => ControlContent::CorrelationId,
            },
        });
        Ok(Self {
            controls: controls.collect(),
            control_shape: Shape::new(control_dims)
                .map_err(|error| Status::internal(error.to_string()))?,
            initial,
            is_iterative: batching.iterative,
        })
    }

    /// The number of inputs added to each request.
    pub(crate) fn added_input_count(&self) -> usize {
        self.controls.len() + self.initial.len()
    }

    /// Turns rows into requests, in the same order. The backend releases each request to `owner`.
    pub(crate) fn assemble(
        &self,
        rows: Vec<Option<SequenceRow>>,
        owner: &Arc<dyn SequenceReleaseHook>,
    ) -> Vec<PendingRequest> {
        let rows: Vec<Option<PendingRequest>> =
            rows.into_iter().map(|row| row.map(|row| self.begin_step(row, owner))).collect();
        let padding = self.padding(&rows).unwrap_or_default();
        rows.into_iter()
            .map(|row| row.unwrap_or_else(|| PendingRequest::new_padding(padding.clone())))
            .collect()
    }

    /// Turns the request into a step of its sequence.
    fn begin_step(&self, row: SequenceRow, owner: &Arc<dyn SequenceReleaseHook>) -> PendingRequest {
        let SequenceRow { mut request, key, flags, mut states } = row;
        // A continuing sequence has states. If they are missing, initial states are better than
        // missing inputs.
        if flags.start || states.len() != self.initial.len() {
            states.clone_from(&self.initial);
        }
        let correlation_id = request.request().correlation_id.clone();
        let inputs = request.inputs_mut();
        inputs.reserve(self.added_input_count());
        inputs.extend(self.control_inputs(Some((&correlation_id, flags))));
        inputs.extend(states.iter().map(state_input));
        request.begin_sequence_step(Box::new(SequenceContext {
            correlation_id,
            flags,
            states,
            owner: owner.clone(),
            key: key.0,
            iterative: self.is_iterative,
        }));
        request
    }

    /// The request used for padding rows; `None` if there are none. It has the inputs of the first
    /// real row, which have valid types and shapes.
    fn padding(&self, rows: &[Option<PendingRequest>]) -> Option<InferenceRequest> {
        if rows.iter().all(Option::is_some) {
            return None;
        }
        let template = rows.iter().flatten().next()?;
        let request = template.request();
        let own_inputs = request.inputs.len().saturating_sub(self.added_input_count());
        let mut inputs: Vec<InputTensor> =
            request.inputs.iter().take(own_inputs).cloned().collect();
        inputs.extend(self.control_inputs(None));
        // The initial states are used if they fit. Another sequence's states are used only if
        // nothing else has the right shape.
        let states = states(template);
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

    /// A row's control inputs. Without a sequence step, these are the control inputs for padding.
    fn control_inputs<'a>(
        &'a self,
        step: Option<(&'a CorrelationId, SequenceFlags)>,
    ) -> impl Iterator<Item = InputTensor> + use<'a> {
        self.controls.iter().map(move |control| InputTensor {
            name: control.name.clone(),
            datatype: control.datatype,
            shape: self.control_shape.clone(),
            data: match &control.content {
                ControlContent::Start(buffers) => {
                    buffers.select(step.is_some_and(|(_, flags)| flags.start))
                }
                ControlContent::Ready(buffers) => buffers.select(step.is_some()),
                ControlContent::End(buffers) => {
                    buffers.select(step.is_some_and(|(_, flags)| flags.end))
                }
                ControlContent::CorrelationId => {
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

/// The states that the request receives as inputs.
fn states(request: &PendingRequest) -> &[StateTensor] {
    request.sequence().map_or(&[], |step| &step.states)
}

/// The content of a correlation ID control: the low bytes of a number, or a string.
fn correlation_id_element(id: &CorrelationId, datatype: DataType) -> Vec<u8> {
    let number = match id {
        CorrelationId::Number(number) => *number,
        // Admission refuses a string if the control is a number.
        CorrelationId::None | CorrelationId::Text(_) => 0,
    };
    let number = number.to_le_bytes();
    if let Some(low) = datatype.byte_size().and_then(|size| number.get(..size)) {
        return low.to_vec();
    }
    let text = match id {
        CorrelationId::None => String::new(),
        // This is always an iterative sequence, whose number was assigned by the server.
        CorrelationId::Number(number) => number.to_string(),
        CorrelationId::Text(text) => text.clone(),
    };
    let mut element = Vec::with_capacity(text.len() + 4);
    let framed = push_bytes_element(&mut element, text.as_bytes());
    debug_assert!(framed.is_ok(), "doors refuse long correlation IDs");
    element
}
