//! The response to a request.

use std::ops::Deref;
use std::sync::Arc;

use crate::{OutputTensor, Parameter};

/// One response to a request.
#[derive(Clone, Debug)]
pub struct InferenceResponse {
    /// The name of the model that produced it.
    pub model_name: Arc<str>,
    /// The version of that model.
    pub model_version: i64,
    /// The identifier of the request.
    pub id: String,
    /// Parameters that the backend set.
    pub parameters: ResponseParameters,
    /// The output tensors.
    pub outputs: Vec<OutputTensor>,
}

/// The parameters of a response, usually none. Responses with equal parameters share them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseParameters(Option<Arc<Vec<Parameter>>>);

impl ResponseParameters {
    /// Appends a parameter.
    pub fn push(&mut self, parameter: Parameter) {
        Arc::make_mut(self.0.get_or_insert_default()).push(parameter);
    }
}

impl Deref for ResponseParameters {
    type Target = [Parameter];

    fn deref(&self) -> &[Parameter] {
        self.0.as_ref().map_or(&[], |parameters| parameters)
    }
}

impl<'a> IntoIterator for &'a ResponseParameters {
    type Item = &'a Parameter;
    type IntoIter = std::slice::Iter<'a, Parameter>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Vec<Parameter>> for ResponseParameters {
    fn from(parameters: Vec<Parameter>) -> Self {
        Self((!parameters.is_empty()).then(|| Arc::new(parameters)))
    }
}
