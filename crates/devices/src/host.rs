//! Host memory for copies to and from devices, pinned if possible.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use galatea_stdx::{Guard, Lock};

use crate::arena::Arena;
use crate::driver;
use crate::{Device, Error};

/// A pool of pinned memory that is allocated once.
pub(crate) struct PinnedPool {
    device: Device,
    start: NonNull<u8>,
    arena: Lock<Arena>,
}

// SAFETY: The pool owns its memory, and hands out each part once, under a lock.
unsafe impl Send for PinnedPool {}
// SAFETY: As above.
unsafe impl Sync for PinnedPool {}

/// Host memory. Copies between it and a device are fast if it is pinned. Pageable memory is used
/// when the pool is exhausted.
///
/// The memory initially contains whatever a previous owner left in it.
pub struct HostBuffer(Memory);

enum Memory {
    Pinned { pool: Arc<PinnedPool>, start: usize, bytes: usize },
    Pageable(Box<[u8]>),
}

impl PinnedPool {
    /// Creates a pool of this size for copies to and from all devices.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let state = &device.0;
        let entered = state.make_current()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        let flags = driver::HOST_ALLOC_PORTABLE;
        // SAFETY: The pointer refers to a local, and a context is current.
        let code = unsafe { state.driver.cuMemHostAlloc(&raw mut start, bytes, flags) };
        drop(entered);
        if code == driver::OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { device: device.number(), bytes });
        }
        state.check("cuMemHostAlloc", code)?;
        let missing =
            Error::Driver { call: "cuMemHostAlloc", code, text: "no memory was given".to_owned() };
        let start = NonNull::new(start.cast()).ok_or(missing)?;
        Ok(Self { device: device.clone(), start, arena: Lock::new(Arena::new(bytes)) })
    }

    fn arena(&self) -> Guard<'_, Arena> {
        self.arena.lock("arena")
    }

    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// The number of bytes in use and the total size.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let arena = self.arena();
        (arena.used(), arena.total())
    }

    /// Allocates a part of the pool if a free part is long enough.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Option<HostBuffer> {
        let start = self.arena().allocate(bytes)?;
        Some(HostBuffer(Memory::Pinned { pool: self.clone(), start, bytes }))
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        // Without a context, nothing is released: the device has been lost, and the process will
        // end soon.
        let Ok(entered) = self.device.0.make_current() else { return };
        // SAFETY: The memory was allocated once, and its parts kept the pool alive.
        let _ = unsafe { self.device.0.driver.cuMemFreeHost(self.start.as_ptr().cast()) };
        drop(entered);
    }
}

impl HostBuffer {
    /// Allocates pageable memory.
    #[must_use]
    pub fn pageable(bytes: usize) -> Self {
        Self(Memory::Pageable(vec![0; bytes].into_boxed_slice()))
    }

    /// Returns true if the memory is pinned.
    #[must_use]
    pub const fn is_pinned(&self) -> bool {
        matches!(self.0, Memory::Pinned { .. })
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Pageable(bytes) => bytes,
            Memory::Pinned { pool, start, bytes } => {
                // SAFETY: The arena allocated this part of the pool's memory exclusively to this
                // value. The operating system initialized the memory before the driver returned it.
                unsafe { std::slice::from_raw_parts(pool.start.as_ptr().add(*start), *bytes) }
            }
        }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Pageable(bytes) => bytes,
            Memory::Pinned { pool, start, bytes } => {
                // SAFETY: As above, and this value is borrowed exclusively.
                unsafe { std::slice::from_raw_parts_mut(pool.start.as_ptr().add(*start), *bytes) }
            }
        }
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Pinned { pool, start, bytes } = self {
            pool.arena().release(*start, *bytes);
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_pinned() { "pinned" } else { "pageable" };
        write!(formatter, "HostBuffer({} bytes, {kind})", self.len())
    }
}
