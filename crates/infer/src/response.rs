//! The response to a request.

use std::sync::Arc;

use galatea_tensor::{Buffer, DataType, Shape};

use crate::Parameter;

/// One response to a request.
#[derive(Clone, Debug)]
pub struct InferenceResponse {
    /// The name of the model that produced it.
    pub model_name: Arc<str>,
    /// The version of that model.
    pub model_version: i64,
    /// The request's identifier.
    pub id: String,
    /// Parameters that the backend set.
    pub parameters: Vec<Parameter>,
    /// The output tensors.
    pub outputs: Vec<OutputTensor>,
}

/// One output tensor of a response.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    /// The name in the model's configuration.
    pub name: Arc<str>,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with the batch dimension if the model has one.
    pub shape: Shape,
    /// Its elements, laid out as in an [`InputTensor`](crate::InputTensor).
    pub data: Buffer,
}
