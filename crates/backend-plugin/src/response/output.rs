//! Outputs of responses.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use galatea_abi::{
    TRITONBACKEND_Output, TRITONSERVER_BufferAttributes, TRITONSERVER_DataType,
    TRITONSERVER_MEMORY_CPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::error::c_text;
use galatea_c_objects::names::data_type_to_c;
use galatea_c_objects::{handle, pointer};
use galatea_infer::{Code, OutputTensor, Status};
use galatea_stdx::Lock;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::host_buffer::HostBuffer;
use crate::owned::Owned;

/// An output as C sees it. It lives in its response.
pub(crate) struct OutputObject {
    pub(super) name: Arc<str>,
    datatype: DataType,
    pub(super) shape: Shape,
    buffer: Lock<Option<HostBuffer>>,
    c_name: OnceLock<CString>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}
galatea_c_objects::object!(OutputObject as TRITONBACKEND_Output, kind 30);

impl OutputObject {
    pub(super) fn new(name: Arc<str>, datatype: DataType, shape: Shape) -> Self {
        Self {
            name,
            datatype,
            shape,
            buffer: Lock::default(),
            c_name: OnceLock::new(),
            attributes: OnceLock::new(),
        }
    }

    pub(super) fn datatype(&self) -> TRITONSERVER_DataType {
        data_type_to_c(self.datatype)
    }

    pub(super) fn c_name(&self) -> *const c_char {
        self.c_name.get_or_init(|| c_text(&self.name)).as_ptr()
    }

    /// The tensor, if it has as many bytes as its shape needs. Doors rely on that.
    pub(super) fn into_tensor(self) -> Result<OutputTensor, Status> {
        let buffer = self.buffer.lock("take the buffer").take();
        let data = buffer.map_or_else(Buffer::empty, HostBuffer::into_buffer);
        let expected = self.shape.byte_size(self.datatype);
        if expected.is_some_and(|expected| u64::try_from(data.len()) != Ok(expected)) {
            return Err(Status::internal(format!(
                "output '{}' has {} bytes, but its shape {:?} of {} needs {}",
                self.name,
                data.len(),
                self.shape.dims(),
                self.datatype,
                expected.unwrap_or(0)
            )));
        }
        Ok(OutputTensor { name: self.name, datatype: self.datatype, shape: self.shape, data })
    }
}

/// # Safety
///
/// As with every exported function.
unsafe fn object<'a>(output: *mut TRITONBACKEND_Output) -> Result<&'a OutputObject, Status> {
    // SAFETY: the caller's promise is passed on.
    unsafe { handle::borrow(output, "output") }
}

functions! {
    /// The memory to write the output to, always CPU memory.
    fn TRITONBACKEND_OutputBuffer(
        output: *mut TRITONBACKEND_Output,
        buffer: *mut *mut c_void,
        buffer_byte_size: u64,
        memory_type: *mut TRITONSERVER_MemoryType,
        memory_type_id: *mut i64,
    ) {
        pointer::write(buffer, core::ptr::null_mut(), "buffer")?;
        let output = object(output)?;
        let mut place = output.buffer.lock("allocate the buffer");
        if place.is_some() {
            return Err(Status::new(
                Code::AlreadyExists,
                format!("allocated buffer for output '{}' already exists", output.name),
            ));
        }
        let made = HostBuffer::new(buffer_byte_size).ok_or_else(|| {
            Status::unavailable(format!(
                "there are no {buffer_byte_size} bytes for output '{}'",
                output.name
            ))
        })?;
        let address = place.insert(made).address();
        drop(place);
        pointer::write(memory_type, TRITONSERVER_MEMORY_CPU, "memory_type")?;
        pointer::write(memory_type_id, 0, "memory_type_id")?;
        pointer::write(buffer, address, "buffer")
    }

    /// The attributes of the output's memory.
    fn TRITONBACKEND_OutputBufferAttributes(
        output: *mut TRITONBACKEND_Output,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let output = object(output)?;
        let byte_size = output.buffer.lock("describe the buffer").as_ref().map(HostBuffer::byte_size);
        let byte_size = byte_size.ok_or_else(|| {
            Status::invalid_argument(format!("output '{}' has no buffer yet", output.name))
        })?;
        let attributes = output.attributes.get_or_init(|| {
            Owned::new(BufferAttributesObject { byte_size, ..BufferAttributesObject::default() })
        });
        pointer::write(buffer_attributes, attributes.address(), "buffer_attributes")
    }
}
