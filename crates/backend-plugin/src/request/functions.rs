//! Functions for requests.

use core::ffi::{c_char, c_void};

use galatea_abi::{
    TRITONBACKEND_Input, TRITONBACKEND_Request, TRITONBACKEND_State, TRITONSERVER_DataType,
    TRITONSERVER_InferenceTrace, TRITONSERVER_MEMORY_CPU, TRITONSERVER_MemoryType,
    TRITONSERVER_ParameterType, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
};
use galatea_c_objects::names::data_type_from_c;
use galatea_c_objects::{handle, list, pointer};
use galatea_config::{ModelSpec, StateSpec};
use galatea_infer::{CorrelationId, Status};
use galatea_tensor::DataType;

use super::RequestObject;
use super::state::StateObject;
use crate::model::ServingModel;
use crate::owned::Owned;
use crate::tensor_shape::shape_from_c;

/// # Safety
///
/// Same requirements as for every exported function.
pub(super) unsafe fn object<'a>(
    request: *mut TRITONBACKEND_Request,
) -> Result<&'a RequestObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(request, "request") }
}

pub(super) fn serving(request: &RequestObject) -> Result<&ServingModel, Status> {
    let model = request.model();
    model.ok_or_else(|| Status::internal("a request without a model"))?.serving()
}

fn at<'a, T>(
    request: &RequestObject,
    items: &'a [T],
    index: u32,
    what: &str,
) -> Result<&'a T, Status> {
    list::get_u32(items, index).ok_or_else(|| {
        Status::invalid_argument(format!(
            "{}out of bounds index {index}: request has {} {what}",
            request.log_prefix(),
            items.len()
        ))
    })
}

fn input_at(request: &RequestObject, index: u32) -> Result<*mut TRITONBACKEND_Input, Status> {
    at(request, request.tensors(), index, "inputs")?;
    let input = usize::try_from(index).ok().and_then(|index| request.input(index));
    Ok(input.map_or(core::ptr::null_mut(), |input| input.address()))
}

/// The state's configuration, checked against C's arguments.
fn state_spec<'a>(
    spec: &'a ModelSpec,
    name: &str,
    datatype: DataType,
) -> Result<&'a StateSpec, Status> {
    if spec.sequence_states().is_empty() {
        return Err(Status::invalid_argument(format!(
            "unable to add state '{name}'. State configuration is missing for model '{}'.",
            spec.name
        )));
    }
    let state = spec.state_for_output(name).ok_or_else(|| {
        Status::invalid_argument(format!("state '{name}' is not a valid state name."))
    })?;
    if state.datatype != datatype {
        return Err(Status::invalid_argument(format!(
            "state '{name}' is {datatype}, but its configuration says {}",
            state.datatype
        )));
    }
    Ok(state)
}

functions! {
    /// Returns the client's request identifier, or an empty string if the client didn't specify
    /// one.
    fn TRITONBACKEND_RequestId(request: *mut TRITONBACKEND_Request, id: *mut *const c_char) {
        pointer::write(id, object(request)?.id(), "id")
    }

    /// Returns true if the client has cancelled the request.
    fn TRITONBACKEND_RequestIsCancelled(
        request: *mut TRITONBACKEND_Request,
        is_cancelled: *mut bool,
    ) {
        let cancelled = object(request)?.channel.is_cancelled();
        pointer::write(is_cancelled, cancelled, "is_cancelled")
    }

    /// Returns the sequence number, or 0 if the request isn't part of a sequence.
    fn TRITONBACKEND_RequestCorrelationId(request: *mut TRITONBACKEND_Request, id: *mut u64) {
        let request = object(request)?;
        let number = match request.sequence().0 {
            CorrelationId::None => 0,
            CorrelationId::Number(number) => *number,
            CorrelationId::Text(_) => {
                return Err(Status::invalid_argument(format!(
                    "{}correlation ID in request is not an unsigned int",
                    request.log_prefix()
                )));
            }
        };
        pointer::write(id, number, "id")
    }

    /// Returns the request's queue timeout.
    fn TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
        request: *mut TRITONBACKEND_Request,
        timeout: *mut u64,
    ) {
        let microseconds = object(request)?.pending.request().timeout_microseconds;
        pointer::write(timeout, microseconds, "timeout")
    }

    /// Returns the sequence identifier if it is a string.
    fn TRITONBACKEND_RequestCorrelationIdString(
        request: *mut TRITONBACKEND_Request,
        id: *mut *const c_char,
    ) {
        let request = object(request)?;
        let found = request.correlation_text().ok_or_else(|| {
            Status::invalid_argument(format!(
                "{}correlation ID in request is not a string",
                request.log_prefix()
            ))
        })?;
        pointer::write(id, found, "id")
    }

    /// Returns the flags that mark the start or the end of the request's sequence.
    fn TRITONBACKEND_RequestFlags(request: *mut TRITONBACKEND_Request, flags: *mut u32) {
        let (_, at) = object(request)?.sequence();
        let start = if at.start { TRITONSERVER_REQUEST_FLAG_SEQUENCE_START.0 } else { 0 };
        let end = if at.end { TRITONSERVER_REQUEST_FLAG_SEQUENCE_END.0 } else { 0 };
        pointer::write(flags, start | end, "flags")
    }

    /// Returns the number of request parameters.
    fn TRITONBACKEND_RequestParameterCount(
        request: *mut TRITONBACKEND_Request,
        number: *mut u32,
    ) {
        pointer::write(number, list::len_u32(object(request)?.parameters()), "count")
    }

    /// Returns a request parameter.
    fn TRITONBACKEND_RequestParameter(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        key: *mut *const c_char,
        type_: *mut TRITONSERVER_ParameterType,
        vvalue: *mut *const c_void,
    ) {
        let request = object(request)?;
        let parameter = at(request, request.parameters(), index, "parameters")?;
        let (kind, value) = parameter.view();
        pointer::write(key, parameter.name.as_ptr(), "key")?;
        pointer::write(type_, kind, "type")?;
        pointer::write(vvalue, value, "vvalue")
    }

    /// Returns the number of inputs of the request, including controls and states.
    fn TRITONBACKEND_RequestInputCount(request: *mut TRITONBACKEND_Request, number: *mut u32) {
        pointer::write(number, list::len_u32(object(request)?.tensors()), "count")
    }

    /// Returns the name of an input.
    fn TRITONBACKEND_RequestInputName(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        input_name: *mut *const c_char,
    ) {
        pointer::write(input_name, core::ptr::null(), "input_name")?;
        let request = object(request)?;
        at(request, request.tensors(), index, "inputs")?;
        let input = usize::try_from(index).ok().and_then(|index| request.input(index));
        let name = input.and_then(|input| input.get()).map(|input| input.name());
        pointer::write(input_name, name.unwrap_or(core::ptr::null()), "input_name")
    }

    /// Returns the input with this name.
    fn TRITONBACKEND_RequestInput(
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        input: *mut *mut TRITONBACKEND_Input,
    ) {
        pointer::write(input, core::ptr::null_mut(), "input")?;
        let request = object(request)?;
        let name = pointer::required_c_str(name, "name")?;
        let index = request.tensors().iter().position(|tensor| tensor.name == name);
        let found = index.and_then(|index| request.input(index)).ok_or_else(|| {
            Status::invalid_argument(format!(
                "{}unknown request input name {name}",
                request.log_prefix()
            ))
        })?;
        pointer::write(input, found.address(), "input")
    }

    /// Returns the input at this index.
    fn TRITONBACKEND_RequestInputByIndex(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        input: *mut *mut TRITONBACKEND_Input,
    ) {
        pointer::write(input, input_at(object(request)?, index)?, "input")
    }

    /// Returns the number of requested outputs.
    fn TRITONBACKEND_RequestOutputCount(request: *mut TRITONBACKEND_Request, number: *mut u32) {
        let request = object(request)?;
        pointer::write(number, list::len_u32(request.outputs(serving(request)?)), "count")
    }

    /// Returns the name of a requested output.
    fn TRITONBACKEND_RequestOutputName(
        request: *mut TRITONBACKEND_Request,
        index: u32,
        output_name: *mut *const c_char,
    ) {
        pointer::write(output_name, core::ptr::null(), "output_name")?;
        let request = object(request)?;
        let outputs = request.outputs(serving(request)?);
        let name = at(request, outputs, index, "requested outputs")?;
        pointer::write(output_name, name.as_ptr(), "output_name")
    }

    /// Returns the preferred memory for an output: the kind that the C API caller specifies,
    /// otherwise CPU memory.
    fn TRITONBACKEND_RequestOutputBufferProperties(
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let object = object(request)?;
        pointer::check_not_null(memory_type, "memory_type")?;
        pointer::check_not_null(memory_type_id, "memory_type_id")?;
        if let Some(query) = object.output_query() {
            return match query.call(name, byte_size, memory_type, memory_type_id) {
                Some(outcome) => outcome,
                None => Err(Status::unavailable("Output properties are not available")
                    .prefixed(object.log_prefix())),
            };
        }
        pointer::write(memory_type, TRITONSERVER_MEMORY_CPU, "memory_type")?;
        pointer::write(memory_type_id, 0, "memory_type_id")
    }

    /// Releases a request that is either done or to be rescheduled. If the call fails, the request
    /// still belongs to the backend.
    fn TRITONBACKEND_RequestRelease(request: *mut TRITONBACKEND_Request, release_flags: u32) {
        let reschedule = release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.0 != 0;
        if !reschedule && release_flags & TRITONSERVER_REQUEST_RELEASE_ALL.0 == 0 {
            return Err(Status::invalid_argument(format!(
                "release flags {release_flags} ask neither for ALL nor for RESCHEDULE"
            )));
        }
        object(request)?.check_executed()?;
        if reschedule {
            // Checked first, because the request must keep its address if the check fails.
            let object = object(request)?;
            object.check_reschedule()?;
            if let Some(recorder) = object.recorder() {
                object.instance_guard.record_rescheduled(request, recorder);
            }
        }
        let request: RequestObject = handle::take(request, "request")?;
        if reschedule {
            request.reschedule();
        } else {
            request.release();
        }
        Ok(())
    }

    /// Returns the request's trace, which the server owns, or null if the request has no C trace.
    fn TRITONBACKEND_RequestTrace(
        request: *mut TRITONBACKEND_Request,
        trace: *mut *mut TRITONSERVER_InferenceTrace,
    ) {
        pointer::write(trace, object(request)?.trace(), "trace")
    }

    /// Begins a new value for a state. A second call returns the same object.
    fn TRITONBACKEND_StateNew(
        state: *mut *mut TRITONBACKEND_State,
        request: *mut TRITONBACKEND_Request,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        let request = object(request)?;
        request.check_executed()?;
        let name = pointer::required_c_str(name, "name")?;
        let datatype = data_type_from_c(datatype)
            .ok_or_else(|| Status::invalid_argument(format!("state '{name}' has no datatype")))?;
        let shape = shape_from_c(shape, dims_count, name)?;
        state_spec(&serving(request)?.spec, name, datatype)?;
        let mut states = request.states.lock("begin a state");
        let mut known = states.iter().filter(|state| {
            state.get().is_some_and(|object| object.output_name() == name)
        });
        let found = match known.next() {
            Some(known) => {
                if let Some(object) = known.get() {
                    object.set_shape(shape);
                }
                known.address()
            }
            None => {
                // With a shared buffer, the new value overwrites the old one.
                let shared = request.shared_states.iter().find(|one| one.output_name == name);
                let made =
                    Owned::new(StateObject::new(name.to_owned(), datatype, shape, shared));
                let address = made.address();
                states.push(made);
                address
            }
        };
        drop(states);
        pointer::write(state, found, "state")
    }
}
