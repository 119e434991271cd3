//! Requests as C builds them.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::names::data_type_from_c;
use galatea_c_objects::pointer::OutPointer;
use galatea_c_objects::{catch_panic, handle, pointer};
use galatea_control::{PriorityLevels, find_or_wait};
use galatea_devices::Devices;
use galatea_infer::{AccessPass, Parameter, ParameterValue, Status};
use galatea_tensor::DataType;

use crate::allocator::Allocator;
use crate::gpu_memory;
use crate::ownership::Ownership;
use crate::server::{model_name, running, version};

/// A request that is being built or that the server has.
pub(crate) struct RequestObject {
    /// The GPUs whose memory the inputs and outputs may be in.
    pub(crate) devices: Devices,
    pub(crate) model_name: String,
    pub(crate) model_version: Option<i64>,
    pub(crate) id: CString,
    pub(crate) flags: u32,
    pub(crate) correlation: Correlation,
    pub(crate) priority: u64,
    pub(crate) priority_levels: PriorityLevels,
    pub(crate) timeout_microseconds: u64,
    pub(crate) inputs: Vec<RequestInput>,
    pub(crate) outputs: Vec<String>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) ownership: Ownership,
    pub(crate) release: Option<ReleaseCallback>,
    pub(crate) response: Option<ResponseCallback>,
}
galatea_c_objects::object!(RequestObject as TRITONSERVER_InferenceRequest, kind 45);

#[derive(Clone, Debug)]
pub(crate) enum Correlation {
    Number(u64),
    Text(CString),
}

/// An input in the caller's memory.
#[derive(Clone)]
pub(crate) struct RequestInput {
    pub(crate) name: String,
    /// `None` for a raw input, which consists only of bytes.
    pub(crate) type_and_shape: Option<(DataType, Vec<i64>)>,
    pub(crate) segments: Vec<InputSegment>,
    /// The data that instances with a host policy receive instead of the default data.
    pub(crate) host_policies: Vec<(String, Vec<InputSegment>)>,
}

impl RequestInput {
    fn segments_for(&mut self, host_policy: Option<&str>) -> &mut Vec<InputSegment> {
        let Some(policy) = host_policy else { return &mut self.segments };
        let known = self.host_policies.iter().position(|(name, _)| name == policy);
        let index = known.unwrap_or(self.host_policies.len());
        if known.is_none() {
            self.host_policies.push((policy.to_owned(), Vec::new()));
        }
        &mut self.host_policies[index].1
    }
}

/// A contiguous part of an input's data.
#[derive(Copy, Clone)]
pub(crate) struct InputSegment {
    pub(crate) base: *const c_void,
    pub(crate) byte_size: usize,
    /// The number of the GPU whose memory contains the segment; `None` for host memory.
    pub(crate) gpu: Option<i64>,
}

// SAFETY: the caller guaranteed that the bytes don't change until the request is released, so any
// thread may read them.
unsafe impl Send for InputSegment {}
// SAFETY: as above.
unsafe impl Sync for InputSegment {}

/// A callback that returns a request to its caller.
#[derive(Copy, Clone)]
pub(crate) struct ReleaseCallback {
    pub(crate) function: TRITONSERVER_InferenceRequestReleaseFn_t,
    pub(crate) userp: *mut c_void,
}

// SAFETY: the header requires that callbacks can be called on any thread. The pointer is only
// passed to them.
unsafe impl Send for ReleaseCallback {}
// SAFETY: as above.
unsafe impl Sync for ReleaseCallback {}

/// A callback that receives responses.
#[derive(Clone)]
pub(crate) struct ResponseCallback {
    pub(crate) allocator: Allocator,
    pub(crate) function: TRITONSERVER_InferenceResponseCompleteFn_t,
    pub(crate) userp: *mut c_void,
}

// SAFETY: as for `ReleaseCallback`.
unsafe impl Send for ResponseCallback {}
// SAFETY: as above.
unsafe impl Sync for ResponseCallback {}

impl RequestObject {
    fn input(&mut self, name: &str) -> Result<&mut RequestInput, Status> {
        let found = self.inputs.iter_mut().find(|input| input.name == name);
        found.ok_or_else(|| {
            Status::invalid_argument(format!("input '{name}' does not exist in request"))
        })
    }

    fn add_input(
        &mut self,
        name: &str,
        type_and_shape: Option<(DataType, Vec<i64>)>,
    ) -> Result<(), Status> {
        if self.inputs.iter().any(|input| input.name == name) {
            let text = format!("input '{name}' already exists in request");
            return Err(Status::invalid_argument(text));
        }
        let (name, segments, host_policies) = (name.to_owned(), Vec::new(), Vec::new());
        self.inputs.push(RequestInput { name, type_and_shape, segments, host_policies });
        Ok(())
    }

    fn append(
        &mut self,
        name: &str,
        host_policy: Option<&str>,
        (base, byte_size): (*const c_void, usize),
        (memory_type, number): (TRITONSERVER_MemoryType, i64),
    ) -> Result<(), Status> {
        let gpu = (memory_type == TRITONSERVER_MEMORY_GPU).then_some(number);
        if let Some(number) = gpu {
            if self.devices.is_empty() {
                let text =
                    format!("input '{name}' is in a GPU's memory, which this server can't read");
                return Err(Status::unsupported(text));
            }
            let checked = gpu_memory::device(&self.devices, number);
            checked.map_err(|status| status.prefixed(format_args!("input '{name}': ")))?;
        }
        let segment = InputSegment { base, byte_size, gpu };
        if segment.base.is_null() && segment.byte_size > 0 {
            return Err(Status::invalid_argument("base must not be null"));
        }
        self.input(name)?.segments_for(host_policy).push(segment);
        Ok(())
    }

    fn set_parameter(&mut self, name: &str, value: ParameterValue) -> Result<(), Status> {
        if name.is_empty() {
            return Err(Status::invalid_argument("a parameter needs a name"));
        }
        self.parameters.retain(|parameter| parameter.name != name);
        self.parameters.push(Parameter { name: name.to_owned(), value });
        Ok(())
    }
}

const _: TRITONSERVER_InferenceRequestNew = TRITONSERVER_InferenceRequestNew;
/// Creates a request for a model. A version of -1 means the newest version.
///
/// # Safety
///
/// `request` must be null or valid for a write, `server` must be null or a server, and `name` must
/// be null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestNew(
    request: *mut *mut TRITONSERVER_InferenceRequest,
    server: *mut TRITONSERVER_Server,
    name: *const c_char,
    number: i64,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceRequestNew", || {
        // SAFETY: guaranteed by the caller.
        let (server, name) = unsafe { (running(server)?, model_name(name)?) };
        // As in Triton, a request for a missing model is rejected here.
        // A model that is loaded on demand is loaded here, because its priorities must be known.
        let model =
            find_or_wait(&*server.control, AccessPass::in_process(), name, version(number))?;
        let levels = model.priority_levels();
        pointer::check_not_null(request, "inference_request")?;
        let made = handle::into_raw(RequestObject {
            devices: server.devices.clone(),
            model_name: name.to_owned(),
            model_version: version(number),
            id: CString::default(),
            flags: 0,
            correlation: Correlation::Number(0),
            priority: levels.default,
            priority_levels: levels,
            timeout_microseconds: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            parameters: Vec::new(),
            ownership: Ownership::default(),
            release: None,
            response: None,
        });
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(request, made, "inference_request") }
    })
}

const _: TRITONSERVER_InferenceRequestDelete = TRITONSERVER_InferenceRequestDelete;
/// Deletes a request that the server doesn't have.
///
/// # Safety
///
/// `request` must be null or a request that is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_InferenceRequestDelete(
    request: *mut TRITONSERVER_InferenceRequest,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_InferenceRequestDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<RequestObject>(request, "inference_request") }
    })
}

/// Defines functions that read a request (`reads`), which several threads may do concurrently, or
/// change it (`changes`). `$body` receives the request and the arguments, with strings already
/// converted to `&str`.
macro_rules! request_functions {
    (reads { $($all:tt)* }) => {
        request_functions! { @with borrow (&RequestObject) $($all)* }
    };
    (changes { $($all:tt)* }) => {
        request_functions! { @with borrow_mut (&mut RequestObject) $($all)* }
    };
    (@with $borrow:ident ($object:ty)
        $($function:ident($($argument:ident: $kind:tt),*) $body:expr;)*) => {
        $(
            const _: $function = $function;
            /// Reads or changes the request. A returned pointer is valid until the request is
            /// changed or deleted.
            ///
            /// # Safety
            ///
            /// `request` must be null or a request that no thread changes; if the function changes
            /// it, no other thread may use it. Strings must be null or NUL-terminated. Out pointers
            /// must be null or valid for writes, and other pointers must be valid as the header
            /// requires.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                request: *mut TRITONSERVER_InferenceRequest,
                $($argument: request_functions!(@type $kind)),*
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    // SAFETY: guaranteed by the caller.
                    let request = unsafe {
                        handle::$borrow::<RequestObject>(request, "inference_request")?
                    };
                    $(let $argument = request_functions!(@value $kind $argument);)*
                    let body: unsafe fn(
                        $object,
                        $(request_functions!(@parameter $kind)),*
                    ) -> Result<(), Status> = $body;
                    // SAFETY: guaranteed by the caller.
                    unsafe { body(request, $($argument),*) }
                })
            }
        )*
    };
    (@type text) => { *const c_char };
    (@type $kind:ident) => { $kind };
    (@type [$kind:ty]) => { $kind };
    (@type {$kind:ty}) => { *mut $kind };
    (@parameter text) => { &str };
    (@parameter $kind:ident) => { $kind };
    (@parameter [$kind:ty]) => { $kind };
    (@parameter {$kind:ty}) => { OutPointer<$kind> };
    (@value text $argument:ident) => {
        // SAFETY: the caller guarantees valid strings.
        unsafe { pointer::required_c_str($argument, stringify!($argument))? }
    };
    (@value {$kind:ty} $argument:ident) => {
        // SAFETY: the caller guarantees that the pointers are null or valid for writes.
        unsafe { OutPointer::new($argument, stringify!($argument)) }
    };
    (@value $kind:tt $argument:ident) => { $argument };
}

request_functions! { reads {
    TRITONSERVER_InferenceRequestId(id: {*const c_char})
        |request, id| id.write(request.id.as_ptr());
    TRITONSERVER_InferenceRequestFlags(flags: {u32})
        |request, flags| flags.write(request.flags);
    TRITONSERVER_InferenceRequestCorrelationId(id: {u64}) |request, id| {
        let Correlation::Number(number) = request.correlation else {
            return Err(Status::invalid_argument(
                "given request's correlation id is not an unsigned int",
            ));
        };
        id.write(number)
    };
    TRITONSERVER_InferenceRequestCorrelationIdString(id: {*const c_char}) |request, id| {
        let Correlation::Text(text) = &request.correlation else {
            return Err(Status::invalid_argument(
                "given request's correlation id is not a string",
            ));
        };
        id.write(text.as_ptr())
    };
    TRITONSERVER_InferenceRequestCancel() |request| {
        request.ownership.cancel_token()?.cancel();
        Ok(())
    };
    TRITONSERVER_InferenceRequestIsCancelled(is_cancelled: {bool}) |request, is_cancelled| {
        is_cancelled.write(request.ownership.cancel_token()?.is_cancelled())
    };
    TRITONSERVER_InferenceRequestPriority(priority: {u32}) |request, priority| {
        let number = u32::try_from(request.priority).map_err(|_| {
            Status::invalid_argument(format!(
                "request priority overflows uint32_t, use \
                 TRITONSERVER_InferenceRequestPriorityUInt64, priority={}",
                request.priority
            ))
        })?;
        priority.write(number)
    };
    TRITONSERVER_InferenceRequestPriorityUInt64(priority: {u64})
        |request, priority| priority.write(request.priority);
    TRITONSERVER_InferenceRequestTimeoutMicroseconds(timeout_us: {u64})
        |request, timeout_us| timeout_us.write(request.timeout_microseconds);
} }

request_functions! { changes {
    TRITONSERVER_InferenceRequestSetId(id: text) |request, id| {
        request.id = to_c_string(id);
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetFlags(flags: u32) |request, flags| {
        request.flags = flags;
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetCorrelationId(id: u64) |request, id| {
        request.correlation = Correlation::Number(id);
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetCorrelationIdString(id: text) |request, id| {
        if id.len() > 128 {
            return Err(Status::unsupported(format!(
                "string correlation ID cannot be longer than 128 characters, got {}",
                id.len()
            )));
        }
        request.correlation = Correlation::Text(to_c_string(id));
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetPriority(priority: u32) |request, priority| {
        request.priority = request.priority_levels.effective_priority(u64::from(priority));
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetPriorityUInt64(priority: u64) |request, priority| {
        request.priority = request.priority_levels.effective_priority(priority);
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(timeout_us: u64) |request, timeout_us| {
        request.timeout_microseconds = timeout_us;
        Ok(())
    };
    TRITONSERVER_InferenceRequestAddInput(
        name: text,
        datatype: TRITONSERVER_DataType,
        shape: [*const i64],
        dim_count: u64) add_input;
    TRITONSERVER_InferenceRequestAddRawInput(name: text) |request, name| {
        if !request.inputs.is_empty() {
            return Err(Status::invalid_argument(format!(
                "raw input '{name}' can't be added to request with other inputs"
            )));
        }
        request.add_input(name, None)
    };
    TRITONSERVER_InferenceRequestRemoveInput(name: text) |request, name| {
        request.input(name)?;
        request.inputs.retain(|input| input.name != name);
        Ok(())
    };
    TRITONSERVER_InferenceRequestRemoveAllInputs() |request| {
        request.inputs.clear();
        Ok(())
    };
    TRITONSERVER_InferenceRequestAppendInputData(
        name: text,
        base: [*const c_void],
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64) |request, name, base, byte_size, memory_type, id| {
            request.append(name, None, (base, byte_size), (memory_type, id))
        };
    TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
        name: text,
        base: [*const c_void],
        byte_size: usize,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        host_policy_name: text) |request, name, base, byte_size, memory_type, id, policy| {
            request.append(name, Some(policy), (base, byte_size), (memory_type, id))
        };
    TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
        name: text,
        base: [*const c_void],
        attributes: [*mut TRITONSERVER_BufferAttributes]) |request, name, base, attributes| {
            // SAFETY: the caller of the exported function guarantees valid attributes.
            let attributes = unsafe {
                handle::borrow::<BufferAttributesObject>(attributes, "buffer_attributes")?
            };
            let place = (attributes.memory_type, attributes.memory_type_id);
            request.append(name, None, (base, attributes.byte_size), place)
        };
    TRITONSERVER_InferenceRequestRemoveAllInputData(name: text) |request, name| {
        let input = request.input(name)?;
        input.segments.clear();
        input.host_policies.clear();
        Ok(())
    };
    TRITONSERVER_InferenceRequestAddRequestedOutput(name: text) |request, name| {
        if !request.outputs.iter().any(|output| output == name) {
            request.outputs.push(name.to_owned());
        }
        Ok(())
    };
    TRITONSERVER_InferenceRequestRemoveRequestedOutput(name: text) |request, name| {
        request.outputs.retain(|output| output != name);
        Ok(())
    };
    TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs() |request| {
        request.outputs.clear();
        Ok(())
    };
    TRITONSERVER_InferenceRequestSetReleaseCallback(
        function: TRITONSERVER_InferenceRequestReleaseFn_t,
        userp: [*mut c_void]) |request, function, userp| {
            request.release = Some(ReleaseCallback { function, userp });
            Ok(())
        };
    TRITONSERVER_InferenceRequestSetResponseCallback(
        allocator: [*mut TRITONSERVER_ResponseAllocator],
        allocator_userp: [*mut c_void],
        function: TRITONSERVER_InferenceResponseCompleteFn_t,
        userp: [*mut c_void]) |request, allocator, allocator_userp, function, userp| {
            // SAFETY: the caller of the exported function guarantees that the allocator outlives
            // the requests that use it.
            let allocator = unsafe { Allocator::new(allocator, allocator_userp, &request.devices)? };
            request.response = Some(ResponseCallback { allocator, function, userp });
            Ok(())
        };
    TRITONSERVER_InferenceRequestSetStringParameter(key: text, value: text)
        |request, key, value| {
            request.set_parameter(key, ParameterValue::String(value.to_owned()))
        };
    TRITONSERVER_InferenceRequestSetIntParameter(key: text, value: i64)
        |request, key, value| request.set_parameter(key, ParameterValue::Int64(value));
    TRITONSERVER_InferenceRequestSetBoolParameter(key: text, value: bool)
        |request, key, value| request.set_parameter(key, ParameterValue::Bool(value));
    TRITONSERVER_InferenceRequestSetDoubleParameter(key: text, value: f64)
        |request, key, value| request.set_parameter(key, ParameterValue::Double(value));
} }

/// # Safety
///
/// `shape` must be valid for reads of `dim_count` numbers.
unsafe fn add_input(
    request: &mut RequestObject,
    name: &str,
    datatype: TRITONSERVER_DataType,
    shape: *const i64,
    dim_count: u64,
) -> Result<(), Status> {
    let datatype = data_type_from_c(datatype).ok_or_else(|| {
        Status::invalid_argument(format!("input '{name}' has no datatype: {}", datatype.0))
    })?;
    let dims = usize::try_from(dim_count)
        .map_err(|_| Status::invalid_argument("dim_count is too large"))?;
    // SAFETY: guaranteed by the caller.
    let shape = unsafe { pointer::slice(shape, dims, "shape")? };
    request.add_input(name, Some((datatype, shape.to_vec())))
}
