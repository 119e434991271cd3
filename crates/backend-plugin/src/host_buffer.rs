//! Host memory that a plug-in writes and the server passes on.

use core::ffi::c_void;
use std::alloc::{Layout, alloc_zeroed};
use std::sync::Arc;

use bytes::Bytes;
use galatea_tensor::Buffer;

/// The alignment that vector instructions need.
const ALIGNMENT: usize = 64;

/// A region of CPU memory. It is zeroed, so that any bytes that a plug-in doesn't write reveal
/// nothing about the server.
pub(crate) struct HostBuffer {
    storage: Vec<u8>,
    offset: usize,
    byte_size: usize,
    /// Computed once, because the vector must not be accessed while C writes through the address.
    address: *mut u8,
}

// SAFETY: the address points to the vector's own memory.
unsafe impl Send for HostBuffer {}
// SAFETY: no writes occur through a shared reference.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Creates a zeroed region. `None` if there isn't enough memory.
    pub(crate) fn new(byte_size: u64) -> Option<Self> {
        let byte_size = usize::try_from(byte_size).ok()?;
        let mut storage = zeros(byte_size.checked_add(ALIGNMENT)?)?;
        let start = storage.as_mut_ptr();
        let offset = start.align_offset(ALIGNMENT).min(ALIGNMENT);
        let address = start.wrapping_add(offset);
        Some(Self { storage, offset, byte_size, address })
    }

    /// A copy of these bytes.
    pub(crate) fn copy_of(bytes: &[u8]) -> Option<Self> {
        Self::copy_with_room(bytes, bytes.len())
    }

    /// A copy of these bytes, with room for `byte_size` bytes in total.
    pub(crate) fn copy_with_room(bytes: &[u8], byte_size: usize) -> Option<Self> {
        let mut copy = Self::new(u64::try_from(byte_size.max(bytes.len())).ok()?)?;
        copy.storage.get_mut(copy.offset..copy.offset + bytes.len())?.copy_from_slice(bytes);
        copy.address = copy.storage.as_mut_ptr().wrapping_add(copy.offset);
        Some(copy)
    }

    pub(crate) const fn address(&self) -> *mut c_void {
        self.address.cast()
    }

    pub(crate) const fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// The first bytes. C may modify them concurrently if it violates its contract.
    pub(crate) fn first(&self, byte_size: usize) -> &[u8] {
        let end = self.offset + byte_size.min(self.byte_size);
        self.storage.get(self.offset..end).unwrap_or_default()
    }

    /// A view of the first bytes of shared memory. C may write to the memory again once no reader
    /// remains.
    pub(crate) fn shared(memory: Arc<Self>, byte_size: usize) -> Buffer {
        Buffer::from_bytes(Bytes::from_owner(SharedBytes { memory, byte_size }))
    }

    /// Returns the bytes without copying them.
    pub(crate) fn into_buffer(self) -> Buffer {
        let end = self.offset + self.byte_size;
        Buffer::from_bytes(Bytes::from(self.storage).slice(self.offset..end))
    }
}

/// Returns a zeroed vector of `byte_size` bytes, at least one, or `None` if the allocation fails. A
/// failed `vec!` allocation would end the process, and the size comes from a plug-in. As with
/// `vec!`, pages are allocated only when they are written.
fn zeros(byte_size: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(byte_size).ok().filter(|layout| layout.size() > 0)?;
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return None;
    }
    // SAFETY: the memory comes from the global allocator and contains `byte_size` zeroed bytes.
    Some(unsafe { Vec::from_raw_parts(memory, byte_size, byte_size) })
}

/// The leading part of a memory region that has several owners.
struct SharedBytes {
    memory: Arc<HostBuffer>,
    byte_size: usize,
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.memory.first(self.byte_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zeroed_and_not_copied() {
        for byte_size in [0_u64, 1, 63, 64, 1_000_000] {
            let buffer = HostBuffer::new(byte_size).unwrap();
            let address = buffer.address();
            assert_eq!(address.addr() % ALIGNMENT, 0);
            if byte_size > 0 {
                // SAFETY: the region has at least one byte.
                unsafe { address.cast::<u8>().write(7) };
            }
            let buffer = buffer.into_buffer();
            let bytes = buffer.host_bytes().unwrap();
            assert_eq!((bytes.len() as u64, bytes.as_ptr().addr()), (byte_size, address.addr()));
            assert!(bytes.first().is_none_or(|first| *first == 7));
            assert!(bytes.iter().skip(1).all(|byte| *byte == 0));
        }
        for too_much in [u64::MAX, u64::MAX / 2, 1 << 60] {
            assert!(HostBuffer::new(too_much).is_none(), "{too_much}");
        }
        assert_eq!(
            HostBuffer::copy_of(b"abc").unwrap().into_buffer().host_bytes().unwrap()[..],
            *b"abc"
        );
    }
}
