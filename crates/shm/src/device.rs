//! Tensors in the memory of GPUs.

#![allow(unsafe_code, reason = "a region of a GPU's memory is an address, as its maker gave it")]

use galatea_devices::{Device, DeviceBuffer};
use galatea_tensor::DeviceRegion;

/// The memory of a tensor, for copies. It stays allocated as long as the result.
#[must_use]
pub fn device_buffer(device: &Device, region: &DeviceRegion) -> DeviceBuffer {
    let owner = Box::new(region.owner.clone());
    // SAFETY: a region names memory of its device that its owner keeps allocated.
    unsafe { device.foreign(region.address, region.byte_size, owner) }
}
