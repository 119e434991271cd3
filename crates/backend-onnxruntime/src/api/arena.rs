//! Memory into which the inputs of a batch are gathered.

/// The size of the widest vector registers and of the cache lines of the machines that the
/// library is built for.
const BLOCK_BYTES: usize = 64;

#[derive(Copy, Clone)]
#[repr(C, align(64))]
struct AlignedBlock([u8; BLOCK_BYTES]);

/// Aligned memory that is reused from batch to batch. It grows to the size of the largest batch so
/// far, which is bounded by the model's largest possible batch, and does not shrink.
#[derive(Default)]
pub(crate) struct Arena {
    blocks: Vec<AlignedBlock>,
}

impl Arena {
    /// The first `byte_size` bytes, with their contents from earlier batches.
    pub(crate) fn bytes(&mut self, byte_size: usize) -> &mut [u8] {
        let blocks = byte_size.div_ceil(BLOCK_BYTES);
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, AlignedBlock([0; BLOCK_BYTES]));
        }
        let start = self.blocks.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector holds at least `byte_size` initialised bytes without gaps (a
        // block has no padding), and is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(start, byte_size) }
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
        assert_eq!(arena.bytes(128)[64], 7);
    }
}
