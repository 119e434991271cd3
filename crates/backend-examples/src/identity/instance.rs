//! Batch execution.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_backend::{Instance, ModelHost, RefusedBatch};
use galatea_infer::{
    CorrelationId, ExecutionReadings, ExecutionTimes, InferenceResponse, OutputTensor, Parameter,
    ParameterValue, PendingRequest, ResponseParameters, Status,
};
use galatea_tensor::{Buffer, Shape};

use crate::identity::activities::Activities;
use crate::identity::counters::InputByteCounter;
use crate::identity::tensor_pairs::TensorPair;

pub(crate) struct IdentityInstance {
    pub(crate) model_name: Arc<str>,
    pub(crate) pairs: Arc<[TensorPair]>,
    pub(crate) delay: Duration,
    pub(crate) activities: Option<Activities>,
    /// True if requests have a batch dimension.
    pub(crate) batches: bool,
    pub(crate) host: Arc<dyn ModelHost>,
    pub(crate) counter: Option<Arc<dyn InputByteCounter>>,
    /// The parameters of each response.
    pub(crate) parameters: ResponseParameters,
}

/// The parameters with which Triton's backend demonstrates response parameters.
pub(crate) fn example_parameters() -> ResponseParameters {
    let parameter = |name: &str, value| Parameter { name: name.to_owned(), value };
    ResponseParameters::from(vec![
        parameter("param0", ParameterValue::String("an example string parameter".to_owned())),
        parameter("param1", ParameterValue::Int64(42)),
        parameter("param2", ParameterValue::Bool(false)),
        parameter("param3", ParameterValue::Double(123.123)),
    ])
}

impl Instance for IdentityInstance {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let start = Instant::now();
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        if let Some(activities) = self.activities {
            for trace in requests.iter().filter_map(PendingRequest::trace) {
                activities.report(trace);
            }
        }
        let batch_size = self.batch_size(&requests);
        let responses: Vec<_> = requests.iter().map(|request| self.respond(request)).collect();
        let end = Instant::now();
        let times = ExecutionTimes::from(ExecutionReadings {
            start,
            compute_start: start,
            compute_end: end,
            end,
        });
        self.host.record_batch(batch_size, &times);
        for (request, response) in requests.into_iter().zip(responses) {
            request.complete(response, &times);
        }
        Ok(())
    }
}

impl IdentityInstance {
    /// The batch size as Triton's backend counts it. It is 0 without a batch dimension, and
    /// requests that the backend refuses at the start don't count.
    fn batch_size(&self, requests: &[PendingRequest]) -> u64 {
        let counted = requests.iter().filter(|one| self.batches && check_id(one).is_ok());
        counted.map(|request| u64::from(request.batch_size())).sum()
    }

    fn respond(&self, pending: &PendingRequest) -> Result<InferenceResponse, Status> {
        check_id(pending)?;
        let request = pending.request();
        let mut outputs = Vec::with_capacity(self.pairs.len());
        for pair in self.pairs.iter().filter(|pair| request.wants_output(&pair.output)) {
            let (shape, data) = match request.input(&pair.input) {
                Some(input) => {
                    if let Some(counter) = &self.counter {
                        counter.add(input.data.len());
                    }
                    (input.shape.clone(), input.data.clone())
                }
                None => zeros(pair, pending)?,
            };
            let (name, datatype) = (pair.output.clone(), pair.datatype);
            outputs.push(OutputTensor { name, datatype, shape, data });
        }
        Ok(InferenceResponse {
            model_name: self.model_name.clone(),
            model_version: self.host.model_version(),
            id: request.id.clone(),
            parameters: self.parameters.clone(),
            outputs,
        })
    }
}

/// Refuses string correlation IDs, because Triton's backend logs the ID as a number.
fn check_id(pending: &PendingRequest) -> Result<(), Status> {
    let request = pending.request();
    match request.correlation_id {
        CorrelationId::None | CorrelationId::Number(_) => Ok(()),
        CorrelationId::Text(_) => {
            let text = "correlation ID in request is not an unsigned int";
            Err(Status::invalid_argument(text).prefixed(request.log_prefix()))
        }
    }
}

/// The output for an optional input that the request omits. Like Triton's backend, fills it with
/// zeros and sets each variable dimension to one.
fn zeros(pair: &TensorPair, pending: &PendingRequest) -> Result<(Shape, Buffer), Status> {
    let impossible =
        || Status::internal(format!("output '{}' can't be made without its input", pair.output));
    let batch = pair.batched.then(|| i64::from(pending.batch_size()));
    let dims: Vec<i64> = batch
        .into_iter()
        .chain(pair.dims.iter().map(|&dim| if dim < 0 { 1 } else { dim }))
        .collect();
    let shape = Shape::new(&dims).map_err(|_| impossible())?;
    // An empty string takes four zero bytes for its length.
    let element_size = u64::try_from(pair.datatype.byte_size().unwrap_or(4)).ok();
    let byte_size = element_size
        .and_then(|size| size.checked_mul(shape.element_count()))
        .and_then(|size| usize::try_from(size).ok())
        .ok_or_else(impossible)?;
    // The configuration determines the size, and allocating a vector that doesn't fit in memory
    // aborts the process. A trial reservation turns this into an error.
    let reserved = Vec::<u8>::new().try_reserve_exact(byte_size);
    reserved.map_err(|_| {
        let text = format!("there are no {byte_size} bytes for output '{}'", pair.output);
        Status::unavailable(text)
    })?;
    Ok((shape, Buffer::from_vec(vec![0; byte_size])))
}
