//! Memory in which a batch's inputs are gathered.

use std::sync::Arc;

use crate::region::ByteRegion;

/// The size of the widest vector registers and of the cache lines on supported machines.
const BLOCK_BYTES: usize = 64;

/// Aligned memory that is reused from batch to batch. It grows to the size of the largest batch so
/// far, which the model's maximum batch size bounds, and never shrinks. If a library still refers
/// to the memory of an earlier batch, the next batch gets new memory.
#[derive(Default)]
pub(crate) struct Arena {
    /// One block longer than the largest batch, so that a block with the widest alignment fits in
    /// it.
    memory: Arc<Vec<u8>>,
}

impl Arena {
    /// The first `byte_size` bytes. They may contain data from earlier batches.
    pub(crate) fn bytes(&mut self, byte_size: usize) -> &mut [u8] {
        if Arc::get_mut(&mut self.memory).is_none() {
            self.memory = Arc::default();
        }
        let Some(memory) = Arc::get_mut(&mut self.memory) else { return &mut [] };
        let needed = byte_size.saturating_add(BLOCK_BYTES);
        if memory.len() < needed {
            memory.resize(needed, 0);
        }
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        memory.get_mut(start..start.saturating_add(byte_size)).unwrap_or_default()
    }

    /// The first `byte_size` bytes, which a library may read, or keep for longer.
    pub(crate) fn region(&self, byte_size: usize) -> ByteRegion<'_> {
        let start = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        ByteRegion::of_shared(&self.memory, start..start.saturating_add(byte_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_kept_does_not_change() {
        let mut arena = Arena::default();
        arena.bytes(64).fill(1);
        let address = arena.region(64).start();
        let kept = arena.region(64).owner().unwrap();
        assert_eq!((kept.as_ptr(), &kept[..]), (address, &[1; 64][..]));
        arena.bytes(64).fill(2);
        assert_ne!(arena.region(64).start(), address);
        assert_eq!(kept[..], [1; 64]);
        // Nothing refers to the new memory, which is used again.
        let address = arena.region(64).start();
        drop(arena.region(64).owner());
        arena.bytes(64).fill(3);
        assert_eq!(arena.region(64).start(), address);
    }

    #[test]
    fn memory_is_aligned_and_reused() {
        let mut arena = Arena::default();
        assert_eq!(arena.bytes(0).len(), 0);
        let first = arena.bytes(65);
        first[64] = 7;
        assert_eq!(first.as_ptr().align_offset(BLOCK_BYTES), 0);
        let address = first.as_ptr();
        let again = arena.bytes(64);
        assert_eq!((again.len(), again.as_ptr()), (64, address));
        assert_eq!(arena.bytes(65)[64], 7);
        let longer = arena.bytes(1 << 20);
        assert_eq!((longer.len(), longer.as_ptr().align_offset(BLOCK_BYTES)), (1 << 20, 0));
    }
}
