//! Request inputs.

use core::ffi::{c_char, c_void};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use galatea_abi::{
    TRITONBACKEND_Input, TRITONSERVER_BufferAttributes, TRITONSERVER_DataType,
    TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::names::data_type_to_c;
use galatea_c_objects::{handle, list, pointer};
use galatea_infer::{InputTensor, Status};
use galatea_stdx::len64;
use galatea_tensor::{Buffer, MemoryKind, Shape};

use crate::host_buffer::HostBuffer;
use crate::owned::Owned;

/// An input as C sees it. The input belongs to its request, which owns the elements.
pub(crate) struct InputObject {
    name: CString,
    datatype: TRITONSERVER_DataType,
    shape: Shape,
    buffer: MemoryView,
    /// The elements for host policies that have their own data.
    host_policies: Box<[(CString, MemoryView)]>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}
galatea_c_objects::object!(InputObject as TRITONBACKEND_Input, kind 26);

/// The address, size and kind of a tensor's memory.
#[derive(Copy, Clone)]
pub(crate) struct MemoryView {
    address: *const c_void,
    byte_size: usize,
    memory_type: TRITONSERVER_MemoryType,
    memory_type_id: i64,
}

// SAFETY: the address is only passed to C and isn't dereferenced here.
unsafe impl Send for MemoryView {}
// SAFETY: as above.
unsafe impl Sync for MemoryView {}

impl MemoryView {
    fn of(buffer: &Buffer) -> Self {
        let (memory_type, memory_type_id) = match buffer.memory_kind() {
            MemoryKind::Cpu => (TRITONSERVER_MEMORY_CPU, 0),
            MemoryKind::Gpu(device) => (TRITONSERVER_MEMORY_GPU, i64::from(device)),
        };
        let host = buffer.host_bytes().map(|bytes| bytes.as_ptr().cast());
        let device =
            buffer.device_location().and_then(|region| usize::try_from(region.address).ok());
        let address = host.or(device.map(core::ptr::without_provenance));
        Self {
            address: address.unwrap_or(core::ptr::null()),
            byte_size: buffer.len(),
            memory_type,
            memory_type_id,
        }
    }

    pub(crate) fn of_host(buffer: &HostBuffer) -> Self {
        Self::of_first(buffer, buffer.byte_size())
    }

    /// Creates a view of the first bytes of a buffer.
    pub(crate) fn of_first(buffer: &HostBuffer, byte_size: usize) -> Self {
        Self {
            address: buffer.address(),
            byte_size,
            memory_type: TRITONSERVER_MEMORY_CPU,
            memory_type_id: 0,
        }
    }

    /// The address and size of memory that C may write.
    pub(crate) const fn writable(&self) -> (*mut c_void, usize) {
        (self.address.cast_mut(), self.byte_size)
    }

    pub(crate) const fn attributes(&self) -> BufferAttributesObject {
        BufferAttributesObject {
            memory_type: self.memory_type,
            memory_type_id: self.memory_type_id,
            byte_size: self.byte_size,
            cuda_ipc_handle: None,
        }
    }
}

impl InputObject {
    /// Reports a shape tensor with the batch size as its first dimension, as Triton does, although
    /// its elements aren't repeated.
    pub(super) fn with_batch_size(mut self, batch_size: i64) -> Self {
        let dims: Vec<i64> =
            core::iter::once(batch_size).chain(self.shape.dims().iter().copied()).collect();
        // The shape can't have too many elements, because no memory could contain them.
        if let Ok(shape) = Shape::new(&dims) {
            self.shape = shape;
        }
        self
    }

    /// Creates an input. `shared` is the memory of a state that is updated in place.
    pub(super) fn new(tensor: &InputTensor, shared: Option<MemoryView>) -> Self {
        let own = shared.map_or_else(|| tensor.data.host_policy_buffers(), |_| &[]);
        let host_policies =
            own.iter().map(|(name, data)| (to_c_string(name), MemoryView::of(data)));
        Self {
            name: to_c_string(&tensor.name),
            host_policies: host_policies.collect(),
            datatype: data_type_to_c(tensor.datatype),
            shape: tensor.shape.clone(),
            buffer: shared.unwrap_or_else(|| MemoryView::of(&tensor.data)),
            attributes: OnceLock::new(),
        }
    }

    pub(super) fn name(&self) -> *const c_char {
        self.name.as_ptr()
    }

    /// The memory for a host policy, or the default memory for `None`.
    fn view(&self, host_policy: Option<&CStr>) -> &MemoryView {
        let mut own = self.host_policies.iter();
        let own = own.find(|(name, _)| Some(name.as_c_str()) == host_policy);
        own.map_or(&self.buffer, |(_, view)| view)
    }

    /// The memory for a host policy. Each policy has one buffer per input.
    fn buffer(&self, host_policy: Option<&CStr>, index: u32) -> Result<&MemoryView, Status> {
        if index == 0 {
            return Ok(self.view(host_policy));
        }
        Err(Status::invalid_argument(format!(
            "unable to get buffer {index} of input '{}': there is one",
            self.name.to_string_lossy()
        )))
    }
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn object<'a>(input: *mut TRITONBACKEND_Input) -> Result<&'a InputObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(input, "input") }
}

/// # Safety
///
/// `name` must be null or a string that outlives the result.
unsafe fn optional_text<'a>(name: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller guarantees that a non-null pointer refers to a string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// The destinations for an input's properties; null for properties that C doesn't request.
struct PropertiesOut {
    name: *mut *const c_char,
    datatype: *mut TRITONSERVER_DataType,
    shape: *mut *const i64,
    dims_count: *mut u32,
    byte_size: *mut u64,
    buffer_count: *mut u32,
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn write_properties(
    input: *mut TRITONBACKEND_Input,
    host_policy: Option<&CStr>,
    out: &PropertiesOut,
) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let input = object(input)?;
        let rank = list::len_u32(input.shape.dims());
        let byte_size = len64(input.view(host_policy).byte_size);
        write_if_not_null(out.name, input.name.as_ptr());
        write_if_not_null(out.datatype, input.datatype);
        write_if_not_null(out.shape, input.shape.dims().as_ptr());
        write_if_not_null(out.dims_count, rank);
        write_if_not_null(out.byte_size, byte_size);
        write_if_not_null(out.buffer_count, 1);
    }
    Ok(())
}

/// # Safety
///
/// `pointer` must be null or valid for a write.
unsafe fn write_if_not_null<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: the caller guarantees that the pointer is valid for a write.
        unsafe { pointer.write(value) };
    }
}

/// The destinations for the address and the description of an input's memory.
struct BufferOut {
    buffer: *mut *const c_void,
    byte_size: *mut u64,
    memory_type: *mut TRITONSERVER_MemoryType,
    memory_type_id: *mut i64,
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn write_buffer(
    input: *mut TRITONBACKEND_Input,
    host_policy: Option<&CStr>,
    index: u32,
    out: &BufferOut,
) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        pointer::write(out.buffer, core::ptr::null(), "buffer")?;
        pointer::write(out.byte_size, 0, "buffer_byte_size")?;
        let view = object(input)?.buffer(host_policy, index)?;
        let byte_size = len64(view.byte_size);
        pointer::write(out.memory_type, view.memory_type, "memory_type")?;
        pointer::write(out.memory_type_id, view.memory_type_id, "memory_type_id")?;
        pointer::write(out.byte_size, byte_size, "buffer_byte_size")?;
        pointer::write(out.buffer, view.address, "buffer")
    }
}

functions! {
    /// Returns the input's name, type, shape and size.
    fn TRITONBACKEND_InputProperties(
        input: *mut TRITONBACKEND_Input,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dims_count: *mut u32,
        byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        let out = PropertiesOut { name, datatype, shape, dims_count, byte_size, buffer_count };
        write_properties(input, None, &out)
    }

    /// Like `TRITONBACKEND_InputProperties`, for instances with a host policy.
    fn TRITONBACKEND_InputPropertiesForHostPolicy(
        input: *mut TRITONBACKEND_Input,
        host_policy_name: *const c_char,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dims_count: *mut u32,
        byte_size: *mut u64,
        buffer_count: *mut u32,
    ) {
        let out = PropertiesOut { name, datatype, shape, dims_count, byte_size, buffer_count };
        write_properties(input, optional_text(host_policy_name), &out)
    }

    /// Returns an input's memory.
    fn TRITONBACKEND_InputBuffer(
        input: *mut TRITONBACKEND_Input,
        index: u32,
        buffer: *mut *const c_void,
        byte_size: *mut u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        write_buffer(input, None, index, &BufferOut { buffer, byte_size, memory_type, memory_type_id })
    }

    /// Like `TRITONBACKEND_InputBuffer`, for instances with a host policy.
    fn TRITONBACKEND_InputBufferForHostPolicy(
        input: *mut TRITONBACKEND_Input,
        host_policy_name: *const c_char,
        index: u32,
        buffer: *mut *const c_void,
        byte_size: *mut u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        let out = BufferOut { buffer, byte_size, memory_type, memory_type_id };
        write_buffer(input, optional_text(host_policy_name), index, &out)
    }

    /// Returns an input's memory and an object that describes it.
    fn TRITONBACKEND_InputBufferAttributes(
        input: *mut TRITONBACKEND_Input,
        index: u32,
        buffer: *mut *const c_void,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        pointer::write(buffer, core::ptr::null(), "buffer")?;
        pointer::write(buffer_attributes, core::ptr::null_mut(), "buffer_attributes")?;
        let input = object(input)?;
        let view = input.buffer(None, index)?;
        let attributes = input.attributes.get_or_init(|| Owned::new(view.attributes()));
        pointer::write(buffer, view.address, "buffer")?;
        pointer::write(buffer_attributes, attributes.address(), "buffer_attributes")
    }
}

#[cfg(test)]
mod tests {
    use galatea_tensor::DataType;

    use super::*;

    /// The bytes of an input for a host policy, and the size that its properties report.
    fn bytes(input: &Owned<InputObject>, policy: *const c_char) -> (Vec<u8>, u64) {
        let (mut buffer, mut byte_size) = (core::ptr::null(), 7);
        let (mut memory_type, mut memory_type_id) = (TRITONSERVER_MEMORY_GPU, 7);
        let (mut promised, null) = (7, core::ptr::null_mut::<c_void>());
        // SAFETY: the input is alive, the pointers are null or belong to this test, and an input
        // has as many bytes as it reports.
        unsafe {
            let errors = [
                TRITONBACKEND_InputBufferForHostPolicy(
                    input.address(),
                    policy,
                    0,
                    &raw mut buffer,
                    &raw mut byte_size,
                    &raw mut memory_type,
                    &raw mut memory_type_id,
                ),
                TRITONBACKEND_InputPropertiesForHostPolicy(
                    input.address(),
                    policy,
                    null.cast(),
                    null.cast(),
                    null.cast(),
                    null.cast(),
                    &raw mut promised,
                    null.cast(),
                ),
            ];
            assert!(errors.iter().all(|error| error.is_null()));
            assert_eq!((memory_type, memory_type_id), (TRITONSERVER_MEMORY_CPU, 0));
            let length = usize::try_from(byte_size).unwrap();
            (core::slice::from_raw_parts(buffer.cast::<u8>(), length).to_vec(), promised)
        }
    }

    #[test]
    fn a_host_policy_may_have_its_own_data() {
        let own = vec![(String::from("far"), Buffer::from_vec(vec![3, 4]))];
        let tensor = InputTensor {
            name: String::from("IN"),
            datatype: DataType::Uint8,
            shape: Shape::new(&[2]).unwrap(),
            data: Buffer::from_vec(vec![1, 2]).with_host_policy_buffers(own),
        };
        let input = Owned::new(InputObject::new(&tensor, None));
        assert_eq!(bytes(&input, c"far".as_ptr()), (vec![3, 4], 2));
        assert_eq!(bytes(&input, c"cpu".as_ptr()), (vec![1, 2], 2));
        assert_eq!(bytes(&input, core::ptr::null()), (vec![1, 2], 2));
    }
}
