//! The decision about when to return free memory to the system.

use super::MemoryLedgerSample;

/// Decides after each ledger sample whether the allocator should return free memory to the system.
///
/// An allocator keeps freed memory for the next burst. Keeping it is right while bursts follow each
/// other, and wrong after the last one. Memory is therefore returned when much less memory was held
/// during a whole period than before. It is returned again one period later, because another thread
/// may free memory shortly after its charge is released.
#[derive(Clone, Debug, Default)]
pub struct HeapTrimPolicy {
    /// The maximum number of bytes held since memory was last returned.
    peak: usize,
    /// True if usage had fallen at the end of the previous period.
    has_just_fallen: bool,
}

/// A decision about free memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HeapTrimDecision {
    /// The allocator keeps it.
    Keep,
    /// The allocator returns it to the system.
    Trim,
}

impl HeapTrimPolicy {
    /// The minimum decrease that justifies the page faults of the next burst.
    pub const FALL_BYTES_MIN: usize = 4 << 20;

    /// Decides at the end of a period.
    pub fn decide(&mut self, sample: MemoryLedgerSample) -> HeapTrimDecision {
        let has_fallen = sample.peak <= self.peak / 2
            && self.peak.saturating_sub(sample.peak) >= Self::FALL_BYTES_MIN;
        let fell_before = std::mem::replace(&mut self.has_just_fallen, has_fallen);
        if has_fallen {
            self.peak = sample.peak;
            return HeapTrimDecision::Trim;
        }
        let is_calm = fell_before && sample.peak <= self.peak;
        self.peak = self.peak.max(sample.peak);
        if is_calm { HeapTrimDecision::Trim } else { HeapTrimDecision::Keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Checks the periods after which memory is returned. Each period is given as its peak in MiB.
    fn check(peaks: &[usize], expected: &[usize]) {
        let mut rule = HeapTrimPolicy::default();
        let mut trims = Vec::new();
        for (period, peak) in peaks.iter().enumerate() {
            let sample = MemoryLedgerSample { held: 0, peak: peak * MIB };
            if rule.decide(sample) == HeapTrimDecision::Trim {
                trims.push(period);
            }
        }
        assert_eq!(trims, expected, "{peaks:?}");
    }

    #[test]
    fn memory_is_given_back_after_a_burst_and_once_more() {
        check(&[], &[]);
        check(&[0, 0, 0], &[]);
        check(&[0, 500, 0, 0, 0, 0], &[2, 3]);
        check(&[0, 500, 500, 1, 1, 0], &[3, 4]);
        check(&[100, 0, 100, 0, 100, 0], &[1, 3, 5]);
    }

    #[test]
    fn steady_load_keeps_its_memory() {
        check(&[200, 150, 200, 180, 120, 200], &[]);
        check(&[16, 9, 16, 9], &[]);
        check(&[3, 0, 3, 0], &[]);
        check(&[4, 0, 0, 0], &[1, 2]);
    }

    #[test]
    fn a_slow_fall_is_followed() {
        check(&[400, 300, 200, 150, 100, 50, 10], &[2, 3, 4, 5, 6]);
    }
}
