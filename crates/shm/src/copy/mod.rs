//! Copies to and from memory that may be taken away meanwhile.
//!
//! On x86-64 a copy is one instruction, which a handler of SIGBUS may end early
//! ([`guarded`]). Elsewhere the kernel copies ([`kernel`]), which takes four times as long.

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

/// A part of the memory was not there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// Makes ready for copies. Before the first mapping of a region.
pub(crate) fn prepare() -> std::io::Result<()> {
    how::prepare()
}

/// Copies `byte_size` bytes. Pages of both sides may be missing, and others may write to them
/// meanwhile; then the bytes are any.
///
/// # Safety
///
/// Both sides are mapped for the whole time, as files or as memory of our own. The bytes of `to`
/// are not borrowed, and [`prepare`] has succeeded.
#[expect(unsafe_code, reason = "the copy reads and writes through addresses")]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, byte_size: usize) -> Result<(), Fault> {
    // SAFETY: as the caller promises.
    unsafe { how::copy(to, from, byte_size) }
}
