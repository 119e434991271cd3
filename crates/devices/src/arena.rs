//! Allocation of parts of a pool.

use std::collections::BTreeMap;

/// The alignment of the start and end of each part. It is the alignment that device copies and
/// computations prefer and that `cuMemAlloc` provides.
const ALIGNMENT: usize = 256;

/// The free and used parts of a range of bytes. The arena itself contains no memory.
#[derive(Debug)]
pub(crate) struct Arena {
    total: usize,
    /// The sum of the requested lengths.
    used: usize,
    /// The lengths of the free parts, keyed by start. No two free parts are adjacent.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    pub(crate) fn new(total: usize) -> Self {
        let whole = total - total % ALIGNMENT;
        let free = if whole == 0 { BTreeMap::new() } else { BTreeMap::from([(0, whole)]) };
        Self { total, used: 0, free }
    }

    /// Allocates at least this length from the smallest free part that fits, and returns the start.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let wanted = rounded(bytes)?;
        let fitting = self.free.iter().filter(|&(_, &length)| length >= wanted);
        let (&start, &length) = fitting.min_by_key(|&(_, &length)| length)?;
        self.free.remove(&start);
        if length > wanted {
            self.free.insert(start + wanted, length - wanted);
        }
        self.used += bytes;
        Some(start)
    }

    /// Releases a part that [`Self::allocate`] returned for this length.
    pub(crate) fn release(&mut self, start: usize, bytes: usize) {
        let mut start = start;
        let mut length = rounded(bytes).expect("it was allocated");
        self.used = self.used.checked_sub(bytes).expect("released more than was used");
        if let Some((&before, &before_length)) = self.free.range(..start).next_back() {
            assert!(before + before_length <= start, "a part is released twice");
            if before + before_length == start {
                self.free.remove(&before);
                start = before;
                length += before_length;
            }
        }
        if let Some((&after, &after_length)) = self.free.range(start..).next() {
            assert!(start + length <= after, "a part is released twice");
            if start + length == after {
                self.free.remove(&after);
                length += after_length;
            }
        }
        assert!(start + length <= self.total, "a part of another pool");
        self.free.insert(start, length);
    }

    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) const fn total(&self) -> usize {
        self.total
    }
}

/// The allocated length for a requested length. It is never zero.
fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_apart_and_join_again() {
        let mut arena = Arena::new(1024 + 100);
        assert_eq!(arena.total(), 1124);
        let parts = [1, 256, 0, 200].map(|bytes| arena.allocate(bytes));
        assert_eq!(parts, [Some(0), Some(256), Some(512), Some(768)]);
        assert_eq!((arena.allocate(1), arena.used()), (None, 457));
        arena.release(0, 1);
        arena.release(512, 0);
        assert_eq!(arena.allocate(257), None, "the free parts don't touch");
        arena.release(256, 256);
        assert_eq!(arena.allocate(700), Some(0));
        arena.release(0, 700);
        arena.release(768, 200);
        assert_eq!((arena.used(), arena.allocate(1024)), (0, Some(0)));
        assert_eq!(arena.allocate(usize::MAX), None);
    }

    #[test]
    fn the_smallest_part_that_fits_is_taken() {
        let mut arena = Arena::new(2048);
        let starts = [512, 256, 256, 256].map(|bytes| arena.allocate(bytes).unwrap());
        arena.release(starts[0], 512);
        arena.release(starts[2], 256);
        assert_eq!(arena.allocate(256), Some(starts[2]));
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_part_is_released_once() {
        let mut arena = Arena::new(2048);
        let starts = [256, 256].map(|bytes| arena.allocate(bytes).unwrap());
        arena.release(starts[0], 256);
        arena.release(starts[0], 256);
    }

    #[test]
    fn random_parts_never_overlap() {
        let mut arena = Arena::new(1 << 16);
        let mut held: Vec<(usize, usize)> = Vec::new();
        let mut seed = 12345_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = usize::try_from(seed >> 40).unwrap();
            if draw % 3 > 0 {
                let bytes = draw % 5_000;
                if let Some(start) = arena.allocate(bytes) {
                    let end = start + bytes;
                    assert!(end <= 1 << 16);
                    let apart =
                        |&(other, length): &(usize, usize)| end <= other || other + length <= start;
                    assert!(held.iter().all(apart));
                    held.push((start, bytes));
                }
            } else if !held.is_empty() {
                let (start, bytes) = held.swap_remove(draw % held.len());
                arena.release(start, bytes);
            }
        }
        for (start, bytes) in held {
            arena.release(start, bytes);
        }
        assert_eq!((arena.used(), arena.free.len()), (0, 1));
    }
}
