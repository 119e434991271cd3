//! Copies between the memory of an instance's processor and other memory.

use bytes::Bytes;
use galatea_devices::{CudaStream, Device, HostBuffer};
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use galatea_tensor::{Buffer, DeviceRegion};
use std::sync::Arc;

use crate::machine::MachineResources;

/// Copies between the memory of an instance's processor and other memory.
#[derive(Copy, Clone)]
pub(super) struct Copier<'a> {
    machine: &'a MachineResources,
    /// The session's stream, if the instance is on a GPU.
    stream: Option<&'a CudaStream>,
    /// True if inputs are gathered in pinned memory.
    pinned: bool,
}

impl<'a> Copier<'a> {
    pub(super) const fn new(
        machine: &'a MachineResources,
        stream: Option<&'a CudaStream>,
        pins_inputs: bool,
    ) -> Self {
        // An instance on the CPU rarely copies anything to or from a GPU.
        Self { machine, stream, pinned: pins_inputs && stream.is_some() }
    }

    /// The session's stream, if the instance is on a GPU.
    pub(super) const fn stream(self) -> Option<&'a CudaStream> {
        self.stream
    }

    /// The account that string memory is charged to.
    pub(super) const fn account(self) -> &'a Arc<MemoryAccount> {
        &self.machine.account
    }

    /// The device with this number, whose memory contains a request's data.
    pub(super) fn device(self, number: u32) -> Result<&'a Device, Status> {
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        self.machine.devices.device(number).map_err(|error| copy_failed_error(&error))
    }

    /// Host memory for copies to and from a device.
    pub(super) fn host_memory(self, byte_size: usize) -> HostBuffer {
        if self.pinned {
            self.machine.devices.allocate_host_buffer(byte_size)
        } else {
            HostBuffer::pageable(byte_size)
        }
    }

    /// Returns a copy of device memory that the CPU can read.
    pub(super) fn to_host(self, region: &DeviceRegion) -> Result<Bytes, Status> {
        if region.byte_size == 0 {
            return Ok(Bytes::new());
        }
        let device = self.device(region.device)?;
        let source = device.wrap_region(region);
        let target = self.host_memory(region.byte_size);
        let copied = match self.stream {
            Some(stream) => stream.download(&source, target),
            // An instance on the CPU has no stream, and rarely receives GPU memory.
            None => device.stream().and_then(|stream| stream.download(&source, target)),
        };
        let copied = copied.and_then(galatea_devices::PendingDownload::wait);
        Ok(Bytes::from_owner(copied.map_err(|error| copy_failed_error(&error))?))
    }

    /// Wraps an output that stays in device memory.
    pub(super) fn tensor(self, region: &DeviceRegion) -> Result<Buffer, Status> {
        let devices = &self.machine.devices;
        let memory = devices.wrap_region(region).map_err(|error| copy_failed_error(&error))?;
        Ok(devices.wrap_as_tensor(memory))
    }
}

/// The status of a failed copy, as Triton words it.
pub fn copy_failed_error(error: &galatea_devices::Error) -> Status {
    Status::internal(format!("failed to perform CUDA copy: {error}"))
}
