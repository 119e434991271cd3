//! Memory that backends allocate through the server.
//!
//! Host memory comes from the C library. Pinned memory and GPU memory come from pools that are
//! allocated at server startup, so that nothing waits for a GPU.

use core::ffi::c_void;
use std::collections::HashMap;

use galatea_abi::{
    TRITONBACKEND_MemoryManager, TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_CPU_PINNED,
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::{handle, pointer};
use galatea_devices::{DeviceBuffer, Devices, HostBuffer};
use galatea_infer::Status;
use galatea_stdx::Lock;

/// Allocates and frees memory. The object records pool allocations and returns any that remain to
/// their pools when the backend is dropped.
#[derive(Default)]
pub(crate) struct MemoryManagerObject {
    devices: Devices,
    pooled: Lock<HashMap<usize, PoolAllocation>>,
}
galatea_c_objects::object!(MemoryManagerObject as TRITONBACKEND_MemoryManager, kind 22);

/// Pool memory that a backend owns.
enum PoolAllocation {
    Pinned { _memory: HostBuffer },
    Gpu { memory: DeviceBuffer },
}

impl MemoryManagerObject {
    pub(crate) fn new(devices: Devices) -> Self {
        Self { devices, pooled: Lock::default() }
    }

    /// Allocates memory of the requested kind and returns its address.
    fn allocate_pooled(&self, kind: PoolKind, byte_size: u64) -> Result<usize, Status> {
        let byte_size = usize::try_from(byte_size).unwrap_or(usize::MAX);
        let (address, pooled) = match kind {
            PoolKind::Pinned => {
                let memory = self.devices.allocate_pinned_buffer(byte_size);
                let mut memory = memory.ok_or_else(|| self.no_pinned_memory())?;
                (
                    memory.as_mut_ptr().expose_provenance(),
                    PoolAllocation::Pinned { _memory: memory },
                )
            }
            PoolKind::Gpu(number) => {
                let memory = self.allocate_on(number, byte_size)?;
                let address = usize::try_from(memory.address());
                let address = address.map_err(|_| Status::internal("an address is too long"))?;
                (address, PoolAllocation::Gpu { memory })
            }
        };
        self.pooled.lock("keep memory of a backend").insert(address, pooled);
        Ok(address)
    }

    fn no_pinned_memory(&self) -> Status {
        let reason =
            if self.devices.pinned_usage().1 == 0 { ": no pinned memory pool" } else { "" };
        Status::internal(format!("failed to allocate pinned system memory{reason}"))
    }

    fn allocate_on(&self, number: i64, byte_size: usize) -> Result<DeviceBuffer, Status> {
        let device = i32::try_from(number).ok().and_then(|one| self.devices.device(one).ok());
        let invalid = || Status::internal("Failed to set device: invalid device ordinal");
        let memory = device.ok_or_else(invalid)?.allocate_pooled(byte_size);
        memory.map_err(|error| {
            Status::internal(format!(
                "Failed to allocate CUDA memory with byte size {byte_size} on GPU {number}: {error}"
            ))
        })
    }

    /// Returns memory to its pool.
    fn free_pooled(&self, kind: PoolKind, address: usize) -> Result<(), Status> {
        let mut all = self.pooled.lock("free memory of a backend");
        let is_meant = match (all.get(&address), kind) {
            (Some(PoolAllocation::Pinned { .. }), PoolKind::Pinned) => true,
            (Some(PoolAllocation::Gpu { memory }), PoolKind::Gpu(number)) => {
                i64::from(memory.device().number()) == number
            }
            (Some(_) | None, _) => false,
        };
        let freed = if is_meant { all.remove(&address) } else { None };
        drop(all);
        match (freed, kind) {
            (Some(_), _) => Ok(()),
            (None, PoolKind::Pinned) => Err(Status::internal(format!(
                "unexpected memory address '{address:#x}' is not being managed"
            ))),
            (None, PoolKind::Gpu(number)) => Err(Status::internal(format!(
                "Failed to deallocate CUDA memory at address {address:#x} on GPU {number}: it was \
                 not allocated there"
            ))),
        }
    }

    /// The pool for this type of memory; `None` for memory from the C library.
    fn pool(
        &self,
        memory_type: TRITONSERVER_MemoryType,
        number: i64,
    ) -> Result<Option<PoolKind>, Status> {
        let (kind, missing) = match memory_type {
            TRITONSERVER_MEMORY_CPU => return Ok(None),
            TRITONSERVER_MEMORY_CPU_PINNED => (
                PoolKind::Pinned,
                "Pinned memory allocation not supported: this server runs without a GPU",
            ),
            TRITONSERVER_MEMORY_GPU => (
                PoolKind::Gpu(number),
                "GPU memory allocation not supported: this server runs without a GPU",
            ),
            TRITONSERVER_MemoryType(other) => {
                return Err(Status::invalid_argument(format!("unknown memory type {other}")));
            }
        };
        if self.devices.is_empty() {
            return Err(Status::unsupported(missing));
        }
        Ok(Some(kind))
    }
}

/// A pool that is allocated at server startup.
#[derive(Copy, Clone)]
enum PoolKind {
    Pinned,
    /// The pool of the GPU with this device number.
    Gpu(i64),
}

functions! {
    /// Allocates memory.
    fn TRITONBACKEND_MemoryManagerAllocate(
        manager: *mut TRITONBACKEND_MemoryManager,
        buffer: *mut *mut c_void,
        memory_type: TRITONSERVER_MemoryType,
        memory_type_id: i64,
        byte_size: u64,
    ) {
        let manager: &MemoryManagerObject = handle::borrow(manager, "manager")?;
        let pool = manager.pool(memory_type, memory_type_id)?;
        if buffer.is_null() {
            return Err(Status::invalid_argument("buffer must not be null"));
        }
        if let Some(kind) = pool {
            let address = manager.allocate_pooled(kind, byte_size)?;
            let memory = core::ptr::with_exposed_provenance_mut(address);
            return pointer::write(buffer, memory, "buffer");
        }
        let exhausted = || Status::unavailable("CPU memory allocation failed");
        let byte_size = usize::try_from(byte_size).map_err(|_| exhausted())?;
        // Allocated by the C library, because only `free` needs no size.
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
        memory_type_id: i64,
    ) {
        let manager: &MemoryManagerObject = handle::borrow(manager, "manager")?;
        if let Some(kind) = manager.pool(memory_type, memory_type_id)? {
            return manager.free_pooled(kind, buffer.addr());
        }
        libc::free(buffer);
        Ok(())
    }
}
