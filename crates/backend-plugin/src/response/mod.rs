//! A response: what a plug-in makes for a request, and sends.

pub mod exchange;
pub(crate) mod factory;
pub(crate) mod functions;
pub(crate) mod output;

use std::sync::{Arc, Mutex};

use galatea_infer::{InferenceResponse, OutputTensor, Parameter, Status};
use galatea_tensor::Shape;

use crate::instance::InUse;
use crate::owned::Owned;
use crate::plugins::lock;
use exchange::Exchange;
use output::OutputObject;

/// A response as C sees it.
pub(crate) struct ResponseObject {
    exchange: Arc<Exchange>,
    contents: Mutex<Contents>,
    in_use: InUse,
}
galatea_c_objects::object!(ResponseObject as TRITONBACKEND_Response, kind 28);

#[derive(Default)]
struct Contents {
    parameters: Vec<Parameter>,
    outputs: Vec<Owned<OutputObject>>,
}

impl ResponseObject {
    pub(crate) fn new(exchange: Arc<Exchange>, in_use: InUse) -> Self {
        Self { exchange, contents: Mutex::default(), in_use }
    }

    /// The response for the caller.
    fn into_response(self) -> (Arc<Exchange>, InUse, Result<InferenceResponse, Status>) {
        let contents = std::mem::take(&mut *lock(&self.contents));
        let outputs = contents.outputs.into_iter().filter_map(Owned::into_inner);
        let outputs: Result<Vec<OutputTensor>, Status> =
            outputs.map(OutputObject::into_tensor).collect();
        let response = outputs.map(|outputs| InferenceResponse {
            model_name: self.exchange.model_name(),
            model_version: self.exchange.model_version(),
            id: self.exchange.request_id().to_owned(),
            parameters: contents.parameters,
            outputs,
        });
        (self.exchange, self.in_use, response)
    }
}

/// A tensor's shape from C's arguments.
///
/// # Errors
///
/// `InvalidArgument` that names the tensor.
///
/// # Safety
///
/// `shape` must be null or valid for reads of `dims_count` numbers.
pub(crate) unsafe fn shape_from_c(
    shape: *const i64,
    dims_count: u32,
    tensor: &str,
) -> Result<Shape, Status> {
    let count = usize::try_from(dims_count)
        .map_err(|_| Status::invalid_argument("dims_count is too large"))?;
    // SAFETY: the caller's promise is passed on.
    let dims = unsafe { galatea_c_objects::text::slice(shape, count, "shape")? };
    Shape::new(dims)
        .map_err(|error| Status::invalid_argument(format!("tensor '{tensor}': {error}")))
}
