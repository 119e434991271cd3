//! What a model answers.

use std::sync::Arc;

use galatea_tensor::{Buffer, DataType, Shape};

use crate::Parameter;

/// One response to a request.
#[derive(Clone, Debug)]
pub struct InferenceResponse {
    /// The model that answered.
    pub model_name: Arc<str>,
    /// Its version.
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
    /// Its elements, laid out as an input's.
    pub data: Buffer,
}
