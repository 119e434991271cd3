//! Device memory.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::driver::{self, IpcMemHandle};
use crate::{Device, Error};

/// A device memory handle that lets another process open the memory.
pub type IpcHandle = [u8; 64];

/// A region of device memory. Clones and slices refer to the same memory, which is released when
/// the last of them is dropped.
#[derive(Clone)]
pub struct DeviceBuffer {
    memory: Arc<Memory>,
    address: u64,
    bytes: usize,
}

struct Memory {
    device: Device,
    address: u64,
    bytes: usize,
    origin: Origin,
}

/// The origin of the memory, which determines how it is released.
enum Origin {
    Allocated,
    Pool,
    Opened,
    Foreign { _owner: Box<dyn Any + Send + Sync> },
}

impl Device {
    /// Allocates memory. The driver may wait for the device, so requests must not call this.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] or the driver's error.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer, Error> {
        DeviceBuffer::allocate(self, bytes)
    }

    /// Allocates memory from the pool that was created at startup.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExhausted`], even if there is no pool.
    pub fn allocate_pooled(&self, bytes: usize) -> Result<DeviceBuffer, Error> {
        DeviceBuffer::from_pool(self, bytes)
    }

    /// Opens memory that another process has allocated on this device.
    ///
    /// # Errors
    ///
    /// The driver's error. The handle may be invalid, belong to another device or to this process,
    /// or refer to memory that is shorter than `bytes`.
    pub fn open_ipc_handle(&self, handle: &IpcHandle, bytes: usize) -> Result<DeviceBuffer, Error> {
        let state = &self.0;
        let entered = state.make_current()?;
        let mut address = 0;
        let handle = IpcMemHandle { reserved: *handle };
        let flags = driver::IPC_LAZY_PEER_ACCESS;
        // SAFETY: The pointer refers to a local. The driver checks the handle's contents.
        let code = unsafe { state.driver.cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) };
        drop(entered);
        state.check("cuIpcOpenMemHandle", code)?;
        let opened = DeviceBuffer::new(self, address, bytes, Origin::Opened);
        let (_, whole) = opened.allocation()?;
        if bytes > whole {
            return Err(Error::Range(format!("{bytes} bytes of memory that has {whole}")));
        }
        Ok(opened)
    }

    /// Wraps memory that another library has allocated on this device and that `owner` keeps alive.
    ///
    /// # Safety
    ///
    /// There must be `bytes` bytes of this device's memory at `address` until `owner` is dropped.
    pub unsafe fn wrap_foreign_memory(
        &self,
        address: u64,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> DeviceBuffer {
        DeviceBuffer::new(self, address, bytes, Origin::Foreign { _owner: owner })
    }
}

impl DeviceBuffer {
    fn new(device: &Device, address: u64, bytes: usize, origin: Origin) -> Self {
        let memory = Arc::new(Memory { device: device.clone(), address, bytes, origin });
        Self { memory, address, bytes }
    }

    pub(crate) fn allocate(device: &Device, bytes: usize) -> Result<Self, Error> {
        let state = &device.0;
        let entered = state.make_current()?;
        let mut address = 0;
        // SAFETY: The pointer refers to a local, and the context is current. The driver rejects
        // empty allocations, so the size is at least 1.
        let code = unsafe { state.driver.cuMemAlloc_v2(&raw mut address, bytes.max(1)) };
        drop(entered);
        if code == driver::OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { device: device.number(), bytes });
        }
        state.check("cuMemAlloc", code)?;
        Ok(Self::new(device, address, bytes, Origin::Allocated))
    }

    pub(crate) fn from_pool(device: &Device, bytes: usize) -> Result<Self, Error> {
        let exhausted = || Error::PoolExhausted { device: device.number(), bytes };
        let pool = device.0.pool.get().ok_or_else(exhausted)?;
        let start = pool.arena().allocate(bytes).ok_or_else(exhausted)?;
        let address = pool.address + u64::try_from(start).expect("a length of memory");
        Ok(Self::new(device, address, bytes, Origin::Pool))
    }

    /// The memory's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.memory.device
    }

    /// The device address, which doesn't refer to this process's memory.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if the length is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns a part of the memory.
    ///
    /// # Errors
    ///
    /// Returned if the range extends beyond the memory.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, Error> {
        if range.start > range.end || range.end > self.bytes {
            let Range { start, end } = range;
            return Err(Error::Range(format!("bytes {start} to {end} of {}", self.bytes)));
        }
        let start = u64::try_from(range.start).expect("a length of memory");
        Ok(Self {
            memory: self.memory.clone(),
            address: self.address + start,
            bytes: range.end - range.start,
        })
    }

    /// Returns a handle that lets another process open the allocation that contains this memory,
    /// and this memory's offset within the allocation.
    ///
    /// # Errors
    ///
    /// The driver's error. Memory that was itself opened through a handle can't be exported.
    pub fn ipc_handle(&self) -> Result<(IpcHandle, usize), Error> {
        let (base, _) = self.allocation()?;
        let state = &self.memory.device.0;
        let entered = state.make_current()?;
        let mut handle = IpcMemHandle { reserved: [0; 64] };
        // SAFETY: The pointer refers to a local, and the memory is alive.
        let code = unsafe { state.driver.cuIpcGetMemHandle(&raw mut handle, base) };
        drop(entered);
        state.check("cuIpcGetMemHandle", code)?;
        let offset = usize::try_from(self.address - base).expect("a length of memory");
        Ok((handle.reserved, offset))
    }

    /// The start and length of the allocation that contains this memory.
    fn allocation(&self) -> Result<(u64, usize), Error> {
        let state = &self.memory.device.0;
        let entered = state.make_current()?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: Both pointers refer to locals, and the memory is alive.
        let code = unsafe {
            let address = self.memory.address;
            state.driver.cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address)
        };
        drop(entered);
        state.check("cuMemGetAddressRange", code)?;
        Ok((base, bytes))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let state = &self.device.0;
        match self.origin {
            Origin::Pool => {
                let pool = state.pool.get().expect("the memory is the pool's");
                let start = usize::try_from(self.address - pool.address);
                pool.arena().release(start.expect("a length of memory"), self.bytes);
            }
            Origin::Allocated | Origin::Opened => {
                // A lost device has no memory to release.
                let Ok(entered) = state.make_current() else { return };
                // SAFETY: The address came from the driver and is released once. Work that uses the
                // memory keeps it alive.
                let _ = unsafe {
                    if matches!(self.origin, Origin::Allocated) {
                        state.driver.cuMemFree_v2(self.address)
                    } else {
                        state.driver.cuIpcCloseMemHandle(self.address)
                    }
                };
                drop(entered);
            }
            Origin::Foreign { .. } => {}
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.memory.device.number();
        write!(formatter, "DeviceBuffer({} bytes of GPU {device})", self.bytes)
    }
}
