//! Response allocators: caller-supplied functions that provide output buffers.

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use bytes::Bytes;
use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::output_query::{CallbackCell, OutputBufferQuery, OutputQueryCallback};
use galatea_c_objects::{catch_panic, error, handle, pointer};
use galatea_devices::Devices;
use galatea_infer::Status;
use galatea_tensor::{Buffer, MemoryKind};

use crate::gpu_memory::GpuMemory;

pub(crate) struct AllocatorObject {
    functions: Arc<AllocatorFunctions>,
}

/// An allocator's functions, shared with the requests that use it, so that a function that is set
/// later also applies to those requests.
struct AllocatorFunctions {
    allocate: TRITONSERVER_ResponseAllocatorAllocFn_t,
    release: TRITONSERVER_ResponseAllocatorReleaseFn_t,
    start: TRITONSERVER_ResponseAllocatorStartFn_t,
    attributes: CallbackCell<TRITONSERVER_ResponseAllocatorBufferAttributesFn_t>,
    query: Arc<OutputQueryCallback>,
}
galatea_c_objects::object!(AllocatorObject as TRITONSERVER_ResponseAllocator, kind 43);

const _: TRITONSERVER_ResponseAllocatorNew = TRITONSERVER_ResponseAllocatorNew;
/// Creates an allocator; `start_fn` may be null.
///
/// # Safety
///
/// `allocator` must be null or valid for a write. The functions must meet the header's requirements
/// on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorNew(
    allocator: *mut *mut TRITONSERVER_ResponseAllocator,
    alloc_fn: TRITONSERVER_ResponseAllocatorAllocFn_t,
    release_fn: TRITONSERVER_ResponseAllocatorReleaseFn_t,
    start_fn: TRITONSERVER_ResponseAllocatorStartFn_t,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ResponseAllocatorNew", || {
        if alloc_fn.is_none() || release_fn.is_none() {
            return Err(Status::invalid_argument("alloc_fn and release_fn must not be null"));
        }
        pointer::check_not_null(allocator, "allocator")?;
        let functions = Arc::new(AllocatorFunctions {
            allocate: alloc_fn,
            release: release_fn,
            start: start_fn,
            attributes: CallbackCell::default(),
            query: Arc::default(),
        });
        let made = handle::into_raw(AllocatorObject { functions });
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(allocator, made, "allocator") }
    })
}

const _: TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction =
    TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction;
/// Sets the function that receives each buffer's attributes. The function also applies to requests
/// that already use the allocator.
///
/// # Safety
///
/// `allocator` must be null or an allocator that outlives the call. The function must meet the
/// requirements of `TRITONSERVER_ResponseAllocatorNew`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    allocator: *mut TRITONSERVER_ResponseAllocator,
    buffer_attributes_fn: TRITONSERVER_ResponseAllocatorBufferAttributesFn_t,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction", || {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<AllocatorObject>(allocator, "allocator")? };
        object.functions.attributes.set(buffer_attributes_fn);
        Ok(())
    })
}

const _: TRITONSERVER_ResponseAllocatorSetQueryFunction =
    TRITONSERVER_ResponseAllocatorSetQueryFunction;
/// Sets the function that reports where an output would be placed. The function also applies to
/// requests that already use the allocator.
///
/// # Safety
///
/// `allocator` must be null or an allocator that outlives the call. The function must meet the
/// requirements of `TRITONSERVER_ResponseAllocatorNew`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorSetQueryFunction(
    allocator: *mut TRITONSERVER_ResponseAllocator,
    query_fn: TRITONSERVER_ResponseAllocatorQueryFn_t,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ResponseAllocatorSetQueryFunction", || {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<AllocatorObject>(allocator, "allocator")? };
        object.functions.query.set(query_fn);
        Ok(())
    })
}

const _: TRITONSERVER_ResponseAllocatorDelete = TRITONSERVER_ResponseAllocatorDelete;
/// Deletes an allocator.
///
/// # Safety
///
/// `allocator` must be null or an allocator that no request uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ResponseAllocatorDelete(
    allocator: *mut TRITONSERVER_ResponseAllocator,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ResponseAllocatorDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<AllocatorObject>(allocator, "allocator") }
    })
}

/// An allocator as one request uses it: the functions, the allocator's address, and the request's
/// user pointer.
#[derive(Clone)]
pub(crate) struct Allocator {
    functions: Arc<AllocatorFunctions>,
    address: *mut TRITONSERVER_ResponseAllocator,
    userp: *mut c_void,
    /// The GPUs whose memory the buffers may be in.
    devices: Devices,
}

// SAFETY: the header requires that an allocator's functions can be called on any thread. The
// pointers are only passed to those functions.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// A buffer that an allocator provided for an output.
pub(crate) struct OutputBuffer {
    release: TRITONSERVER_ResponseAllocatorReleaseFn_t,
    allocator: *mut TRITONSERVER_ResponseAllocator,
    pub(crate) base: *mut c_void,
    pub(crate) byte_size: usize,
    pub(crate) memory_type: TRITONSERVER_MemoryType,
    pub(crate) memory_type_id: i64,
    pub(crate) userp: *mut c_void,
}

// SAFETY: as for the allocator; the pointers are only passed to its functions and to readers of the
// response.
unsafe impl Send for OutputBuffer {}

impl Allocator {
    /// # Safety
    ///
    /// `address` must be null or an allocator that outlives the requests that use it.
    pub(crate) unsafe fn new(
        address: *mut TRITONSERVER_ResponseAllocator,
        userp: *mut c_void,
        devices: &Devices,
    ) -> Result<Self, Status> {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { handle::borrow::<AllocatorObject>(address, "response_allocator")? };
        let (functions, devices) = (object.functions.clone(), devices.clone());
        Ok(Self { functions, address, userp, devices })
    }

    /// The query that lets backends ask where an output would be placed.
    pub(crate) fn output_query(&self) -> OutputBufferQuery {
        // SAFETY: the allocator outlives the requests that use it, and its creator guaranteed that
        // its functions can be called on any thread.
        unsafe { OutputBufferQuery::new(self.functions.query.clone(), self.address, self.userp) }
    }

    /// Notifies the allocator that a response begins.
    pub(crate) fn start(&self) -> Result<(), Status> {
        let Some(start) = self.functions.start else { return Ok(()) };
        // SAFETY: the allocator's creator guaranteed that the function accepts these arguments.
        unsafe { error::take_c_error(start(self.address, self.userp)) }
    }

    /// Copies an output to a buffer from the allocator. The allocator is asked for the kind of
    /// memory that the output is in.
    pub(crate) fn copy_output(&self, name: &CStr, data: &Buffer) -> Result<OutputBuffer, Status> {
        let preferred = match data.memory_kind() {
            MemoryKind::Cpu => (TRITONSERVER_MEMORY_CPU, 0),
            MemoryKind::Gpu(number) => (TRITONSERVER_MEMORY_GPU, i64::from(number)),
        };
        let buffer = self.allocate(name, data.len(), preferred)?;
        let is_host = buffer.memory_type == TRITONSERVER_MEMORY_CPU
            || buffer.memory_type == TRITONSERVER_MEMORY_CPU_PINNED;
        if !is_host && self.devices.is_empty() {
            return Err(Status::unsupported(format!(
                "the response allocator put output '{}' where only a GPU can write",
                name.to_string_lossy()
            )));
        }
        if !data.is_empty() {
            if buffer.base.is_null() {
                return Err(Status::internal(format!(
                    "the response allocator gave no buffer for output '{}'",
                    name.to_string_lossy()
                )));
            }
            if is_host {
                let readable = host_bytes(name, data)?;
                // SAFETY: the allocator provided a buffer of this many bytes, which no other code
                // uses until it is released.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        readable.as_ptr(),
                        buffer.base.cast(),
                        readable.len(),
                    )
                };
            } else {
                let number = buffer.memory_type_id;
                let owner = Box::new(());
                // SAFETY: as above, in that GPU's memory.
                unsafe { GpuMemory::new(&self.devices, number, buffer.base, data.len(), owner) }?
                    .write(data)?;
            }
        }
        self.report_attributes(name, &buffer)?;
        Ok(buffer)
    }

    fn allocate(
        &self,
        name: &CStr,
        byte_size: usize,
        (memory_type, memory_type_id): (TRITONSERVER_MemoryType, i64),
    ) -> Result<OutputBuffer, Status> {
        let allocate = self
            .functions
            .allocate
            .ok_or_else(|| Status::internal("the response allocator can't allocate"))?;
        let mut buffer = OutputBuffer {
            release: self.functions.release,
            allocator: self.address,
            base: core::ptr::null_mut(),
            byte_size,
            memory_type,
            memory_type_id,
            userp: core::ptr::null_mut(),
        };
        // SAFETY: the allocator's creator guaranteed that the function accepts these arguments, and
        // all out pointers are valid for writes.
        let result = unsafe {
            error::take_c_error(allocate(
                self.address,
                name.as_ptr(),
                byte_size,
                memory_type,
                memory_type_id,
                self.userp,
                &raw mut buffer.base,
                &raw mut buffer.userp,
                &raw mut buffer.memory_type,
                &raw mut buffer.memory_type_id,
            ))
        };
        if let Err(status) = result {
            // There is no buffer to release.
            core::mem::forget(buffer);
            return Err(status);
        }
        Ok(buffer)
    }

    /// Passes the buffer's attributes to the allocator's function, as Triton does. The allocator
    /// has already chosen the memory, so any changes by the function are ignored.
    fn report_attributes(&self, name: &CStr, buffer: &OutputBuffer) -> Result<(), Status> {
        let Some(attributes) = self.functions.attributes.get() else { return Ok(()) };
        let object = handle::into_raw(BufferAttributesObject {
            memory_type: buffer.memory_type,
            memory_type_id: buffer.memory_type_id,
            byte_size: buffer.byte_size,
            cuda_ipc_handle: None,
        });
        // SAFETY: the allocator's creator guaranteed that the function accepts these arguments. The
        // attributes were just created and are deleted once.
        unsafe {
            let result = error::take_c_error(attributes(
                self.address,
                name.as_ptr(),
                object,
                self.userp,
                buffer.userp,
            ));
            handle::delete::<BufferAttributesObject>(object, "buffer_attributes")?;
            result
        }
    }
}

/// An output's bytes, copied to host memory if they are in GPU memory.
fn host_bytes(name: &CStr, data: &Buffer) -> Result<Bytes, Status> {
    let mut data = data.clone();
    data.make_owned()?;
    data.host_bytes().cloned().ok_or_else(|| {
        Status::unsupported(format!("output '{}' is not in CPU memory", name.to_string_lossy()))
    })
}

impl Drop for OutputBuffer {
    fn drop(&mut self) {
        let Some(release) = self.release else { return };
        // SAFETY: the buffer came from this allocator, whose creator guaranteed that the function
        // releases such buffers, and is released once.
        let result = unsafe {
            error::take_c_error(release(
                self.allocator,
                self.base,
                self.userp,
                self.byte_size,
                self.memory_type,
                self.memory_type_id,
            ))
        };
        if let Err(status) = result {
            galatea_c_objects::log::error(status.message());
        }
    }
}
