//! Tensors in GPU memory: input placement and output allocation.

use core::ffi::c_void;
use std::any::Any;
use std::sync::Arc;

use galatea_devices::{DeviceBuffer, Devices, Error};
use galatea_infer::{InputTensor, Status};
use galatea_tensor::{Buffer, DeviceRegion, ForeignMemoryError};

/// Places inputs where an instance can use them: inputs in any GPU's memory are moved to the
/// instance's GPU, or otherwise to host memory. Memory that a client may modify is copied.
pub(crate) fn place_inputs(
    inputs: &mut [InputTensor],
    gpu: Option<u32>,
    devices: &Devices,
) -> Result<(), Status> {
    for input in inputs {
        let Some(foreign) = input.data.foreign() else { continue };
        let stable = foreign.memory.is_stable();
        let Some(region) = foreign.device() else { continue };
        match gpu {
            Some(gpu) if gpu == region.device && stable => {
                input.data = Buffer::from_device(region);
            }
            Some(gpu) => match copy_on(gpu, &input.data, devices)? {
                Some(copied) => input.data = copied,
                None => input.data.make_owned()?,
            },
            None => input.data.make_owned()?,
        }
    }
    Ok(())
}

/// Copies data to a GPU's memory. `None` if the GPU has no memory left.
fn copy_on(gpu: u32, data: &Buffer, devices: &Devices) -> Result<Option<Buffer>, Status> {
    let failed =
        |error: &Error| ForeignMemoryError::Device(format!("failed to use CUDA copy: {error}"));
    let number = i32::try_from(gpu).unwrap_or(i32::MAX);
    let device = devices.device(number).map_err(|error| failed(&error))?;
    let Ok(memory) = device.allocate_pooled(data.len()) else { return Ok(None) };
    devices.copy_tensor_to(data, &memory, failed)?;
    let (address, byte_size) = (memory.address(), memory.len());
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(memory);
    Ok(Some(Buffer::from_device(DeviceRegion { device: gpu, address, byte_size, owner })))
}

/// GPU memory that a plug-in writes an output to.
pub(crate) struct DeviceOutput {
    devices: Devices,
    memory: DeviceBuffer,
}

impl DeviceOutput {
    /// Allocates zeroed memory. `None` if the server doesn't use this GPU or the GPU has no output
    /// memory left.
    pub(crate) fn new(devices: &Devices, number: i64, byte_size: u64) -> Option<Self> {
        let device = devices.device(i32::try_from(number).ok()?).ok()?;
        let memory = devices.pooled_zeros(device, usize::try_from(byte_size).ok()?).ok()?;
        Some(Self { devices: devices.clone(), memory })
    }

    pub(crate) fn address(&self) -> Option<*mut c_void> {
        let address = usize::try_from(self.memory.address()).ok()?;
        Some(core::ptr::without_provenance_mut(address))
    }

    pub(crate) fn gpu(&self) -> u32 {
        self.memory.device().number()
    }

    pub(crate) fn byte_size(&self) -> usize {
        self.memory.len()
    }

    /// Returns the output that the plug-in has written.
    pub(crate) fn into_buffer(self) -> Buffer {
        self.devices.wrap_as_tensor(self.memory)
    }
}
