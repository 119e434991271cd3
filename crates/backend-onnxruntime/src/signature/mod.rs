//! Whether a configuration and its model agree, and which tensor is which.

mod check;
mod ragged;
mod sequence;

use std::sync::Arc;

use galatea_config::{BatchInputKind, InputSpec, ModelSpec, OutputSpec};
use galatea_infer::{PendingRequest, Status};
use galatea_tensor::{DataType, Shape};

use crate::api::Session;
pub(crate) use check::not_a_tensor;
use check::{AnySize, Check};

/// What an instance knows of its model's tensors.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) model_name: Arc<str>,
    /// Whether the first dimension is a batch.
    pub(crate) batched: bool,
    /// What requests bring: the configured inputs in their order, then the
    /// controls and states of the sequence batcher.
    pub(crate) inputs: Vec<InputPlan>,
    /// What is made of the shapes of a batch.
    pub(crate) batch_inputs: Vec<BatchInputPlan>,
    /// In the order of their names: so Triton answers.
    pub(crate) outputs: Vec<OutputPlan>,
}

/// An input of requests and the model's input behind it.
#[derive(Debug)]
pub(crate) struct InputPlan {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// The session's number for it.
    pub(crate) index: usize,
    pub(crate) layout: InputLayout,
    /// Whether it is a sequence's state.
    pub(crate) is_state: bool,
}

/// How the tensors of a batch's requests become the model's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLayout {
    /// One behind the other, as rows of one tensor.
    Rows,
    /// The model takes a scalar, where requests bring a shape of ones.
    Scalar,
    /// Ragged: the elements one behind the other, in a single dimension.
    Flat,
}

/// A tensor that is made of the shapes of a batch.
#[derive(Debug)]
pub(crate) struct BatchInputPlan {
    pub(crate) kind: BatchInputKind,
    pub(crate) datatype: DataType,
    /// The input whose shapes it describes.
    pub(crate) source_input: String,
    /// Its first name, for messages.
    pub(crate) name: String,
    /// The session's numbers for the inputs that get it.
    pub(crate) indices: Vec<usize>,
}

/// An output that somebody reads and the model's output behind it.
#[derive(Debug)]
pub(crate) struct OutputPlan {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    /// The session's number for it.
    pub(crate) index: usize,
    /// The shape of ones in the place of the model's scalar.
    pub(crate) scalar_shape: Option<Shape>,
    /// Whether requests may ask for it.
    pub(crate) is_visible: bool,
    /// Whether the next request of the sequence gets it as its state.
    pub(crate) is_state: bool,
    /// Whose shapes say where each request's part is, if not its rows.
    pub(crate) scatter: Option<ScatterPlan>,
}

/// How an output is split by the shapes of an input.
#[derive(Debug)]
pub(crate) struct ScatterPlan {
    pub(crate) source_input: String,
    /// The shape of each part, with the batch dimension. Where it is -1 the
    /// input's shape has the size in the same place.
    pub(crate) dims: Vec<i64>,
}

impl Signature {
    /// Compares a configuration with a loaded model.
    pub(crate) fn new(spec: &ModelSpec, session: &Session) -> Result<Self, Status> {
        let check = Check { spec, session };
        let controls: Vec<InputPlan> = spec
            .controls()
            .iter()
            .map(|control| check.control(control))
            .collect::<Result<_, _>>()?;
        check.input_count()?;
        let mut inputs: Vec<InputPlan> =
            spec.inputs.iter().map(|input| check.input(input)).collect::<Result<_, _>>()?;
        inputs.extend(controls);
        for state in spec.states() {
            inputs.push(check.state_input(state)?);
        }
        let batch_inputs = spec.batch_inputs.iter().map(|input| check.batch_input(input));
        let batch_inputs = batch_inputs.collect::<Result<_, _>>()?;
        let outputs = check.outputs()?;
        let model_name = Arc::from(spec.name.as_str());
        Ok(Self { model_name, batched: spec.max_batch_size > 0, inputs, batch_inputs, outputs })
    }
}

impl Check<'_> {
    fn input(&self, input: &InputSpec) -> Result<InputPlan, Status> {
        let (index, tensor) = self.find_input(&input.name)?;
        if input.optional && self.spec.max_batch_size > 0 {
            return self.refuse(&format!(
                "optional input '{}' is not supported for models that support batching",
                input.name
            ));
        }
        self.datatype("input", &input.name, input.datatype, tensor)?;
        let layout = if input.allow_ragged_batch {
            self.ragged_input(input, tensor)?
        } else {
            let dims = input.reshape.as_ref().unwrap_or(&input.dims);
            self.dims(&input.name, dims, tensor, AnySize::AcceptsAll)?;
            InputLayout::of_rank(tensor.dims.len())
        };
        let name = input.name.clone();
        Ok(InputPlan { name, datatype: input.datatype, index, layout, is_state: false })
    }

    /// The outputs of the configuration, and those that are only states.
    fn outputs(&self) -> Result<Vec<OutputPlan>, Status> {
        let outputs = self.spec.outputs.iter().map(|output| self.output(output));
        let mut outputs: Vec<OutputPlan> = outputs.collect::<Result<_, _>>()?;
        for state in self.spec.states() {
            let plan = self.state_output(state)?;
            match outputs.iter_mut().find(|visible| visible.name == plan.name) {
                Some(visible) => visible.is_state = true,
                None => outputs.push(plan),
            }
        }
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(outputs)
    }

    fn output(&self, output: &OutputSpec) -> Result<OutputPlan, Status> {
        let (index, tensor) = self.find_output(&output.name)?;
        self.datatype("output", &output.name, output.datatype, tensor)?;
        let dims = output.reshape.as_ref().unwrap_or(&output.dims);
        let scatter = self.scatter(&output.name, dims);
        if scatter.is_none() {
            self.dims(&output.name, dims, tensor, AnySize::StaysAny)?;
        }
        let is_scalar = tensor.dims.is_empty() && scatter.is_none();
        let scalar_shape = is_scalar.then(|| scalar_shape(dims)).transpose()?;
        Ok(OutputPlan {
            name: Arc::from(output.name.as_str()),
            datatype: output.datatype,
            index,
            scalar_shape,
            is_visible: true,
            is_state: false,
            scatter,
        })
    }
}

impl OutputPlan {
    /// Whether a client waits for this output of the request.
    pub(crate) fn is_wanted_by(&self, pending: &PendingRequest) -> bool {
        self.is_visible && !pending.is_padding() && pending.request().wants_output(&self.name)
    }
}

impl InputLayout {
    /// The layout of an input that is not ragged.
    const fn of_rank(rank: usize) -> Self {
        if rank == 0 { Self::Scalar } else { Self::Rows }
    }
}

/// The shape of ones that stands for a scalar.
fn scalar_shape(dims: &[i64]) -> Result<Shape, Status> {
    // A state of any size is one element when it is a scalar.
    let ones: Vec<i64> = dims.iter().map(|_| 1).collect();
    Shape::new(&ones).map_err(|error| Status::invalid_argument(error.to_string()))
}
