//! Copies within this process's address space that the kernel performs. It returns an error where
//! accessing a page would raise a signal.

#[cfg(not(target_arch = "x86_64"))]
use std::io;

use super::MemoryFault;

/// Does nothing, because no preparation is necessary.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn prepare() -> io::Result<()> {
    Ok(())
}

/// Like [`super::copy`].
///
/// # Safety
///
/// Same requirements as for [`super::copy`].
#[expect(unsafe_code, reason = "no library has a safe function for it")]
pub(crate) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    byte_size: usize,
) -> Result<(), MemoryFault> {
    let mut done = 0_usize;
    while let Some(left) = byte_size.checked_sub(done).filter(|&left| left > 0) {
        let target = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: left };
        let source = from.wrapping_add(done).cast_mut();
        let source = libc::iovec { iov_base: source.cast(), iov_len: left };
        // SAFETY: each list has one entry. The kernel checks every address, and the caller
        // guarantees that the target bytes aren't borrowed.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &target, 1, &source, 1, 0) };
        match usize::try_from(copied) {
            Ok(copied) if copied > 0 => done = done.saturating_add(copied),
            Ok(_) | Err(_) => return Err(MemoryFault),
        }
    }
    Ok(())
}
