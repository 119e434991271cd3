//! Memory that others may change at any time.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Buffer, DeviceRegion, MemoryKind};

/// Memory that others may change, or take away, at any time: a region
/// that a client shares, of the host or of a device.
///
/// It is never borrowed as a slice. Its content goes in and out by copies, each of which may
/// fail, and each of which may see other bytes than the one before.
pub trait ForeignMemory: Send + Sync {
    /// Copies a part of it into memory of our own.
    ///
    /// # Errors
    ///
    /// If the part isn't there any more, or there is no memory for the copy.
    fn read(&self, offset: usize, byte_size: usize) -> Result<Bytes, ForeignError>;

    /// Copies the content of a buffer into it.
    ///
    /// # Errors
    ///
    /// If the part isn't there any more, or if the buffer can't be read.
    fn write(&self, offset: usize, source: &Buffer) -> Result<(), ForeignError>;

    /// The kind of memory that it is.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cpu
    }

    /// The address of its first byte in a device's memory, for those that copy from there.
    fn device_address(&self) -> Option<u64> {
        None
    }

    /// Returns true if nothing changes it as long as it is held, so that a device may compute
    /// with it in place.
    fn is_stable(&self) -> bool {
        false
    }

    /// The memory itself, for implementations that copy from one to another.
    fn as_any(&self) -> &dyn Any;
}

/// Why foreign memory could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// The memory has been taken away.
    #[error("{0}")]
    Lost(String),
    /// There is no memory for the copy.
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
    /// The memory that it is a part of.
    pub memory: Arc<dyn ForeignMemory>,
    /// Its beginning, in bytes.
    pub offset: usize,
    /// The length in bytes.
    pub byte_size: usize,
    /// Dropped with the last clone and the last copy: the charge for a copy.
    pub charge: Option<Arc<dyn Any + Send + Sync>>,
}

impl ForeignRegion {
    /// Its place in a device's memory, which stays there as long as the result.
    #[must_use]
    pub fn device(&self) -> Option<DeviceRegion> {
        let MemoryKind::Gpu(device) = self.memory.kind() else { return None };
        let start = self.memory.device_address()?;
        let address = start.checked_add(u64::try_from(self.offset).ok()?)?;
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self.clone());
        Some(DeviceRegion { device, address, byte_size: self.byte_size, owner })
    }

    /// A copy in memory of our own, which keeps the charge.
    ///
    /// # Errors
    ///
    /// As [`ForeignMemory::read`].
    pub fn copy(&self) -> Result<Buffer, ForeignError> {
        let copied = self.memory.read(self.offset, self.byte_size)?;
        let Some(charge) = self.charge.clone() else { return Ok(Buffer::from_bytes(copied)) };
        Ok(Buffer::from_bytes(Bytes::from_owner(Charged { copied, _charge: charge })).charged())
    }

    /// Copies the content of a buffer to the beginning of the region. The caller has checked
    /// that it fits.
    ///
    /// # Errors
    ///
    /// As [`ForeignMemory::write`].
    pub fn write(&self, source: &Buffer) -> Result<(), ForeignError> {
        self.memory.write(self.offset, source)
    }
}

impl fmt::Debug for ForeignRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignRegion({} bytes at {})", self.byte_size, self.offset)
    }
}

/// A copy, and the charge for it.
struct Charged {
    copied: Bytes,
    _charge: Arc<dyn Any + Send + Sync>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.copied
    }
}
