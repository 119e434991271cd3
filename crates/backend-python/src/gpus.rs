//! Tensors in GPU memory, which the server shares with workers through the driver's IPC handles.
//!
//! A handle consists of 64 bytes. The driver issues it for the memory of one process, and another
//! process uses it to open that memory. The tensor's description ([`IpcTensorLocation`]) is stored
//! in a block of an arena, so the end of the tensor's use is reported like that of any block.
//! Workers copy their own tensors to host memory, because opening a handle takes longer than
//! copying a tensor of typical size.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use galatea_devices::{Device, DeviceBuffer, Devices, Error, IpcHandle};
use galatea_infer::Status;
use galatea_tensor::{Buffer, DeviceRegion, ForeignMemoryError};

/// The server's GPUs, and how a model's processes use them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpus {
    devices: Devices,
    use_: GpuUse,
}

/// The way in which a model's processes use GPUs.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum GpuUse {
    /// The processes can't reach any GPU.
    #[default]
    None,
    /// Tensors are in host memory unless the model requests GPU memory.
    Asked,
    /// Tensors stay in GPU memory.
    Shared,
}

/// The location of a tensor, in a form that another process can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IpcTensorLocation {
    device: u32,
    handle: IpcHandle,
    /// The offset of the tensor's first byte in the memory that the handle opens.
    offset: u64,
    length: u64,
}

impl IpcTensorLocation {
    /// The length of the encoded location in bytes.
    pub(crate) const BYTES: usize = 84;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.extend_from_slice(&self.device.to_le_bytes());
        bytes.extend_from_slice(&self.handle);
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

impl Gpus {
    pub(crate) const fn new(devices: Devices, use_: GpuUse) -> Self {
        Self { devices, use_ }
    }

    /// Returns true if the model receives tensors in GPU memory.
    pub(crate) fn are_shared(&self) -> bool {
        self.use_ == GpuUse::Shared
    }

    /// Returns true if the model's processes can use a GPU.
    pub(crate) fn are_reachable(&self) -> bool {
        self.use_ != GpuUse::None && !self.devices.is_empty()
    }

    fn device(&self, number: u32) -> Result<&Device, Status> {
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        self.devices.device(number).map_err(|error| failed(&error))
    }

    /// Returns a copy that the CPU can read.
    pub(crate) fn to_host(&self, region: &DeviceRegion) -> Result<Bytes, Status> {
        let copied = self.devices.to_host(&self.device(region.device)?.wrap_region(region));
        Ok(Bytes::from_owner(copied.map_err(|error| failed(&error))?))
    }

    /// Returns a tensor in this GPU's memory. The tensor is used in place, or copied if it is
    /// elsewhere or a client may change it.
    pub(crate) fn to_gpu(&self, data: &Buffer, number: i64) -> Result<DeviceRegion, Status> {
        let device = self.device(u32::try_from(number).unwrap_or(u32::MAX))?;
        let is_stable = data.foreign().is_none_or(|region| region.memory.is_stable());
        if let Some(region) = data.device_location().filter(|one| one.device == device.number())
            && is_stable
        {
            return Ok(region);
        }
        let copy = allocate(device, data.len())?;
        self.devices.copy_tensor_to(data, &copy, |error| {
            ForeignMemoryError::Device(failed(error).to_string())
        })?;
        Ok(region(copy))
    }

    /// The location of a tensor, and the memory that the location refers to. That is the tensor's
    /// memory, or a copy if the driver doesn't issue a handle for the tensor's memory, as with a
    /// client's memory.
    pub(crate) fn describe(
        &self,
        region: &DeviceRegion,
    ) -> Result<(IpcTensorLocation, DeviceRegion), Status> {
        let device = self.device(region.device)?;
        let memory = device.wrap_region(region);
        if let Ok(handle) = memory.ipc_handle() {
            return Ok((description(&memory, handle), region.clone()));
        }
        let copy = allocate(device, region.byte_size)?;
        let copied = self.devices.copy(&memory, &copy);
        let handle = copied.and_then(|()| copy.ipc_handle()).map_err(|error| failed(&error))?;
        Ok((description(&copy, handle), self::region(copy)))
    }
}

fn description(memory: &DeviceBuffer, (handle, offset): (IpcHandle, usize)) -> IpcTensorLocation {
    IpcTensorLocation {
        device: memory.device().number(),
        handle,
        offset: galatea_stdx::len64(offset),
        length: galatea_stdx::len64(memory.len()),
    }
}

/// Allocates memory for a copy.
fn allocate(device: &Device, byte_size: usize) -> Result<DeviceBuffer, Status> {
    let pooled = device.allocate_pooled(byte_size);
    pooled.or_else(|_| device.allocate(byte_size)).map_err(|error| failed(&error))
}

/// Wraps the memory in the form that a tensor contains.
fn region(memory: DeviceBuffer) -> DeviceRegion {
    let (device, address, byte_size) = (memory.device().number(), memory.address(), memory.len());
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(memory);
    DeviceRegion { device, address, byte_size, owner }
}

fn failed(error: &Error) -> Status {
    Status::internal(format!("failed to perform CUDA copy: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_the_layout_that_workers_read() {
        let description =
            IpcTensorLocation { device: 3, handle: [7; 64], offset: 256, length: 1 << 40 };
        let device = [3, 0, 0, 0];
        let offset = [0, 1, 0, 0, 0, 0, 0, 0];
        let length = [0, 0, 0, 0, 0, 1, 0, 0];
        let expected = [&device[..], &[7; 64], &offset, &length].concat();
        assert_eq!(description.encode(), expected);
        assert_eq!(expected.len(), IpcTensorLocation::BYTES);
    }
}
