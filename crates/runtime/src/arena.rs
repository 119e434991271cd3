//! Memory in which a batch's inputs are gathered.

/// The size of the widest vector registers and of the cache lines on supported machines.
const BLOCK_BYTES: usize = 64;

/// Aligned memory that is reused from batch to batch. It grows to the size of the largest batch so
/// far, which the model's maximum batch size bounds, and never shrinks.
#[derive(Default)]
pub(crate) struct Arena {
    /// One block longer than the largest batch, so that a block with the widest alignment fits in
    /// it.
    memory: Vec<u8>,
}

impl Arena {
    /// The first `byte_size` bytes. They may contain data from earlier batches.
    pub(crate) fn bytes(&mut self, byte_size: usize) -> &mut [u8] {
        let needed = byte_size.saturating_add(BLOCK_BYTES);
        if self.memory.len() < needed {
            self.memory.resize(needed, 0);
        }
        let start = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        self.memory.get_mut(start..start.saturating_add(byte_size)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
