//! The weights of a compiled model that are in a separate file.

use std::io::{Error, ErrorKind, Read};
use std::slice;

/// Bytes at an address that vector instructions can read from.
pub(crate) struct AlignedBytes {
    blocks: Vec<WeightBlock>,
    length: usize,
}

#[derive(Copy, Clone)]
#[repr(C, align(64))]
struct WeightBlock([u8; BLOCK_BYTES]);

const BLOCK_BYTES: usize = 64;

/// The number of blocks to read at a time.
const BLOCKS_PER_READ: usize = 16 << 10;

impl AlignedBytes {
    /// Reads a file of the given size to its end.
    ///
    /// # Errors
    ///
    /// An error if the file has a different size, can't be read, or doesn't fit into memory.
    pub(crate) fn read(file: &mut dyn Read, size: u64) -> Result<Self, Error> {
        let length = usize::try_from(size).map_err(|_| ErrorKind::OutOfMemory)?;
        let mut blocks: Vec<WeightBlock> = Vec::new();
        blocks
            .try_reserve_exact(length.div_ceil(BLOCK_BYTES))
            .map_err(|_| ErrorKind::OutOfMemory)?;
        // The size may be wrong, so memory is only allocated as the file is read.
        let mut left = length;
        while left > 0 {
            let start = blocks.len();
            let count = left.div_ceil(BLOCK_BYTES).min(BLOCKS_PER_READ);
            blocks.resize(start.saturating_add(count), WeightBlock([0; BLOCK_BYTES]));
            let bytes = bytes_of(blocks.get_mut(start..).unwrap_or_default());
            let size = left.min(bytes.len());
            file.read_exact(bytes.get_mut(..size).unwrap_or_default())?;
            left = left.saturating_sub(size);
        }
        if file.read(&mut [0])? > 0 {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(Self { blocks, length })
    }

    /// The bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the blocks are bytes without padding, and have at least this number.
        unsafe { slice::from_raw_parts(self.blocks.as_ptr().cast(), self.length) }
    }
}

fn bytes_of(blocks: &mut [WeightBlock]) -> &mut [u8] {
    // SAFETY: the blocks are bytes without padding, and borrowed for as long as the slice.
    unsafe { slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), size_of_val(blocks)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_an_aligned_address() {
        for length in [0, 1, 63, 64, 65, 1000, (1 << 20) + 1] {
            let content: Vec<u8> = (0..=255).cycle().take(length).collect();
            let found = AlignedBytes::read(&mut &*content, length as u64).unwrap();
            assert_eq!(found.as_slice(), content);
            assert_eq!(found.as_slice().as_ptr().addr() % BLOCK_BYTES, 0);
            assert!(AlignedBytes::read(&mut &*content, length as u64 + 1).is_err());
        }
        assert!(AlignedBytes::read(&mut &[1_u8, 2][..], 1).is_err());
        assert!(AlignedBytes::read(&mut &[1_u8][..], u64::MAX).is_err());
    }
}
