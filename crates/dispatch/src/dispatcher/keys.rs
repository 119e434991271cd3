//! Request and sequence keys. A key is an index into a slab plus a generation, which distinguishes
//! successive users of the same index.

use galatea_stdx::len64;

/// The key bits that contain the index; the rest is the generation.
const INDEX_MASK: u64 = 0xffff_ffff;

pub(super) fn key_of(index: usize, generation: u32) -> u64 {
    let index = len64(index);
    assert!(index <= INDEX_MASK, "there are more requests or sequences than keys can name");
    u64::from(generation) << 32 | index
}

pub(super) fn index_of(key: u64) -> usize {
    usize::try_from(key & INDEX_MASK).unwrap_or(usize::MAX)
}
