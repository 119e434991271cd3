//! The extent to which executions exceed their estimates.

use super::scale;
use crate::tuned::{BLOCK_EXECUTIONS, BLOCKS, EXCESS_AT_FIRST};

/// The largest excesses of recent executions.
///
/// Executions are grouped into blocks, and the largest excess of each block is kept. Executions
/// rarely exceed the second largest of these values. A single outlier affects only one block, so it
/// doesn't change the result.
#[derive(Clone, Debug)]
pub(super) struct ExcessSpread {
    /// The largest excess of each block, in thousandths of the estimate.
    blocks: [u32; BLOCKS],
    /// The number of executions in the current, incomplete block, which is stored first.
    count: u32,
    cautious: u32,
}

impl Default for ExcessSpread {
    fn default() -> Self {
        ExcessSpread { blocks: [EXCESS_AT_FIRST; BLOCKS], count: 0, cautious: EXCESS_AT_FIRST }
    }
}

impl ExcessSpread {
    /// Records the duration of an execution.
    pub(super) fn add(&mut self, took_ns: u64, expected_ns: u64) {
        let excess = took_ns.saturating_sub(expected_ns);
        let thousandths = u128::from(excess) * 1000 / u128::from(expected_ns.max(1));
        let thousandths = u32::try_from(thousandths).unwrap_or(u32::MAX).min(100_000);
        if self.count >= BLOCK_EXECUTIONS {
            self.blocks.rotate_right(1);
            self.blocks[0] = 0;
            self.count = 0;
        }
        self.count += 1;
        self.blocks[0] = self.blocks[0].max(thousandths);
        let mut sorted = self.blocks;
        sorted.sort_unstable();
        self.cautious = sorted[BLOCKS - 2];
    }

    /// Returns a duration that executions with this typical duration rarely exceed.
    pub(super) fn cautious(&self, typical_ns: u64) -> u64 {
        typical_ns.saturating_add(scale(typical_ns, self.cautious, 1000))
    }

    /// Returns the multiple of the typical duration that executions rarely exceed.
    pub(super) fn factor(&self) -> f64 {
        1.0 + f64::from(self.cautious) / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_accident_changes_nothing_and_a_second_one_later_does() {
        let mut spread = ExcessSpread::default();
        let run = |spread: &mut ExcessSpread, count: u32, took_ns| {
            (0..count).for_each(|_| spread.add(took_ns, 1_000));
        };
        run(&mut spread, 8 * BLOCK_EXECUTIONS, 1_020);
        assert_eq!(spread.cautious(1_000), 1_020);
        run(&mut spread, 1, 5_000);
        assert_eq!(spread.cautious(1_000), 1_020);
        run(&mut spread, BLOCK_EXECUTIONS, 1_020);
        run(&mut spread, 1, 3_000);
        assert_eq!(spread.cautious(1_000), 3_000);
    }

    #[test]
    fn at_first_executions_may_take_a_quarter_longer() {
        assert_eq!(ExcessSpread::default().cautious(1_000), 1_250);
    }
}
