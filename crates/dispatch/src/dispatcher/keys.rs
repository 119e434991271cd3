//! Keys of requests and sequences: an index into a slab, and a generation that distinguishes the
//! users of a reused index.

use galatea_stdx::len64;

/// The bits of a key that hold the index; the rest is the generation.
const INDEX_MASK: u64 = 0xffff_ffff;

pub(super) fn key_of(index: usize, generation: u32) -> u64 {
    let index = len64(index);
    assert!(index <= INDEX_MASK, "there are more requests or sequences than keys can name");
    u64::from(generation) << 32 | index
}

pub(super) fn index_of(key: u64) -> usize {
    usize::try_from(key & INDEX_MASK).unwrap_or(usize::MAX)
}
