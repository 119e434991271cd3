//! A model's tensors, in the form that its instances use.

use std::sync::Arc;

use galatea_config::BatchInputKind;
use galatea_infer::{PendingRequest, Status};
use galatea_tensor::{DataType, Shape};

/// A model's inputs and outputs.
#[derive(Debug)]
pub(crate) struct ModelSignature {
    pub(crate) model_name: Arc<str>,
    /// True if the first dimension is the batch dimension.
    pub(crate) batched: bool,
    /// True if a request may get several responses.
    pub(crate) decoupled: bool,
    /// The request inputs: the configured inputs in order, followed by the controls and states of
    /// the sequence batcher.
    pub(crate) inputs: Vec<InputPlan>,
    /// The inputs that the server computes from a batch.
    pub(crate) batch_inputs: Vec<BatchInputPlan>,
    /// The outputs, sorted by name, which is Triton's order for the outputs of a response.
    pub(crate) outputs: Vec<OutputPlan>,
}

/// A request input and the corresponding input of the model.
#[derive(Debug)]
pub(crate) struct InputPlan {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// The input's index in the session.
    pub(crate) index: usize,
    pub(crate) layout: InputLayout,
    /// True if the input is a sequence state.
    pub(crate) is_state: bool,
    /// True if shorter states are padded with zeros at the start of the dimension after the batch.
    pub(crate) is_padded: bool,
}

/// The way in which the requests' tensors are joined into the model's input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLayout {
    /// Joined as rows of one tensor.
    Rows,
    /// The model expects a scalar. Requests have a shape of ones.
    Scalar,
    /// Ragged: all elements are in one dimension.
    Flat,
}

/// A tensor that the server computes from the shapes of a batch.
#[derive(Debug)]
pub(crate) struct BatchInputPlan {
    pub(crate) kind: BatchInputKind,
    pub(crate) datatype: DataType,
    /// The input whose shapes the tensor describes.
    pub(crate) source_input: String,
    /// The tensor's first target, for error messages.
    pub(crate) name: String,
    /// The session's indices of the inputs that receive the tensor.
    pub(crate) indices: Vec<usize>,
}

/// An output that requests or states use, and the corresponding output of the model.
#[derive(Debug)]
pub(crate) struct OutputPlan {
    pub(crate) name: Arc<str>,
    pub(crate) datatype: DataType,
    /// The output's index in the session.
    pub(crate) index: usize,
    /// The shape of ones that replaces the model's scalar shape.
    pub(crate) scalar_shape: Option<Shape>,
    /// True if requests may ask for the output.
    pub(crate) is_visible: bool,
    /// True if the sequence's next request receives the output as its state.
    pub(crate) is_state: bool,
    /// The input that the output overwrites in place, if the output is a growable state.
    pub(crate) grows_in: Option<Arc<str>>,
    /// The state's input, if shorter states are padded. The new state loses as many elements at its
    /// start as the old state gained.
    pub(crate) padded_input: Option<Arc<str>>,
    /// True if the output says whether a request is executed again.
    pub(crate) is_continuation: bool,
    /// The plan for splitting the output into the requests' parts, unless the parts are rows.
    pub(crate) scatter: Option<ScatterPlan>,
}

/// The plan for splitting an output by the shapes of an input.
#[derive(Debug)]
pub(crate) struct ScatterPlan {
    pub(crate) source_input: String,
    /// The shape of each part, including the batch dimension. A size of -1 is replaced by the
    /// input's size in the same position.
    pub(crate) dims: Vec<i64>,
}

impl OutputPlan {
    /// Returns true if the response to a request contains this output.
    pub(crate) fn is_wanted_by(&self, pending: &PendingRequest) -> bool {
        self.is_visible && !pending.is_padding() && pending.request().wants_output(&self.name)
    }
}

impl InputLayout {
    /// The layout of a non-ragged input.
    pub(super) const fn of_rank(rank: usize) -> Self {
        if rank == 0 { Self::Scalar } else { Self::Rows }
    }
}

/// The shape of ones that represents a scalar.
pub(super) fn scalar_shape(dims: &[i64]) -> Result<Shape, Status> {
    // A state's variable dimensions also have size 1.
    let ones: Vec<i64> = dims.iter().map(|_| 1).collect();
    Shape::new(&ones).map_err(|error| Status::invalid_argument(error.to_string()))
}
