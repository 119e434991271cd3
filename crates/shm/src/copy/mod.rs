//! Copies to and from memory that may be taken away in the meantime.
//!
//! On x86-64 a copy is one instruction, which a SIGBUS handler may end early ([`guarded`]).
//! Elsewhere the kernel copies ([`kernel`]), which takes four times as long.

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

/// The error that a part of the memory no longer exists.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryFault;

/// Prepares for copies. Must be called before the first region is mapped.
pub(crate) fn prepare() -> std::io::Result<()> {
    how::prepare()
}

/// Copies `byte_size` bytes. Pages of both sides may be missing, and other processes may write to
/// them meanwhile, in which case the resulting bytes are arbitrary.
///
/// # Safety
///
/// Both sides stay mapped throughout, as files or as our own memory. The bytes of `to` are not
/// borrowed, and [`prepare`] has succeeded.
#[expect(unsafe_code, reason = "the copy reads and writes through addresses")]
pub(crate) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    byte_size: usize,
) -> Result<(), MemoryFault> {
    // SAFETY: as the caller promises.
    unsafe { how::copy(to, from, byte_size) }
}
