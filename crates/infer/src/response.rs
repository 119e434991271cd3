//! The response to a request.

use std::sync::Arc;

use crate::{OutputTensor, Parameter};

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
