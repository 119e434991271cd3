//! Allocates the parts of an arena. This module is pure: it manages offsets, not memory.

use std::collections::BTreeMap;

/// The alignment of a block's offset and length. It aligns the arrays in blocks and allows pages to
/// be returned to the system.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The blocks of an arena. Lower offsets are used first.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The lengths of used parts, keyed by offset.
    used: BTreeMap<u64, u64>,
    /// The lengths of free parts, keyed by offset. Adjacent parts are merged.
    free: BTreeMap<u64, u64>,
}

impl Blocks {
    pub(crate) fn new(arena_bytes: u64) -> Self {
        Self { used: BTreeMap::new(), free: BTreeMap::from([(0, arena_bytes)]) }
    }

    /// Allocates a block of at least this size; `None` if no free part is long enough.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let wanted = bytes.max(1).checked_next_multiple_of(BLOCK_BYTES)?;
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= wanted)?;
        self.free.remove(&offset);
        let rest = length.checked_sub(wanted)?;
        if rest > 0 {
            self.free.insert(offset.checked_add(wanted)?, rest);
        }
        self.used.insert(offset, wanted);
        Some(offset)
    }

    /// Frees a block. Returns false if no block begins there.
    pub(crate) fn release(&mut self, offset: u64) -> bool {
        let Some(length) = self.used.remove(&offset) else { return false };
        let (mut offset, mut length) = (offset, length);
        if let Some(behind) = self.free.remove(&offset.saturating_add(length)) {
            length = length.saturating_add(behind);
        }
        let before = self.free.range(..offset).next_back().map(|(start, bytes)| (*start, *bytes));
        if let Some((start, bytes)) = before
            && start.saturating_add(bytes) == offset
        {
            self.free.remove(&start);
            (offset, length) = (start, bytes.saturating_add(length));
        }
        self.free.insert(offset, length);
        true
    }

    /// Returns true if these bytes are inside a single block that is in use.
    pub(crate) fn contains(&self, offset: u64, bytes: u64) -> bool {
        let Some(end) = offset.checked_add(bytes) else { return false };
        let block = self.used.range(..=offset).next_back();
        block.is_some_and(|(start, length)| end <= start.saturating_add(*length))
    }

    /// The free parts, each with its offset and length.
    pub(crate) fn free_parts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.free.iter().map(|(offset, length)| (*offset, *length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = BLOCK_BYTES;

    #[test]
    fn the_lowest_part_that_fits_is_used() {
        let mut blocks = Blocks::new(8 * PAGE);
        assert_eq!(blocks.allocate(1), Some(0));
        assert_eq!(blocks.allocate(PAGE + 1), Some(PAGE));
        assert_eq!(blocks.allocate(PAGE), Some(3 * PAGE));
        assert!(blocks.release(PAGE));
        assert!(!blocks.release(PAGE), "once");
        assert_eq!(blocks.allocate(3 * PAGE), Some(4 * PAGE));
        assert_eq!(blocks.allocate(0), Some(PAGE));
        assert_eq!(blocks.allocate(2 * PAGE), None);
        assert_eq!(blocks.allocate(u64::MAX), None);
    }

    #[test]
    fn everything_is_one_part_again_in_any_order() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for order in orders {
            let mut blocks = Blocks::new(3 * PAGE);
            let taken: Vec<u64> = (0..3).map(|_| blocks.allocate(PAGE).unwrap()).collect();
            assert_eq!(blocks.free_parts().count(), 0);
            assert!(order.iter().all(|one| blocks.release(taken[*one])));
            assert_eq!(blocks.free_parts().collect::<Vec<_>>(), [(0, 3 * PAGE)], "{order:?}");
        }
    }

    #[test]
    fn only_used_bytes_are_contained() {
        let mut blocks = Blocks::new(4 * PAGE);
        assert!(!blocks.contains(0, 1));
        blocks.allocate(2 * PAGE).unwrap();
        blocks.allocate(PAGE).unwrap();
        assert!(blocks.contains(0, 2 * PAGE) && blocks.contains(PAGE + 7, 9));
        assert!(blocks.contains(2 * PAGE, PAGE));
        assert!(!blocks.contains(PAGE, 2 * PAGE), "two blocks are not one");
        assert!(!blocks.contains(0, u64::MAX) && !blocks.contains(u64::MAX, 2));
    }
}
