//! Copies between the memory of an instance's processor and other memory.

use bytes::Bytes;
use galatea_devices::{Device, HostBuffer, Stream};
use galatea_gate::ledger::Account;
use galatea_infer::Status;
use galatea_tensor::{Buffer, DeviceRegion};
use std::sync::Arc;

use crate::machine::Machine;

/// Copies between the memory of an instance's processor and other memory.
#[derive(Copy, Clone)]
pub(super) struct Copier<'a> {
    machine: &'a Machine,
    /// The session's stream, if the instance is on a GPU.
    stream: Option<&'a Stream>,
    /// True if inputs are gathered in pinned memory.
    pinned: bool,
}

impl<'a> Copier<'a> {
    pub(super) const fn new(
        machine: &'a Machine,
        stream: Option<&'a Stream>,
        pins_inputs: bool,
    ) -> Self {
        // An instance on the CPU rarely copies anything to or from a GPU.
        Self { machine, stream, pinned: pins_inputs && stream.is_some() }
    }

    /// The session's stream, if the instance is on a GPU.
    pub(super) const fn stream(self) -> Option<&'a Stream> {
        self.stream
    }

    /// The account that string memory is charged to.
    pub(super) const fn account(self) -> &'a Arc<Account> {
        &self.machine.account
    }

    /// The device with this number, whose memory contains a request's data.
    pub(super) fn device(self, number: u32) -> Result<&'a Device, Status> {
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        self.machine.devices.device(number).map_err(|error| copy_failed(&error))
    }

    /// Host memory for copies to and from a device.
    pub(super) fn host_memory(self, byte_size: usize) -> HostBuffer {
        if self.pinned {
            self.machine.devices.host_memory(byte_size)
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
        let source = device.memory_of(region);
        let target = self.host_memory(region.byte_size);
        let copied = match self.stream {
            Some(stream) => stream.download(&source, target),
            // An instance on the CPU has no stream, and rarely receives GPU memory.
            None => device.stream().and_then(|stream| stream.download(&source, target)),
        };
        let copied = copied.and_then(galatea_devices::DownloadBuffers::wait);
        Ok(Bytes::from_owner(copied.map_err(|error| copy_failed(&error))?))
    }

    /// Wraps an output that stays in device memory.
    pub(super) fn tensor(self, region: &DeviceRegion) -> Result<Buffer, Status> {
        let devices = &self.machine.devices;
        let memory = devices.memory_of(region).map_err(|error| copy_failed(&error))?;
        Ok(devices.tensor(memory))
    }
}

/// The status of a failed copy, as Triton words it.
pub fn copy_failed(error: &galatea_devices::Error) -> Status {
    Status::internal(format!("failed to perform CUDA copy: {error}"))
}
