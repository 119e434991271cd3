//! Memory that others may change at any time.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Buffer, DeviceRegion, MemoryKind};

/// Memory that others may change or remove at any time, such as a region that a client shares, on
/// the host or on a device.
///
/// The memory is never borrowed as a slice. Its contents are copied in and out; each copy may fail,
/// and may see different bytes than the previous copy.
pub trait ForeignMemory: Send + Sync {
    /// Copies a part of the memory into our own memory.
    ///
    /// # Errors
    ///
    /// Returns an error if the part no longer exists, or no memory is left for the copy.
    fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignMemoryError>;

    /// Copies the contents of a buffer into the memory.
    ///
    /// # Errors
    ///
    /// Returns an error if the part no longer exists, or if the buffer can't be read.
    fn write(&self, offset: usize, source: &Buffer) -> Result<(), ForeignMemoryError>;

    /// The kind of memory.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cpu
    }

    /// The address of the first byte in device memory, for copies on the device.
    fn device_address(&self) -> Option<u64> {
        None
    }

    /// Returns true if the memory doesn't change while it is referenced, so that a device may
    /// compute with it in place.
    fn is_stable(&self) -> bool {
        false
    }

    /// The concrete memory, for implementations that copy between foreign memories.
    fn as_any(&self) -> &dyn Any;
}

/// The reason why foreign memory could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignMemoryError {
    /// The memory has been removed.
    #[error("{0}")]
    Lost(String),
    /// No memory is left for the copy.
    #[error("there is no memory for a copy of {0} bytes")]
    NoMemory(usize),
    /// A device could not copy.
    #[error("{0}")]
    Device(String),
    /// The source is not in memory that the CPU can read.
    #[error("the data is not in memory that the CPU can read")]
    NotReadable,
}

/// A part of foreign memory.
#[derive(Clone)]
pub struct ForeignRegion {
    /// The memory that contains the region.
    pub memory: Arc<dyn ForeignMemory>,
    /// The region's offset in bytes.
    pub offset: usize,
    /// The length in bytes.
    pub byte_size: usize,
    /// The charge for a copy, dropped with the last clone and the last copy.
    pub charge: Option<Arc<dyn Any + Send + Sync>>,
}

impl ForeignRegion {
    /// The region's location in device memory, which stays valid for the lifetime of the result.
    #[must_use]
    pub fn device(&self) -> Option<DeviceRegion> {
        let MemoryKind::Gpu(device) = self.memory.kind() else { return None };
        let start = self.memory.device_address()?;
        let address = start.checked_add(u64::try_from(self.offset).ok()?)?;
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self.clone());
        Some(DeviceRegion { device, address, byte_size: self.byte_size, owner })
    }

    /// Copies the region into our own memory, which keeps the charge.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ForeignMemory::read`].
    pub fn copy(&self) -> Result<Buffer, ForeignMemoryError> {
        let copied = self.memory.read(self.offset, self.byte_size)?;
        let Some(charge) = self.charge.clone() else { return Ok(Buffer::from_bytes(copied)) };
        Ok(Buffer::from_bytes(Bytes::from_owner(ChargedCopy { copied, _charge: charge }))
            .mark_charged())
    }

    /// Copies the contents of a buffer to the beginning of the region. The caller must have checked
    /// that the contents fit.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`ForeignMemory::write`].
    pub fn write(&self, source: &Buffer) -> Result<(), ForeignMemoryError> {
        self.memory.write(self.offset, source)
    }
}

impl fmt::Debug for ForeignRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignRegion({} bytes at {})", self.byte_size, self.offset)
    }
}

/// A copy with its charge.
struct ChargedCopy {
    copied: Bytes,
    _charge: Arc<dyn Any + Send + Sync>,
}

impl AsRef<[u8]> for ChargedCopy {
    fn as_ref(&self) -> &[u8] {
        &self.copied
    }
}
