//! Device memory that grows in place: its addresses are reserved upfront, and memory is mapped to
//! them block by block.

use std::fmt;
use std::sync::Arc;

use galatea_stdx::Lock;

use crate::driver::{self, Address, Handle, MemAccessDesc, MemAllocationProp, MemLocation};
use crate::{Device, DeviceBuffer, Error};

/// Memory that keeps its address while it grows. Clones refer to the same memory.
#[derive(Clone)]
pub struct GrowableBuffer(Arc<Reserved>);

struct Reserved {
    device: Device,
    address: Address,
    /// The reserved length, a multiple of the block size.
    bytes: usize,
    block: usize,
    /// The memory blocks mapped to the reserved addresses, in order from the start.
    blocks: Lock<Vec<Block>>,
}

struct Block(Handle);

// SAFETY: The driver lets any thread unmap and release memory.
unsafe impl Send for Block {}

impl Device {
    /// Creates memory that may grow to the maximum length set for this device. Allocates no memory
    /// yet.
    ///
    /// # Errors
    ///
    /// Same as for [`Self::reserve_growable`].
    pub fn create_growable(&self) -> Result<GrowableBuffer, Error> {
        let chosen = self.0.growth_bytes_max.get().copied();
        self.reserve_growable(chosen.unwrap_or(GrowableBuffer::BYTES_MAX_DEFAULT))
    }

    /// Reserves address space for memory that can grow up to this length. Allocates no memory.
    ///
    /// # Errors
    ///
    /// The driver's error, including the case where the device doesn't support such addresses.
    pub fn reserve_growable(&self, bytes: usize) -> Result<GrowableBuffer, Error> {
        let state = &self.0;
        let what = MemAllocationProp::of_device(state.raw);
        let entered = state.make_current()?;
        let (mut can, mut block, mut address) = (0, 0, 0);
        // SAFETY: All pointers refer to locals.
        unsafe {
            let attribute = driver::ATTRIBUTE_VIRTUAL_MEMORY;
            let code = state.driver.cuDeviceGetAttribute(&raw mut can, attribute, state.raw);
            state.check("cuDeviceGetAttribute", code)?;
            let code =
                state.driver.cuMemGetAllocationGranularity(&raw mut block, &raw const what, 0);
            state.check("cuMemGetAllocationGranularity", code)?;
        }
        let whole = bytes.max(1).checked_next_multiple_of(block.max(1));
        let (Some(whole), 1..) = (whole, can) else {
            let text = format!("{bytes} bytes of addresses of GPU {}", self.number());
            return Err(Error::Range(text));
        };
        // SAFETY: The pointer refers to a local.
        let code = unsafe { state.driver.cuMemAddressReserve(&raw mut address, whole, 0, 0, 0) };
        drop(entered);
        state.check("cuMemAddressReserve", code)?;
        let (device, blocks) = (self.clone(), Lock::default());
        Ok(GrowableBuffer(Arc::new(Reserved { device, address, bytes: whole, block, blocks })))
    }
}

impl GrowableBuffer {
    /// The maximum length on a device for which no other maximum was set.
    pub const BYTES_MAX_DEFAULT: usize = 1 << 30;

    /// The memory's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The maximum length of the memory.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.0.bytes
    }

    /// Grows the memory to this length if it is shorter, and returns its leading bytes. The
    /// contents are preserved.
    ///
    /// # Errors
    ///
    /// Returned if the length exceeds the reserved length; otherwise [`Error::OutOfMemory`] or the
    /// driver's error. The memory is unchanged in all cases.
    pub fn grow(&self, bytes: usize) -> Result<DeviceBuffer, Error> {
        let reserved = &self.0;
        if bytes > reserved.bytes {
            let text = format!("{bytes} bytes where {} are reserved", reserved.bytes);
            return Err(Error::Range(text));
        }
        let mut blocks = reserved.blocks.lock("grow");
        let count_before = blocks.len();
        while blocks.len() * reserved.block < bytes {
            match reserved.block_at(blocks.len()) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    while blocks.len() > count_before {
                        let block = blocks.pop().expect("it was pushed");
                        reserved.release(blocks.len(), &block);
                    }
                    return Err(error);
                }
            }
        }
        drop(blocks);
        // SAFETY: Memory is mapped to these leading bytes and stays mapped until the last clone of
        // `self` is dropped.
        Ok(unsafe {
            reserved.device.wrap_foreign_memory(reserved.address, bytes, Box::new(self.clone()))
        })
    }
}

impl Reserved {
    fn address_of(&self, index: usize) -> Address {
        self.address + u64::try_from(index * self.block).expect("a length of memory")
    }

    /// Maps memory to the block with this index.
    fn block_at(&self, index: usize) -> Result<Block, Error> {
        let state = &self.device.0;
        let entered = state.make_current()?;
        let what = MemAllocationProp::of_device(state.raw);
        let location = MemLocation { kind: 1, number: state.raw };
        let access = MemAccessDesc { location, flags: 3 };
        let address = self.address_of(index);
        let mut memory = std::ptr::null_mut();
        // SAFETY: The pointers refer to locals. The addresses are reserved, and no memory is mapped
        // to them yet.
        unsafe {
            let driver = &state.driver;
            let code = driver.cuMemCreate(&raw mut memory, self.block, &raw const what, 0);
            if code == driver::OUT_OF_MEMORY {
                let device = self.device.number();
                return Err(Error::OutOfMemory { device, bytes: self.block });
            }
            state.check("cuMemCreate", code)?;
            let code = driver.cuMemMap(address, self.block, 0, memory, 0);
            if let Err(error) = state.check("cuMemMap", code) {
                let _ = driver.cuMemRelease(memory);
                return Err(error);
            }
            let code = driver.cuMemSetAccess(address, self.block, &raw const access, 1);
            if let Err(error) = state.check("cuMemSetAccess", code) {
                self.release(index, &Block(memory));
                return Err(error);
            }
        }
        drop(entered);
        Ok(Block(memory))
    }

    fn release(&self, index: usize, block: &Block) {
        let driver = &self.device.0.driver;
        // SAFETY: The memory is mapped to these addresses and is released once.
        unsafe {
            let _ = driver.cuMemUnmap(self.address_of(index), self.block);
            let _ = driver.cuMemRelease(block.0);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Ok(entered) = self.device.0.make_current() else { return };
        let blocks = std::mem::take(self.blocks.get_mut());
        for (index, block) in blocks.iter().enumerate() {
            self.release(index, block);
        }
        // SAFETY: The addresses were reserved once, and no memory is mapped to them any more.
        let _ = unsafe { self.device.0.driver.cuMemAddressFree(self.address, self.bytes) };
        drop(entered);
    }
}

impl fmt::Debug for GrowableBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.0.device.number();
        write!(formatter, "GrowableBuffer({} bytes of GPU {device})", self.0.bytes)
    }
}
