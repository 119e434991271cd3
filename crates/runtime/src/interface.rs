//! A model's inputs and outputs, as its library describes them.

use galatea_infer::Status;
use galatea_tensor::DataType;

/// The inputs and outputs of a loaded model.
#[derive(Clone, Debug, Default)]
pub struct SessionInterface {
    /// The required inputs, followed by the inputs with defaults, which may be omitted. A session
    /// identifies each input by its index in this list.
    pub inputs: Vec<TensorInfo>,
    /// The number of required inputs.
    pub required_inputs: usize,
    /// The outputs. A session identifies each output by its index in this list.
    pub outputs: Vec<TensorInfo>,
}

/// An input or output of a model.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// The type of the tensor's elements.
    pub element: ElementKind,
    /// The tensor's dimensions; -1 means a variable size.
    pub dims: Vec<i64>,
}

/// The type of the elements of a model's input or output.
#[derive(Clone, Debug)]
pub enum ElementKind {
    /// A type that requests support.
    Known(DataType),
    /// Another type, described for an error message, such as "ONNX element type 17, which has no
    /// counterpart".
    Unknown(String),
    /// Not a tensor. The status refuses it in the library's words.
    NotATensor(Status),
}

/// The ability to execute several requests together.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BatchingSupport {
    /// The model supports batching.
    Possible,
    /// The model executes single requests only.
    Impossible,
    /// The model's file says nothing about it, so the configuration decides.
    NotStated,
}

impl SessionInterface {
    /// The inputs without defaults.
    pub fn required_tensors(&self) -> &[TensorInfo] {
        self.inputs.get(..self.required_inputs).unwrap_or_default()
    }

    /// The interface with its required inputs and its outputs in reverse order, for completing a
    /// configuration. Triton's order is often that of a hash map, which reverses the insertion
    /// order of a few tensors.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        if let Some(required) = self.inputs.get_mut(..self.required_inputs) {
            required.reverse();
        }
        self.outputs.reverse();
        self
    }

    /// Returns [`BatchingSupport::Possible`] if the first dimension of every tensor is variable.
    #[must_use]
    pub fn batching_by_first_dimension(&self) -> BatchingSupport {
        let mut tensors = self.required_tensors().iter().chain(&self.outputs);
        if tensors.all(|tensor| tensor.dims.first() == Some(&-1)) {
            BatchingSupport::Possible
        } else {
            BatchingSupport::Impossible
        }
    }
}

impl ElementKind {
    /// The type, if requests support it.
    #[must_use]
    pub const fn datatype(&self) -> Option<DataType> {
        match self {
            Self::Known(datatype) => Some(*datatype),
            Self::Unknown(_) | Self::NotATensor(_) => None,
        }
    }

    /// The type's name in a model configuration, or a description of the type.
    ///
    /// # Errors
    ///
    /// The library's refusal of a value that is not a tensor.
    pub fn config_name(&self) -> Result<&str, Status> {
        match self {
            Self::Known(datatype) => Ok(datatype.config_name()),
            Self::Unknown(words) => Ok(words),
            Self::NotATensor(refusal) => Err(refusal.clone()),
        }
    }
}
