//! Converts Python values to server requests and passes the replies back.

use std::sync::Arc;
use std::time::Duration;

use galatea_capi::{InferAsyncCall, ServerRef};
use galatea_control::{ModelWait, ServedModel};
use galatea_infer::{
    AccessPass, CancelToken, CorrelationId, Deadline, InferenceRequest, InputTensor, Parameter,
    ResponseSender, SequenceFlags, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::event_loop::EventLoopWaker;
use crate::memory;
use crate::replies::{Replies, RepliesSink, ReplyPart};
use crate::response::{CopiedResponse, Response, Value};

/// The interval at which a thread that is waiting for a reply checks for signals such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Sequence flags, as in C.
const SEQUENCE_START: u32 = 1;
const SEQUENCE_END: u32 = 2;

/// A request's parts, as keyword arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RequestValues {
    model_name: String,
    /// -1 means the newest version.
    model_version: i64,
    id: String,
    flags: u32,
    correlation_id: Option<Correlation>,
    priority: u64,
    timeout_microseconds: u64,
    inputs: Vec<Input>,
    outputs: Vec<String>,
    parameters: Vec<(String, Value)>,
}

#[derive(FromPyObject)]
enum Correlation {
    Number(u64),
    Text(String),
}

/// The name, the data type's number in `TRITONSERVER_DataType`, the shape, the address, the size
/// and the owner.
type Input = (String, i32, Vec<i64>, usize, usize, Py<PyAny>);

impl RequestValues {
    /// Converts the values to a request that a token can cancel.
    fn into_request(self, cancel: CancelToken) -> Result<InferenceRequest, Status> {
        let inputs = self.inputs.into_iter().map(|(name, datatype, dims, address, size, owner)| {
            let datatype = DataType::from_config_number(datatype).ok_or_else(|| {
                Status::invalid_argument(format!("input '{name}' has no datatype: {datatype}"))
            })?;
            let shape = Shape::new(&dims)
                .map_err(|error| Status::invalid_argument(format!("input '{name}': {error}")))?;
            let data = Buffer::from_bytes(memory::input(address, size, owner));
            Ok(InputTensor { name, datatype, shape, data })
        });
        let parameters = self.parameters.into_iter();
        Ok(InferenceRequest {
            id: self.id,
            model_name: self.model_name,
            model_version: version(self.model_version),
            inputs: inputs.collect::<Result<_, Status>>()?,
            outputs: self.outputs,
            parameters: parameters
                .map(|(name, value)| Parameter { name, value: value.into() })
                .collect(),
            priority: self.priority,
            timeout_microseconds: self.timeout_microseconds,
            correlation_id: match self.correlation_id {
                None | Some(Correlation::Number(0)) => CorrelationId::None,
                Some(Correlation::Number(number)) => CorrelationId::Number(number),
                Some(Correlation::Text(text)) if text.is_empty() => CorrelationId::None,
                Some(Correlation::Text(text)) => CorrelationId::Text(text),
            },
            sequence_flags: SequenceFlags {
                start: self.flags & SEQUENCE_START != 0,
                end: self.flags & SEQUENCE_END != 0,
            },
            cancel,
            ..InferenceRequest::default()
        })
    }
}

/// Converts a version number, where -1 means the newest version.
pub(crate) fn version(number: i64) -> Option<i64> {
    (number != -1).then_some(number)
}

/// Hands a request to the server. As in C, if the request fails before this call returns, the call
/// returns the failure.
pub(crate) fn infer(server: &ServerRef, values: RequestValues) -> Result<Request, Status> {
    let cancel = CancelToken::new();
    let mut request = values.into_request(cancel.clone())?;
    let pass = AccessPass::in_process();
    // As in Triton, a request for a missing model is rejected when it is created.
    let control = &server.control;
    let (name, version) = (request.model_name.clone(), request.model_version);
    let replies = Arc::<Replies>::default();
    let call = Arc::new(InferAsyncCall::begin());
    let sink = RepliesSink { replies: replies.clone(), call: call.clone() };
    let service = server.service.clone();
    let begin = move |found: Result<Arc<dyn ServedModel>, Status>| {
        let sender = ResponseSender::new(Box::new(sink));
        match found {
            Ok(model) => {
                request.found_model = Some(model);
                service.infer(pass, Box::new(request), sender);
            }
            Err(status) => sender.refuse(status),
        }
    };
    match control.model_for_inference(pass, &name, version) {
        Ok(model) => begin(Ok(model)),
        Err(missing) => {
            let (deadline, cancel) = (Deadline::None, cancel.clone());
            let wait = ModelWait { name, version, deadline, cancel, found: Box::new(begin) };
            control.wait_for_model(pass, wait).map_err(|_| missing)?;
        }
    }
    call.finish().map_or(Ok(Request { replies, cancel }), Err)
}

/// A request that the server is processing.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct Request {
    replies: Arc<Replies>,
    cancel: CancelToken,
}

/// A response or an error, and a flag that is true for the last part.
type Part = (Option<Response>, Option<PyErr>, bool);

#[pymethods]
impl Request {
    /// Waits for the next response.
    fn next(&self, py: Python<'_>) -> PyResult<Part> {
        loop {
            let part = py.detach(|| self.replies.wait(SIGNAL_INTERVAL).map(CopiedPart::new));
            match part {
                Some(part) => return part.into_python(py),
                None => py.check_signals()?,
            }
        }
    }

    /// Returns the next response if it is available.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Part>> {
        let part = py.detach(|| self.replies.take().map(CopiedPart::new));
        part.map(|part| part.into_python(py)).transpose()
    }

    /// Wakes an event loop when the next response is available.
    fn tell(&self, py: Python<'_>, waker: &EventLoopWaker, number: u64) {
        py.detach(|| self.replies.notify_loop(waker.event.clone(), number));
    }

    /// Cancels the request. Its final response still arrives.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.cancel.cancel());
    }

    /// Returns true if the request has been cancelled.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

/// A reply part whose outputs have already been copied.
struct CopiedPart {
    result: Option<Result<CopiedResponse, Status>>,
    is_final: bool,
}

impl CopiedPart {
    fn new(part: ReplyPart) -> Self {
        let result = part.result.map(|result| result.and_then(CopiedResponse::new));
        Self { result, is_final: part.is_final }
    }

    fn into_python(self, py: Python<'_>) -> PyResult<Part> {
        Ok(match self.result {
            None => (None, None, self.is_final),
            Some(Ok(response)) => (Some(response.into_python(py)?), None, self.is_final),
            Some(Err(status)) => (None, Some(raise(status)), self.is_final),
        })
    }
}
