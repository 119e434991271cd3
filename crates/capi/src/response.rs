//! Responses as C reads them.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::Arc;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::names::data_type_to_c;
use galatea_c_objects::{catch_panic, handle, list, pointer};
use galatea_infer::{ClassificationInfo, InferenceResponse, Parameter, ParameterValue, Status};
use galatea_stdx::len64;

use crate::allocator::{Allocator, OutputBuffer};

/// A response or an error.
pub(crate) struct ResponseObject {
    status: Result<(), Status>,
    model_name: CString,
    model_version: i64,
    id: CString,
    parameters: Vec<ResponseParameter>,
    outputs: Vec<ResponseOutput>,
    /// The class labels of the version that responded. Kept because C receives pointers to them.
    classes: Option<Arc<ClassificationInfo>>,
}
galatea_c_objects::object!(ResponseObject as TRITONSERVER_InferenceResponse, kind 44);

struct ResponseParameter {
    name: CString,
    value: ResponseValue,
}

enum ResponseValue {
    Bool(bool),
    Int64(i64),
    Double(f64),
    String(CString),
}

struct ResponseOutput {
    name: CString,
    datatype: TRITONSERVER_DataType,
    shape: Vec<i64>,
    buffer: OutputBuffer,
}

impl ResponseObject {
    /// Creates a response whose outputs are in the caller's buffers. If an output can't be stored
    /// there, the response becomes an error.
    pub(crate) fn new(
        result: Result<InferenceResponse, Status>,
        request: &RequestIdentity,
        classes: Option<Arc<ClassificationInfo>>,
        allocator: &Allocator,
    ) -> Self {
        let mut object = Self {
            status: Ok(()),
            model_name: to_c_string(&request.model_name),
            model_version: request.model_version,
            id: to_c_string(&request.id),
            parameters: Vec::new(),
            outputs: Vec::new(),
            classes,
        };
        // Called even for an error, because callers use the call to prepare for the response.
        let filled =
            allocator.start().and(result).and_then(|response| object.fill(&response, allocator));
        if let Err(status) = filled {
            object.outputs.clear();
            object.status = Err(status);
        }
        object
    }

    fn fill(&mut self, response: &InferenceResponse, allocator: &Allocator) -> Result<(), Status> {
        self.model_version = response.model_version;
        self.parameters = response.parameters.iter().map(ResponseParameter::new).collect();
        for output in &response.outputs {
            let name = to_c_string(&output.name);
            let buffer = allocator.copy_output(&name, &output.data)?;
            self.outputs.push(ResponseOutput {
                name,
                datatype: data_type_to_c(output.datatype),
                shape: output.shape.dims().to_vec(),
                buffer,
            });
        }
        Ok(())
    }
}

/// The request's identity in an error response.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestIdentity {
    pub(crate) model_name: String,
    pub(crate) model_version: i64,
    pub(crate) id: String,
}

impl ResponseParameter {
    fn new(parameter: &Parameter) -> Self {
        let value = match &parameter.value {
            ParameterValue::Bool(value) => ResponseValue::Bool(*value),
            ParameterValue::Int64(value) => ResponseValue::Int64(*value),
            ParameterValue::Double(value) => ResponseValue::Double(*value),
            ParameterValue::String(value) => ResponseValue::String(to_c_string(value)),
        };
        Self { name: to_c_string(&parameter.name), value }
    }
}

/// Defines functions that read a response. `$body` receives the response and the arguments.
macro_rules! readers {
    ($($function:ident($($argument:ident: $kind:ty),*) $body:expr;)*) => {
        $(
            const _: $function = $function;
            /// Reads the response. Returned pointers are valid as long as the response.
            ///
            /// # Safety
            ///
            /// `response` must be null or a response that outlives the call. Out pointers must be
            /// null or valid for writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                response: *mut TRITONSERVER_InferenceResponse,
                $($argument: $kind),*
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    let response = {
                        // SAFETY: guaranteed by the caller.
                        unsafe { handle::borrow::<ResponseObject>(response, "response")? }
                    };
                    let read: unsafe fn(&ResponseObject, $($kind),*) -> Result<(), Status> = $body;
                    // SAFETY: guaranteed by the caller.
                    unsafe { read(response, $($argument),*) }
                })
            }
        )*
    };
}

readers! {
    TRITONSERVER_InferenceResponseModel(model_name: *mut *const c_char, version: *mut i64)
        read_model;
    TRITONSERVER_InferenceResponseId(request_id: *mut *const c_char) read_id;
    TRITONSERVER_InferenceResponseParameterCount(count: *mut u32) read_parameter_count;
    TRITONSERVER_InferenceResponseParameter(
        index: u32,
        name: *mut *const c_char,
        type_: *mut TRITONSERVER_ParameterType,
        value: *mut *const c_void) read_parameter;
    TRITONSERVER_InferenceResponseOutputCount(count: *mut u32) read_output_count;
    TRITONSERVER_InferenceResponseOutput(
        index: u32,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
        base: *mut *const c_void,
        byte_size: *mut usize,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
        userp: *mut *mut c_void) read_output;
    TRITONSERVER_InferenceResponseOutputClassificationLabel(
        index: u32,
        class_index: usize,
        label: *mut *const c_char) read_label;
}

/// # Safety
///
/// The out pointers must be null or valid for writes, as in all functions below.
unsafe fn read_model(
    response: &ResponseObject,
    model_name: *mut *const c_char,
    version: *mut i64,
) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        pointer::write(model_name, response.model_name.as_ptr(), "model_name")?;
        pointer::write(version, response.model_version, "model_version")
    }
}

unsafe fn read_id(response: &ResponseObject, id: *mut *const c_char) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::write(id, response.id.as_ptr(), "request_id") }
}

unsafe fn read_parameter_count(response: &ResponseObject, count: *mut u32) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::write(count, list::len_u32(&response.parameters), "count") }
}

unsafe fn read_parameter(
    response: &ResponseObject,
    index: u32,
    name: *mut *const c_char,
    type_: *mut TRITONSERVER_ParameterType,
    value: *mut *const c_void,
) -> Result<(), Status> {
    let parameter = at(&response.parameters, index, "parameter")?;
    let (kind, address): (_, *const c_void) = match &parameter.value {
        ResponseValue::Bool(value) => {
            (TRITONSERVER_PARAMETER_BOOL, core::ptr::from_ref(value).cast())
        }
        ResponseValue::Int64(value) => {
            (TRITONSERVER_PARAMETER_INT, core::ptr::from_ref(value).cast())
        }
        ResponseValue::Double(value) => {
            (TRITONSERVER_PARAMETER_DOUBLE, core::ptr::from_ref(value).cast())
        }
        ResponseValue::String(value) => (TRITONSERVER_PARAMETER_STRING, value.as_ptr().cast()),
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        pointer::write(name, parameter.name.as_ptr(), "name")?;
        pointer::write(type_, kind, "type")?;
        pointer::write(value, address, "vvalue")
    }
}

unsafe fn read_output_count(response: &ResponseObject, count: *mut u32) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::write(count, list::len_u32(&response.outputs), "count") }
}

#[expect(clippy::too_many_arguments, reason = "the header has that many")]
unsafe fn read_output(
    response: &ResponseObject,
    index: u32,
    name: *mut *const c_char,
    datatype: *mut TRITONSERVER_DataType,
    shape: *mut *const i64,
    dim_count: *mut u64,
    base: *mut *const c_void,
    byte_size: *mut usize,
    memory_type: *mut TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
    userp: *mut *mut c_void,
) -> Result<(), Status> {
    let output = at(&response.outputs, index, "output")?;
    let dims = len64(output.shape.len());
    // SAFETY: guaranteed by the caller.
    unsafe {
        pointer::write(name, output.name.as_ptr(), "name")?;
        pointer::write(datatype, output.datatype, "datatype")?;
        pointer::write(shape, output.shape.as_ptr(), "shape")?;
        pointer::write(dim_count, dims, "dim_count")?;
        pointer::write(base, output.buffer.base.cast_const(), "base")?;
        pointer::write(byte_size, output.buffer.byte_size, "byte_size")?;
        pointer::write(memory_type, output.buffer.memory_type, "memory_type")?;
        pointer::write(memory_type_id, output.buffer.memory_type_id, "memory_type_id")?;
        pointer::write(userp, output.buffer.userp, "userp")
    }
}

/// Writes null for a class without a label.
unsafe fn read_label(
    response: &ResponseObject,
    index: u32,
    class_index: usize,
    label: *mut *const c_char,
) -> Result<(), Status> {
    let output = at(&response.outputs, index, "output")?;
    let labels = output.name.to_str().ok().and_then(|name| response.classes.as_ref()?.labels(name));
    let found = labels.and_then(|labels| labels.get(class_index));
    let address = found.map_or(core::ptr::null(), |label| label.as_ptr());
    // SAFETY: guaranteed by the caller.
    unsafe { pointer::write(label, address, "label") }
}

fn at<'a, T>(items: &'a [T], index: u32, what: &str) -> Result<&'a T, Status> {
    list::get_u32(items, index).ok_or_else(|| {
        Status::invalid_argument(format!(
            "out of bounds index {index}: response has {} {what}s",
            items.len()
        ))
    })
}

const _: TRITONSERVER_InferenceResponseError = TRITONSERVER_InferenceResponseError;
/// Returns the response's error, which the caller must delete, or null if there is none.
///
/// # Safety
///
/// `response` must be null or a response that outlives the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseError(
    response: *mut TRITONSERVER_InferenceResponse,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceResponseError", || {
        // SAFETY: guaranteed by the caller.
        let response = unsafe { handle::borrow::<ResponseObject>(response, "response")? };
        response.status.clone()
    })
}

const _: TRITONSERVER_InferenceResponseDelete = TRITONSERVER_InferenceResponseDelete;
/// Deletes a response and releases its buffers to the allocator.
///
/// # Safety
///
/// `response` must be null or a response that is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceResponseDelete(
    response: *mut TRITONSERVER_InferenceResponse,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceResponseDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<ResponseObject>(response, "response") }
    })
}
