//! Converts requests from C into server requests, and replies into callbacks.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use bytes::Bytes;
use galatea_abi::server::TRITONSERVER_ServerInferAsync;
use galatea_abi::*;
use galatea_c_objects::{catch_panic, handle, log};
use galatea_codec::raw::{RawInputInfo, tensor_from_raw_body};
use galatea_control::{ServerControl, find_or_wait};
use galatea_devices::Devices;
use galatea_infer::{
    AccessPass, CancelToken, ClassificationInfoOnce, CorrelationId, DeviceOutputs, Finality,
    InferenceRequest, InputTensor, Reply, ResponseSender, ResponseSink, SequenceFlags, Status,
};
use galatea_stdx::{Lock, run_foreign_code};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::borrowed_request::{BorrowedBytes, BorrowedRequest};
use crate::gpu_memory::GpuMemory;
use crate::request::{Correlation, InputSegment, RequestInput, RequestObject, ResponseCallback};
use crate::response::{RequestIdentity, ResponseObject};
use crate::server::running;
use crate::trace;

const _: TRITONSERVER_ServerInferAsync = TRITONSERVER_ServerInferAsync;
/// Hands a request to the server. On success, the server owns the request until it calls the
/// release callback, and it passes the responses to the response callback on any thread. If a
/// request fails before the call returns, the caller keeps ownership, and only the returned error
/// reports the failure.
///
/// # Safety
///
/// `server` must be null or a server, `request` must be null or a request that no thread changes,
/// and `trace` must be null or a trace. The inputs' memory must not change until the release
/// callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerInferAsync(
    server: *mut TRITONSERVER_Server,
    request: *mut TRITONSERVER_InferenceRequest,
    trace: *mut TRITONSERVER_InferenceTrace,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerInferAsync", || {
        // SAFETY: guaranteed by the caller.
        let server = unsafe { running(server)? };
        // SAFETY: as above.
        let object = unsafe { handle::borrow::<RequestObject>(request, "inference_request")? };
        let response = object.response.clone().ok_or_else(|| {
            Status::invalid_argument("inference response callback must be set before infer")
        })?;
        let release = object.release.ok_or_else(|| {
            Status::invalid_argument("inference request release callback must be set before infer")
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { trace::check(trace)? };
        let (ownership, cancel) =
            object.ownership.hand_over().ok_or_else(|| already_handed_over(object))?;
        let borrowed = BorrowedRequest::new(request, release, ownership);
        let control = server.control.as_ref();
        let mut infer = match inference_request(object, cancel, control, &borrowed) {
            Ok(infer) => infer,
            Err(status) => {
                borrowed.return_without_callback();
                return Err(status);
            }
        };
        let identity = RequestIdentity {
            model_name: object.model_name.clone(),
            model_version: object.model_version.unwrap_or(-1),
            id: infer.id.clone(),
        };
        // SAFETY: as above.
        infer.trace = unsafe { trace::begin(trace, &borrowed) };
        // The release callback may delete the trace before the handover returns. SAFETY: as above.
        let handover = unsafe { trace::Handover::of(trace) };
        if !object.devices.is_empty() {
            infer.device_outputs = DeviceOutputs::All;
        }
        infer.output_query = Some(Arc::new(response.allocator.output_query()));
        let classes = ClassificationInfoOnce::default();
        infer.classes = Some(classes.clone());
        let caller =
            Arc::new(Caller { identity, classes, response, call: InferAsyncCall::begin() });
        let sink = CallbackSink(caller.clone());
        let sender = ResponseSender::new(Box::new(sink));
        server.service.infer(AccessPass::in_process(), Box::new(infer), sender);
        match caller.call.finish() {
            Some(status) => refuse(borrowed, &caller, status),
            None => {
                // SAFETY: as above; the server has accepted the request.
                unsafe { handover.complete() };
                Ok(())
            }
        }
    })
}

/// The error for a request that is already handed over. As in Triton, it can't be handed over again
/// before its release.
fn already_handed_over(object: &RequestObject) -> Status {
    let text = "Invalid request state transition: the server has this request already";
    let id = object.id.to_string_lossy().into_owned();
    let request = InferenceRequest { id, ..InferenceRequest::default() };
    Status::internal(text).prefixed(request.log_prefix())
}

fn inference_request(
    object: &RequestObject,
    cancel: CancelToken,
    control: &dyn ServerControl,
    borrowed: &Arc<BorrowedRequest>,
) -> Result<InferenceRequest, Status> {
    let mut request = without_inputs(object, cancel);
    for input in &object.inputs {
        let bytes = |segments: &[InputSegment]| {
            input_bytes(segments, &object.devices, borrowed)
                .map_err(|status| status.prefixed(request.log_prefix()))
        };
        let mut tensor = match &input.type_and_shape {
            Some(type_and_shape) => {
                let data = match gpu_tensor(&input.segments, &object.devices, borrowed)? {
                    Some(tensor) => tensor,
                    None => Buffer::from_bytes(bytes(&input.segments)?),
                };
                input_tensor(&input.name, type_and_shape, data)
            }
            None => raw_tensor(object, &input.name, &bytes(&input.segments)?, control)
                .map_err(|status| status.prefixed(request.log_prefix())),
        }?;
        if input.type_and_shape.is_none()
            && !input.host_policies.is_empty()
            && tensor.datatype == DataType::Bytes
        {
            let text = "Raw input with data associated with a host policy setting is not \
                        currently supported";
            return Err(Status::invalid_argument(text).prefixed(request.log_prefix()));
        }
        tensor.data = with_host_policies(tensor.data, input, bytes)?;
        request.inputs.push(tensor);
    }
    Ok(request)
}

fn without_inputs(object: &RequestObject, cancel: CancelToken) -> InferenceRequest {
    InferenceRequest {
        id: object.id.to_string_lossy().into_owned(),
        model_name: object.model_name.clone(),
        model_version: object.model_version,
        outputs: object.outputs.clone(),
        parameters: object.parameters.clone(),
        priority: object.priority,
        timeout_microseconds: object.timeout_microseconds,
        correlation_id: match &object.correlation {
            Correlation::Number(0) => CorrelationId::None,
            Correlation::Number(number) => CorrelationId::Number(*number),
            Correlation::Text(text) if text.is_empty() => CorrelationId::None,
            Correlation::Text(text) => CorrelationId::Text(text.to_string_lossy().into_owned()),
        },
        sequence_flags: SequenceFlags {
            start: object.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 != 0,
            end: object.flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 != 0,
        },
        cancel,
        ..InferenceRequest::default()
    }
}

fn input_tensor(
    name: &str,
    type_and_shape: &(DataType, Vec<i64>),
    data: Buffer,
) -> Result<InputTensor, Status> {
    let (datatype, dims) = type_and_shape;
    let shape = Shape::new(dims)
        .map_err(|error| Status::invalid_argument(format!("input '{name}': {error}")))?;
    Ok(InputTensor { name: name.to_owned(), datatype: *datatype, shape, data })
}

/// Creates a raw tensor, which has only bytes. Its type and shape come from the model's
/// configuration.
fn raw_tensor(
    object: &RequestObject,
    given_name: &str,
    data: &Bytes,
    control: &dyn ServerControl,
) -> Result<InputTensor, Status> {
    let name = &object.model_name;
    let model = find_or_wait(control, AccessPass::in_process(), name, object.model_version)?;
    let given = RawInputInfo { name: given_name, input_count: object.inputs.len() };
    tensor_from_raw_body(data, given, name, &model.config(), None)
}

/// Adds an input's data for host policies. The model checks the data against the input's shape. As
/// in Triton, an input that has only such data is incomplete.
fn with_host_policies(
    data: Buffer,
    input: &RequestInput,
    bytes: impl Fn(&[InputSegment]) -> Result<Bytes, Status>,
) -> Result<Buffer, Status> {
    if data.is_empty() {
        return Ok(data);
    }
    let own = input.host_policies.iter();
    let own = own
        .map(|(policy, segments)| Ok((policy.clone(), Buffer::from_bytes(bytes(segments)?))))
        .collect::<Result<_, Status>>()?;
    Ok(data.with_host_policy_buffers(own))
}

/// Returns an input that is a single segment of GPU memory, without copying it.
fn gpu_tensor(
    segments: &[InputSegment],
    devices: &Devices,
    borrowed: &Arc<BorrowedRequest>,
) -> Result<Option<Buffer>, Status> {
    let [InputSegment { base, byte_size, gpu: Some(number) }] = segments else { return Ok(None) };
    let owner = Box::new(borrowed.clone());
    // SAFETY: the caller guaranteed memory of this GPU until the request is released.
    let memory = unsafe { GpuMemory::new(devices, *number, *base, *byte_size, owner) }?;
    Ok(Some(memory.into_tensor()))
}

/// An input's bytes, in place if they are a single segment of host memory.
fn input_bytes(
    segments: &[InputSegment],
    devices: &Devices,
    borrowed: &Arc<BorrowedRequest>,
) -> Result<Bytes, Status> {
    let bytes = |segment: &InputSegment| {
        if segment.gpu.is_none() {
            return Ok(Bytes::from_owner(BorrowedBytes::new(*segment, borrowed)));
        }
        let one = std::slice::from_ref(segment);
        let mut tensor = gpu_tensor(one, devices, borrowed)?.unwrap_or_else(Buffer::empty);
        tensor.make_owned()?;
        Ok(tensor.host_bytes().cloned().unwrap_or_default())
    };
    match segments {
        [only] => bytes(only),
        segments => {
            let mut joined = Vec::new();
            for segment in segments {
                joined.extend_from_slice(&bytes(segment)?);
            }
            Ok(Bytes::from(joined))
        }
    }
}

/// Reports the failure of a request before its call returned: through the call itself, or through
/// the callback if the server still holds a reference to the request.
fn refuse(borrowed: Arc<BorrowedRequest>, caller: &Caller, status: Status) -> Result<(), Status> {
    if borrowed.return_without_callback() {
        return Err(status);
    }
    caller.deliver(Reply::Response { result: Err(status), finality: Finality::Final });
    Ok(())
}

/// The state of the call that hands over a request. If the request fails before the call returns,
/// the call reports the failure instead of a response.
pub struct InferAsyncCall {
    thread: ThreadId,
    state: Lock<HandoverState>,
}

enum HandoverState {
    /// The call hasn't returned, and no reply has arrived.
    Open,
    /// The call hasn't returned, and the request has failed.
    Failed(Status),
    /// The call has returned, so replies go to the callback.
    Returned,
}

impl InferAsyncCall {
    /// Begins a call on the current thread.
    #[must_use]
    pub fn begin() -> Self {
        Self { thread: thread::current().id(), state: Lock::new(HandoverState::Open) }
    }

    /// Returns the reply if it is to be passed to the callback.
    #[must_use]
    pub fn intercept_early_error(&self, reply: Reply) -> Option<Reply> {
        let mut state = self.state.lock("take a reply");
        match (&*state, reply) {
            (
                HandoverState::Open,
                Reply::Response { result: Err(status), finality: Finality::Final },
            ) if thread::current().id() == self.thread => {
                *state = HandoverState::Failed(status);
                None
            }
            (_, reply) => {
                *state = HandoverState::Returned;
                Some(reply)
            }
        }
    }

    /// Ends the call. Returns the error if the request has already failed.
    #[must_use]
    pub fn finish(&self) -> Option<Status> {
        match core::mem::replace(&mut *self.state.lock("end the call"), HandoverState::Returned) {
            HandoverState::Failed(status) => Some(status),
            HandoverState::Open | HandoverState::Returned => None,
        }
    }
}

/// The caller that handed a request over.
struct Caller {
    identity: RequestIdentity,
    /// The class labels of the model's outputs, which the caller may request later.
    classes: ClassificationInfoOnce,
    response: ResponseCallback,
    call: InferAsyncCall,
}

impl Caller {
    /// Passes a reply to the callback.
    fn deliver(&self, reply: Reply) {
        let Reply::Response { result, finality } = reply else {
            return self.call_back(core::ptr::null_mut(), Finality::Final);
        };
        let classes = self.classes.get().cloned();
        let allocator = &self.response.allocator;
        let object = ResponseObject::new(result, &self.identity, classes, allocator);
        self.call_back(handle::into_raw(object), finality);
        if finality == Finality::EndApart {
            self.call_back(core::ptr::null_mut(), Finality::Final);
        }
    }

    fn call_back(&self, object: *mut TRITONSERVER_InferenceResponse, finality: Finality) {
        let is_final = finality == Finality::Final;
        let flags = if is_final { TRITONSERVER_RESPONSE_COMPLETE_FINAL.0 } else { 0 };
        match self.response.function {
            // SAFETY: the caller set a function that accepts these arguments on any thread.
            Some(complete) => unsafe { complete(object, flags, self.response.userp) },
            None => log::error("a response has no callback to go to"),
        }
    }
}

/// Passes the server's replies to the caller.
struct CallbackSink(Arc<Caller>);

impl ResponseSink for CallbackSink {
    fn deliver(&mut self, reply: Reply) {
        if let Some(reply) = self.0.call.intercept_early_error(reply) {
            run_foreign_code(|| self.0.deliver(reply));
        }
    }
}
