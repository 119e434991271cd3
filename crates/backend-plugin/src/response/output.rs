//! Response outputs.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use galatea_abi::{
    TRITONBACKEND_Output, TRITONSERVER_BufferAttributes, TRITONSERVER_DataType,
    TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::error::to_c_string;
use galatea_c_objects::names::data_type_to_c;
use galatea_c_objects::{handle, pointer};
use galatea_devices::Devices;
use galatea_infer::{Code, OutputTensor, Status};
use galatea_stdx::Lock;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::device_tensor::DeviceOutput;
use crate::host_buffer::HostBuffer;
use crate::owned::Owned;

/// An output as C sees it. The output belongs to its response.
pub(crate) struct OutputObject {
    pub(super) name: Arc<str>,
    datatype: DataType,
    pub(super) shape: Shape,
    /// The GPUs whose memory the output may be placed in; usually empty.
    devices: Devices,
    buffer: Lock<Option<OutputMemory>>,
    c_name: OnceLock<CString>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}
galatea_c_objects::object!(OutputObject as TRITONBACKEND_Output, kind 30);

/// An output's memory.
enum OutputMemory {
    Host(HostBuffer),
    Device(DeviceOutput),
}

impl OutputMemory {
    /// Allocates memory of the preferred kind if the output may be placed there and enough is
    /// available; otherwise allocates host memory.
    fn new(
        devices: &Devices,
        preferred: (TRITONSERVER_MemoryType, i64),
        bytes: u64,
    ) -> Option<Self> {
        if let (TRITONSERVER_MEMORY_GPU, number) = preferred
            && let Some(made) = DeviceOutput::new(devices, number, bytes)
        {
            return Some(Self::Device(made));
        }
        HostBuffer::new(bytes).map(Self::Host)
    }

    fn address(&self) -> Option<*mut c_void> {
        match self {
            Self::Host(buffer) => Some(buffer.address()),
            Self::Device(output) => output.address(),
        }
    }

    fn byte_size(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.byte_size(),
            Self::Device(output) => output.byte_size(),
        }
    }

    fn memory_type(&self) -> (TRITONSERVER_MemoryType, i64) {
        match self {
            Self::Host(_) => (TRITONSERVER_MEMORY_CPU, 0),
            Self::Device(output) => (TRITONSERVER_MEMORY_GPU, i64::from(output.gpu())),
        }
    }

    fn into_buffer(self) -> Buffer {
        match self {
            Self::Host(buffer) => buffer.into_buffer(),
            Self::Device(output) => output.into_buffer(),
        }
    }
}

impl OutputObject {
    /// Creates an output. `devices` are the GPUs whose memory it may be placed in.
    pub(super) fn new(name: Arc<str>, datatype: DataType, shape: Shape, devices: Devices) -> Self {
        Self {
            name,
            datatype,
            shape,
            devices,
            buffer: Lock::default(),
            c_name: OnceLock::new(),
            attributes: OnceLock::new(),
        }
    }

    pub(super) fn datatype(&self) -> TRITONSERVER_DataType {
        data_type_to_c(self.datatype)
    }

    pub(super) fn c_name(&self) -> *const c_char {
        self.c_name.get_or_init(|| to_c_string(&self.name)).as_ptr()
    }

    /// Returns the tensor after checking that its byte size matches its shape. Doors rely on that.
    pub(super) fn into_tensor(self) -> Result<OutputTensor, Status> {
        let buffer = self.buffer.lock("take the buffer").take();
        let data = buffer.map_or_else(Buffer::empty, OutputMemory::into_buffer);
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
/// Same requirements as for every exported function.
unsafe fn object<'a>(output: *mut TRITONBACKEND_Output) -> Result<&'a OutputObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(output, "output") }
}

functions! {
    /// Returns the memory that the output is written to. It is of the kind that the plug-in prefers
    /// if the output's receiver accepts that kind, and host memory otherwise.
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
        pointer::check_not_null(memory_type, "memory_type")?;
        pointer::check_not_null(memory_type_id, "memory_type_id")?;
        let preferred = (memory_type.read(), memory_type_id.read());
        let made = OutputMemory::new(&output.devices, preferred, buffer_byte_size);
        let made = made.ok_or_else(|| {
            Status::unavailable(format!(
                "there are no {buffer_byte_size} bytes for output '{}'",
                output.name
            ))
        })?;
        let address = made.address().ok_or_else(|| Status::internal("an address is too long"))?;
        let (actual, number) = made.memory_type();
        *place = Some(made);
        drop(place);
        pointer::write(memory_type, actual, "memory_type")?;
        pointer::write(memory_type_id, number, "memory_type_id")?;
        pointer::write(buffer, address, "buffer")
    }

    /// Returns the attributes of the output's memory.
    fn TRITONBACKEND_OutputBufferAttributes(
        output: *mut TRITONBACKEND_Output,
        buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes,
    ) {
        let output = object(output)?;
        let place = output.buffer.lock("describe the buffer");
        let described = place.as_ref().map(|one| (one.byte_size(), one.memory_type()));
        drop(place);
        let (byte_size, (memory_type, memory_type_id)) = described.ok_or_else(|| {
            Status::invalid_argument(format!("output '{}' has no buffer yet", output.name))
        })?;
        let attributes = output.attributes.get_or_init(|| {
            let cuda_ipc_handle = None;
            Owned::new(BufferAttributesObject {
                byte_size, memory_type, memory_type_id, cuda_ipc_handle
            })
        });
        pointer::write(buffer_attributes, attributes.address(), "buffer_attributes")
    }
}
