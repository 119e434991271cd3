//! The index of a live sequence in the batcher's table.

use crate::queue::DenseIndex;

/// The low half of the sequence's key, which the driver keeps dense.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SequenceIndex(pub(super) u32);

impl DenseIndex for SequenceIndex {
    fn index(self) -> usize {
        self.0 as usize
    }
}
