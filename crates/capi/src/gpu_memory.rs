//! The caller's memory of GPUs: inputs come from there, and outputs go there.
//!
//! Both are copied by the host's memory, on a stream that the copy has for itself.

use core::ffi::c_void;

use bytes::Bytes;
use galatea_devices::{Device, DeviceBuffer, Devices, Error};
use galatea_infer::Status;

/// A piece of the caller's memory on a GPU.
pub(crate) struct GpuMemory {
    devices: Devices,
    memory: DeviceBuffer,
}

impl GpuMemory {
    /// # Safety
    ///
    /// There are `byte_size` bytes of memory at `base` on this GPU as long as this lives.
    pub(crate) unsafe fn new(
        devices: &Devices,
        number: i64,
        base: *const c_void,
        byte_size: usize,
    ) -> Result<Self, Status> {
        let device = device(devices, number)?;
        let address = u64::try_from(base.addr())
            .map_err(|_| Status::invalid_argument("an address of a GPU has 64 bits"))?;
        // SAFETY: the caller's promise is passed on.
        let memory = unsafe { device.foreign(address, byte_size, Box::new(())) };
        Ok(Self { devices: devices.clone(), memory })
    }

    /// Its content, in memory of the host.
    pub(crate) fn read(&self) -> Result<Bytes, Status> {
        if self.memory.is_empty() {
            return Ok(Bytes::new());
        }
        let copied = self.devices.to_host(&self.memory).map_err(|error| failed(&error))?;
        Ok(Bytes::from_owner(copied))
    }

    /// Replaces its content.
    pub(crate) fn write(&self, data: Bytes) -> Result<(), Status> {
        if data.is_empty() {
            return Ok(());
        }
        self.devices.to_device(data, &self.memory).map_err(|error| failed(&error))
    }
}

/// The GPU with this number, if the server uses it.
pub(crate) fn device(devices: &Devices, number: i64) -> Result<&Device, Status> {
    let found = i32::try_from(number).ok().and_then(|number| devices.device(number).ok());
    found.ok_or_else(|| {
        Status::invalid_argument(format!("the server doesn't use a GPU with number {number}"))
    })
}

fn failed(error: &Error) -> Status {
    Status::internal(format!("failed to use CUDA copy: {error}"))
}
