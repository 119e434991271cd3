//! Memory that a library may read.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;

/// Contiguous bytes that a library may read for the lifetime `'data`: either one part or several
/// adjacent parts. They don't change while they are borrowed.
#[derive(Copy, Clone, Debug)]
pub struct ByteRegion<'data> {
    start: *const u8,
    byte_size: usize,
    owner: Option<RegionOwner<'data>>,
    data: PhantomData<&'data [u8]>,
}

/// The owner of exactly a region's bytes.
#[derive(Copy, Clone, Debug)]
enum RegionOwner<'data> {
    /// A request or a state.
    Tensor(&'data Bytes),
    /// Memory in which a batch was gathered, and the position of the first byte.
    Shared(&'data Arc<Vec<u8>>, usize),
}

/// A part of shared memory.
struct SharedPart {
    memory: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl AsRef<[u8]> for SharedPart {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(self.range.clone()).unwrap_or_default()
    }
}

impl<'data> From<&'data [u8]> for ByteRegion<'data> {
    fn from(data: &'data [u8]) -> Self {
        Self { start: data.as_ptr(), byte_size: data.len(), owner: None, data: PhantomData }
    }
}

impl<'data> From<&'data Bytes> for ByteRegion<'data> {
    fn from(data: &'data Bytes) -> Self {
        Self { owner: Some(RegionOwner::Tensor(data)), ..Self::from(&data[..]) }
    }
}

impl<'data> ByteRegion<'data> {
    /// The bytes of all parts, if each part starts where the previous one ends.
    ///
    /// The parts may belong to several allocations. All of them are borrowed, so every byte stays
    /// in place and doesn't change. Only the library reads the parts as a whole: a slice over them
    /// would have to be within one allocation.
    pub(crate) fn from_adjacent(parts: &[&'data [u8]]) -> Option<Self> {
        let mut parts = parts.iter().filter(|part| !part.is_empty());
        let Some(first) = parts.next() else { return Some(Self::from(&[][..])) };
        // The library may read every part through this address.
        let start = first.as_ptr().expose_provenance();
        let mut end = start.checked_add(first.len())?;
        for part in parts {
            if part.as_ptr().expose_provenance() != end {
                return None;
            }
            end = end.checked_add(part.len())?;
        }
        let byte_size = end - start;
        let start = ptr::with_exposed_provenance(start);
        Some(Self { start, byte_size, owner: None, data: PhantomData })
    }

    /// A part of shared memory; empty if the part extends outside it.
    pub(crate) fn of_shared(memory: &'data Arc<Vec<u8>>, range: Range<usize>) -> Self {
        let owner = Some(RegionOwner::Shared(memory, range.start));
        Self { owner, ..Self::from(memory.get(range).unwrap_or_default()) }
    }

    /// A single owner of exactly these bytes, if there is one. A library that may keep the bytes
    /// for longer than `'data` needs it. The bytes don't change while there is such an owner.
    #[must_use]
    pub fn owner(&self) -> Option<Bytes> {
        Some(match self.owner? {
            RegionOwner::Tensor(bytes) => bytes.clone(),
            RegionOwner::Shared(memory, start) => {
                let range = start..start.saturating_add(self.byte_size);
                Bytes::from_owner(SharedPart { memory: memory.clone(), range })
            }
        })
    }

    /// The address of the first byte. The library may read [`byte_size`](Self::byte_size) bytes
    /// through it.
    #[must_use]
    pub const fn start(&self) -> *const u8 {
        self.start
    }

    /// The number of bytes.
    #[must_use]
    pub const fn byte_size(&self) -> usize {
        self.byte_size
    }

    /// Returns true if the start is aligned for elements of `size` bytes.
    #[must_use]
    pub fn is_aligned(&self, size: usize) -> bool {
        self.byte_size == 0 || self.start.addr().is_multiple_of(size)
    }

    /// The addresses of the region's bytes.
    #[must_use]
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.addr();
        start..start.saturating_add(self.byte_size)
    }
}

/// Returns true if an output's bytes are within an input's memory, which happens if a graph returns
/// an input. The memory then belongs to a request, which may free it first.
#[must_use]
pub fn overlaps_input(output: &Range<usize>, inputs: &[Range<usize>]) -> bool {
    inputs.iter().any(|input| output.start < input.end && input.start < output.end)
}

/// Bytes in GPU memory that stay allocated for at least `'data`.
#[derive(Copy, Clone, Debug)]
pub struct DeviceBytes<'data> {
    address: u64,
    byte_size: usize,
    owner: PhantomData<&'data ()>,
}

impl<'data> DeviceBytes<'data> {
    /// Creates a reference to memory that `owner` keeps allocated.
    pub(crate) const fn of<T: ?Sized>(_owner: &'data T, address: u64, byte_size: usize) -> Self {
        Self { address, byte_size, owner: PhantomData }
    }

    #[cfg(test)]
    pub(crate) const fn address(self) -> u64 {
        self.address
    }

    /// The number of bytes.
    #[must_use]
    pub const fn byte_size(self) -> usize {
        self.byte_size
    }

    /// The address of the first byte, which the CPU can't access; `None` if it isn't a valid
    /// address on this machine.
    #[must_use]
    pub fn pointer(self) -> Option<*mut c_void> {
        let address = usize::try_from(self.address).ok()?;
        Some(ptr::without_provenance_mut(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_parts_are_one_region() {
        let bytes = [1_u8, 2, 3, 4, 5, 6];
        let of = |ranges: &[Range<usize>]| {
            let parts: Vec<&[u8]> = ranges.iter().map(|range| &bytes[range.clone()]).collect();
            let region = ByteRegion::from_adjacent(&parts)?;
            Some((region.start().addr() - bytes.as_ptr().addr(), region.byte_size()))
        };
        assert_eq!(of(&[0..2, 2..3, 3..6]), Some((0, 6)));
        assert_eq!(of(&[1..2, 2..4]), Some((1, 3)));
        assert_eq!(of(&[2..2, 1..2, 5..5, 2..4, 0..0]), Some((1, 3)));
        for apart in [&[0..2, 3..6][..], &[2..4, 0..2], &[0..2, 0..2], &[0..3, 2..4]] {
            assert_eq!(of(apart), None, "{apart:?}");
        }
    }

    #[test]
    fn no_bytes_are_a_region_too() {
        for parts in [&[][..], &[&[][..], &[][..]]] {
            let region = ByteRegion::from_adjacent(parts).unwrap();
            assert_eq!(region.byte_size(), 0);
            assert!(region.is_aligned(8));
            assert!(region.addresses().is_empty());
        }
    }

    #[test]
    fn bytes_of_a_single_owner_may_be_kept() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        let region = ByteRegion::from(&bytes);
        assert_eq!(region.owner().map(|owner| owner.as_ptr()), Some(bytes.as_ptr()));
        assert_eq!((region.start(), region.byte_size()), (bytes.as_ptr(), 3));
        assert!(ByteRegion::from(&bytes[..]).owner().is_none());
        assert!(ByteRegion::from_adjacent(&[&bytes[..]]).unwrap().owner().is_none());
    }

    #[test]
    fn alignment_is_that_of_the_first_byte() {
        let bytes = [0_u64; 2].map(u64::to_ne_bytes).concat();
        let start = bytes.as_ptr().align_offset(8);
        let region = ByteRegion::from(&bytes[start..]);
        assert!(region.is_aligned(8));
        assert!(!ByteRegion::from(&bytes[start + 4..]).is_aligned(8));
        assert!(ByteRegion::from(&bytes[start + 4..]).is_aligned(4));
    }
}
