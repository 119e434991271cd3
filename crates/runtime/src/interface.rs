//! A model's inputs and outputs as its library describes them.

use galatea_infer::Status;
use galatea_tensor::DataType;

/// The inputs and outputs of a loaded model.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// The required inputs, then those that have a default and may be left out. A session knows
    /// each input by its index here.
    pub inputs: Vec<TensorInfo>,
    /// The number of required inputs.
    pub required_inputs: usize,
    /// The outputs. A session knows each output by its index here.
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
    /// A type that requests can have.
    Known(DataType),
    /// Another type, in words for an error, such as "ONNX element type 17, which has no
    /// counterpart".
    Unknown(String),
    /// Not a tensor at all. The status refuses it in the words of the library.
    NotATensor(Status),
}

/// The possibility of executing several requests together.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Batching {
    /// The model takes batches.
    Possible,
    /// The model takes single requests.
    Impossible,
}

impl Interface {
    /// The inputs without a default.
    pub fn required(&self) -> &[TensorInfo] {
        self.inputs.get(..self.required_inputs).unwrap_or_default()
    }

    /// The interface with its required inputs and its outputs in reverse order, for completing a
    /// configuration: Triton's order is often that of a hash map, which for a few tensors is the
    /// reverse of their insertion order.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        if let Some(required) = self.inputs.get_mut(..self.required_inputs) {
            required.reverse();
        }
        self.outputs.reverse();
        self
    }

    /// A model can execute batches if the first dimension of every tensor is variable.
    #[must_use]
    pub fn batching_by_first_dimension(&self) -> Batching {
        let mut tensors = self.required().iter().chain(&self.outputs);
        if tensors.all(|tensor| tensor.dims.first() == Some(&-1)) {
            Batching::Possible
        } else {
            Batching::Impossible
        }
    }
}

impl ElementKind {
    /// The type, if requests can have it.
    #[must_use]
    pub const fn datatype(&self) -> Option<DataType> {
        match self {
            Self::Known(datatype) => Some(*datatype),
            Self::Unknown(_) | Self::NotATensor(_) => None,
        }
    }

    /// The type's name in a model configuration, or words in its place.
    ///
    /// # Errors
    ///
    /// The library's refusal of what is not a tensor.
    pub fn config_name(&self) -> Result<&str, Status> {
        match self {
            Self::Known(datatype) => Ok(datatype.config_name()),
            Self::Unknown(words) => Ok(words),
            Self::NotATensor(refusal) => Err(refusal.clone()),
        }
    }
}
