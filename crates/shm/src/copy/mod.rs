//! Copies to and from memory that may disappear during the copy.
//!
//! On x86-64, a copy is a single instruction, which a SIGBUS handler can end early ([`guarded`]).
//! On other architectures, the kernel copies (`kernel`), which takes four times as long.

#[cfg(target_arch = "x86_64")]
mod guarded;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod kernel;

#[cfg(target_arch = "x86_64")]
use guarded as how;
#[cfg(not(target_arch = "x86_64"))]
use kernel as how;

#[cfg(test)]
pub(crate) use kernel::copy as kernel_copy;

/// An error that reports that a part of the memory no longer exists.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryFault;

/// Prepares for copying. Must be called before the first region is mapped.
pub(crate) fn prepare() -> std::io::Result<()> {
    how::prepare()
}

/// Copies `byte_size` bytes. Pages may be missing on both sides. If other processes write to them
/// concurrently, the resulting bytes are arbitrary.
///
/// # Safety
///
/// Both sides must stay mapped throughout the copy, either as files or as this process's own
/// memory. The bytes at `to` must not be borrowed, and [`prepare`] must have succeeded.
#[expect(unsafe_code, reason = "the copy reads and writes through addresses")]
pub(crate) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    byte_size: usize,
) -> Result<(), MemoryFault> {
    // SAFETY: guaranteed by the caller.
    unsafe { how::copy(to, from, byte_size) }
}
