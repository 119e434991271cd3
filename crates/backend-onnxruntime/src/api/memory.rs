//! GPU memory, as the library describes it.

use ort_sys::{OrtAllocatorType, OrtMemType, OrtMemoryInfo};

use super::environment::OrtEnvironment;
use super::error::OrtError;
use super::handle::OrtHandle;

/// The library's description of a GPU's memory.
pub(crate) struct DeviceMemory {
    raw: OrtHandle<OrtMemoryInfo>,
    device: u32,
}

// SAFETY: the library documents that any thread may use its memory descriptions, and nothing here
// changes after construction.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// The memory of the GPU with this number.
    pub(crate) fn new(environment: &OrtEnvironment, device: u32) -> Result<Self, OrtError> {
        let api = environment.api();
        let number = i32::try_from(device)
            .map_err(|_| OrtError::invalid(format!("GPU {device} has too large a number")))?;
        // SAFETY: the name is a string that lives during the call; the constructor stores a memory
        // description, which the given function releases.
        let raw = unsafe {
            OrtHandle::create(api, api.table().ReleaseMemoryInfo, "memory description", |out| {
                (api.table().CreateMemoryInfo)(
                    c"Cuda".as_ptr(),
                    OrtAllocatorType::OrtArenaAllocator,
                    number,
                    OrtMemType::OrtMemTypeDefault,
                    out,
                )
            })?
        };
        Ok(Self { raw, device })
    }

    /// The GPU's number.
    pub(crate) const fn device(&self) -> u32 {
        self.device
    }

    pub(super) const fn as_ptr(&self) -> *const OrtMemoryInfo {
        self.raw.as_ptr()
    }
}
