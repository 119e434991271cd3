//! Memory that backends allocate through the server.

use core::ffi::c_void;

use galatea_abi::{
    TRITONBACKEND_MemoryManager, TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_CPU_PINNED,
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::{handle, pointer};
use galatea_infer::Status;

/// Allocates and frees. It keeps no record of its memory.
pub(crate) struct MemoryManagerObject;
galatea_c_objects::object!(MemoryManagerObject as TRITONBACKEND_MemoryManager, kind 22);

fn only_cpu(memory_type: TRITONSERVER_MemoryType) -> Result<(), Status> {
    let text = match memory_type {
        TRITONSERVER_MEMORY_CPU => return Ok(()),
        TRITONSERVER_MEMORY_CPU_PINNED => {
            "Pinned memory allocation not supported: this server runs without a GPU"
        }
        TRITONSERVER_MEMORY_GPU => {
            "GPU memory allocation not supported: this server runs without a GPU"
        }
        TRITONSERVER_MemoryType(other) => {
            return Err(Status::invalid_argument(format!("unknown memory type {other}")));
        }
    };
    Err(Status::unsupported(text))
}

functions! {
    /// Allocates CPU memory.
    fn TRITONBACKEND_MemoryManagerAllocate(
        manager: *mut TRITONBACKEND_MemoryManager,
        buffer: *mut *mut c_void,
        memory_type: TRITONSERVER_MemoryType,
        _memory_type_id: i64,
        byte_size: u64,
    ) {
        let _: &MemoryManagerObject = handle::borrow(manager, "manager")?;
        only_cpu(memory_type)?;
        if buffer.is_null() {
            return Err(Status::invalid_argument("buffer must not be null"));
        }
        let exhausted = || Status::unavailable("CPU memory allocation failed");
        let byte_size = usize::try_from(byte_size).map_err(|_| exhausted())?;
        // From the C library: only its memory can be freed without the size.
        let memory = libc::malloc(byte_size.max(1));
        if memory.is_null() {
            return Err(exhausted());
        }
        pointer::write(buffer, memory, "buffer")
    }

    /// Frees memory.
    fn TRITONBACKEND_MemoryManagerFree(
        manager: *mut TRITONBACKEND_MemoryManager,
        buffer: *mut c_void,
        memory_type: TRITONSERVER_MemoryType,
        _memory_type_id: i64,
    ) {
        let _: &MemoryManagerObject = handle::borrow(manager, "manager")?;
        only_cpu(memory_type)?;
        libc::free(buffer);
        Ok(())
    }
}
