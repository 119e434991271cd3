//! When free memory goes back to the system.

use super::Sample;

/// Decides after which sample of the ledger the allocator gives free memory back.
///
/// An allocator keeps what is freed, for the next burst. That is right while bursts follow
/// each other, and wrong after the last one. So memory is given back when much less was
/// held for a whole period than before, and once more a period later: what a client no
/// longer holds may be freed a little after its charge, by another thread.
#[derive(Clone, Debug, Default)]
pub struct TrimRule {
    /// The most that was held since memory was last given back.
    peak: usize,
    /// True if the period before ended with a fall.
    has_just_fallen: bool,
}

/// The decision about free memory: kept, or given back to the system now.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TrimDecision {
    /// The allocator keeps it.
    Keep,
    /// It goes back.
    Trim,
}

impl TrimRule {
    /// A smaller fall isn't worth the page faults of the next burst.
    pub const FALL_BYTES_MIN: usize = 4 << 20;

    /// Decides after a period.
    pub fn step(&mut self, sample: Sample) -> TrimDecision {
        let has_fallen = sample.peak <= self.peak / 2
            && self.peak.saturating_sub(sample.peak) >= Self::FALL_BYTES_MIN;
        let fell_before = std::mem::replace(&mut self.has_just_fallen, has_fallen);
        if has_fallen {
            self.peak = sample.peak;
            return TrimDecision::Trim;
        }
        let is_calm = fell_before && sample.peak <= self.peak;
        self.peak = self.peak.max(sample.peak);
        if is_calm { TrimDecision::Trim } else { TrimDecision::Keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// The periods, by the MiB of their peaks, after which memory is given back.
    fn check(peaks: &[usize], expected: &[usize]) {
        let mut rule = TrimRule::default();
        let mut trims = Vec::new();
        for (period, peak) in peaks.iter().enumerate() {
            let sample = Sample { held: 0, peak: peak * MIB };
            if rule.step(sample) == TrimDecision::Trim {
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
