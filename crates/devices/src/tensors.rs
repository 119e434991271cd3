//! Tensors in device memory.

use std::any::Any;

use bytes::Bytes;
use galatea_tensor::{
    Buffer, DeviceRegion, ForeignMemory, ForeignMemoryError, ForeignRegion, MemoryKind,
};

use crate::{Device, DeviceBuffer, Devices, Error};

/// An immutable tensor in device memory.
struct DeviceTensor {
    devices: Devices,
    memory: DeviceBuffer,
}

impl Device {
    /// The memory of a tensor on this device, for copies. It stays allocated as long as the
    /// returned buffer lives.
    #[must_use]
    pub fn wrap_region(&self, region: &DeviceRegion) -> DeviceBuffer {
        let owner = Box::new(region.owner.clone());
        // SAFETY: A region refers to memory of its device that the region's owner keeps allocated.
        unsafe { self.wrap_foreign_memory(region.address, region.byte_size, owner) }
    }
}

impl Devices {
    /// Creates a tensor in this memory, which must not change any more. All work that writes to the
    /// memory must be done.
    #[must_use]
    pub fn wrap_as_tensor(&self, memory: DeviceBuffer) -> Buffer {
        let byte_size = memory.len();
        let memory = std::sync::Arc::new(DeviceTensor { devices: self.clone(), memory });
        Buffer::from_foreign(ForeignRegion { memory, offset: 0, byte_size, charge: None })
    }

    /// The memory of a tensor on one of these devices, for copies.
    ///
    /// # Errors
    ///
    /// Returned if there is no such device.
    pub fn wrap_region(&self, region: &DeviceRegion) -> Result<DeviceBuffer, Error> {
        let number = i32::try_from(region.device).unwrap_or(i32::MAX);
        Ok(self.device(number)?.wrap_region(region))
    }

    /// Copies a tensor to the beginning of `to`, directly between devices if the tensor is on one.
    /// `failed` converts device errors.
    ///
    /// # Errors
    ///
    /// Returned if `to` is too short, a device fails, or the tensor's memory has been removed.
    pub fn copy_tensor_to(
        &self,
        tensor: &Buffer,
        to: &DeviceBuffer,
        failed: impl Fn(&Error) -> ForeignMemoryError,
    ) -> Result<(), ForeignMemoryError> {
        let copied = if let Some(bytes) = tensor.host_bytes() {
            self.to_device(bytes.clone(), to)
        } else if let Some(region) = tensor.device_location() {
            let to = to.slice(0..region.byte_size);
            to.and_then(|to| self.copy(&self.wrap_region(&region)?, &to))
        } else {
            let Some(foreign) = tensor.foreign() else {
                return Err(ForeignMemoryError::NotReadable);
            };
            self.to_device(foreign.memory.read(foreign.offset, foreign.byte_size)?, to)
        };
        copied.map_err(|error| failed(&error))
    }
}

impl DeviceTensor {
    fn part(&self, offset: usize, byte_size: usize) -> Result<DeviceBuffer, ForeignMemoryError> {
        self.memory.slice(offset..offset.saturating_add(byte_size)).map_err(|error| failed(&error))
    }
}

fn failed(error: &Error) -> ForeignMemoryError {
    ForeignMemoryError::Device(format!("failed to use CUDA copy: {error}"))
}

impl ForeignMemory for DeviceTensor {
    fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignMemoryError> {
        if byte_size == 0 {
            return Ok(Bytes::new());
        }
        let copied = self.devices.to_host(&self.part(offset, byte_size)?);
        Ok(Bytes::from_owner(copied.map_err(|error| failed(&error))?))
    }

    fn write(&self, offset: usize, source: &Buffer) -> Result<(), ForeignMemoryError> {
        self.devices.copy_tensor_to(source, &self.part(offset, source.len())?, failed)
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Gpu(self.memory.device().number())
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.memory.address())
    }

    fn is_stable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
