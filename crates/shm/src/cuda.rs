//! Regions in GPU memory.
//!
//! A client allocates the memory and registers the driver's handle for it. The server opens the
//! handle once through its own driver, and closes it when the region has been unregistered and no
//! request uses it any more.

use std::any::Any;

use bytes::Bytes;
use galatea_control::CudaShmRegion;
use galatea_devices::{DeviceBuffer, Devices, Error, IpcHandle};
use galatea_infer::Status;
use galatea_tensor::{Buffer, ForeignMemory, ForeignMemoryError, MemoryKind};

/// A client's memory that was opened through a handle.
pub(crate) struct CudaMemory {
    devices: Devices,
    memory: DeviceBuffer,
    /// The region's name, for error messages.
    name: String,
}

/// The error for an invalid handle.
pub(crate) fn refused() -> Status {
    Status::invalid_argument("failed to register shared memory region: invalid args")
}

/// The client's status and, if the driver was called, the driver's error.
pub(crate) struct HandleRefusal {
    pub(crate) status: Status,
    pub(crate) cause: Option<Error>,
}

impl From<Status> for HandleRefusal {
    fn from(status: Status) -> Self {
        Self { status, cause: None }
    }
}

impl CudaMemory {
    /// Opens the memory behind a handle.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no such GPU, the driver rejects the handle, or the memory is
    /// shorter than the region. As in Triton, the message doesn't distinguish these cases.
    pub(crate) fn open(
        devices: &Devices,
        region: &CudaShmRegion,
        raw_handle: &[u8],
    ) -> Result<Self, HandleRefusal> {
        let CudaShmRegion { name, device_id, byte_size } = region;
        let too_short = || {
            Status::invalid_argument(format!(
                "failed to register shared memory region '{name}': invalid args"
            ))
        };
        let handle: &IpcHandle = raw_handle.try_into().map_err(|_| refused())?;
        let number = i32::try_from(*device_id).map_err(|_| refused())?;
        let unopened = |cause| HandleRefusal { status: refused(), cause: Some(cause) };
        let device = devices.device(number).map_err(unopened)?;
        let byte_size = usize::try_from(*byte_size).map_err(|_| too_short())?;
        let memory = device.open_ipc_handle(handle, byte_size).map_err(|error| match error {
            Error::Range(_) => HandleRefusal::from(too_short()),
            cause => unopened(cause),
        })?;
        let memory = memory.slice(0..byte_size).map_err(|_| too_short())?;
        Ok(Self { devices: devices.clone(), memory, name: name.clone() })
    }

    fn part(&self, offset: usize, byte_size: usize) -> Result<DeviceBuffer, ForeignMemoryError> {
        let part = self.memory.slice(offset..offset.saturating_add(byte_size));
        part.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &Error) -> ForeignMemoryError {
        let name = &self.name;
        ForeignMemoryError::Device(format!(
            "failed to use CUDA copy for shared memory region '{name}': {error}"
        ))
    }
}

impl ForeignMemory for CudaMemory {
    fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignMemoryError> {
        let part = self.part(offset, byte_size)?;
        let copied = self.devices.to_host(&part).map_err(|error| self.failed(&error))?;
        Ok(Bytes::from_owner(copied))
    }

    fn write(&self, offset: usize, source: &Buffer) -> Result<(), ForeignMemoryError> {
        let to = self.part(offset, source.len())?;
        self.devices.copy_tensor_to(source, &to, |error| self.failed(error))
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Gpu(self.memory.device().number())
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.memory.address())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
