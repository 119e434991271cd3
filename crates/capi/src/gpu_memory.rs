//! The caller's GPU memory, which inputs are read from and outputs are written to.

use core::ffi::c_void;
use std::any::Any;

use galatea_devices::{Device, DeviceBuffer, Devices, Error};
use galatea_infer::Status;
use galatea_tensor::{Buffer, ForeignMemoryError};

/// A region of the caller's GPU memory.
pub(crate) struct GpuMemory {
    devices: Devices,
    memory: DeviceBuffer,
}

impl GpuMemory {
    /// # Safety
    ///
    /// This GPU must have `byte_size` bytes of memory at `base` until `owner` is dropped.
    pub(crate) unsafe fn new(
        devices: &Devices,
        number: i64,
        base: *const c_void,
        byte_size: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, Status> {
        let device = device(devices, number)?;
        let address = u64::try_from(base.addr())
            .map_err(|_| Status::invalid_argument("an address of a GPU has 64 bits"))?;
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { device.wrap_foreign_memory(address, byte_size, owner) };
        Ok(Self { devices: devices.clone(), memory })
    }

    /// Converts the memory to a tensor. The caller must not change its contents.
    pub(crate) fn into_tensor(self) -> Buffer {
        if self.memory.is_empty() {
            return Buffer::empty();
        }
        self.devices.wrap_as_tensor(self.memory)
    }

    /// Replaces the contents with a tensor's contents. A tensor that is on a GPU is copied
    /// directly.
    pub(crate) fn write(&self, tensor: &Buffer) -> Result<(), Status> {
        if tensor.is_empty() {
            return Ok(());
        }
        Ok(self.devices.copy_tensor_to(tensor, &self.memory, failed)?)
    }
}

/// The GPU with this number, if the server uses it.
pub(crate) fn device(devices: &Devices, number: i64) -> Result<&Device, Status> {
    let found = i32::try_from(number).ok().and_then(|number| devices.device(number).ok());
    found.ok_or_else(|| {
        Status::invalid_argument(format!("the server doesn't use a GPU with number {number}"))
    })
}

fn failed(error: &Error) -> ForeignMemoryError {
    ForeignMemoryError::Device(format!("failed to use CUDA copy: {error}"))
}
