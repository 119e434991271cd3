//! How quick a lane is, as far as its past tells.

use std::time::Duration;

/// What an execution takes at most to be called quick: about what it costs to wake
/// another thread and be woken by it. A build for tests takes longer for the same.
pub(crate) const QUICK: Duration =
    Duration::from_micros(if cfg!(debug_assertions) { 1_000 } else { 50 });

/// So many quick executions in a row promise another one.
const STREAK: u32 = 16;

/// For how long a turn holds the answers to requests that are done.
const TURN: Duration = Duration::from_micros(50);

/// Foresees whether a batch will be quick: if those before it were, and it is no
/// larger than they.
///
/// While it is, others are woken for several batches at once. A batch that turns out
/// to be slow costs those before it, in the same turn, its time; the next one that is
/// slow comes after [`STREAK`] quick ones at the earliest.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    streak: u32,
    /// The largest batch of the streak, by the bytes of its inputs.
    largest: usize,
    /// How long the turn has been executing.
    turn: Duration,
}

impl Pace {
    /// Whether a batch with so many bytes of inputs is likely to be quick.
    pub(crate) const fn foresees_quick(&self, size: usize) -> bool {
        self.streak >= STREAK && size <= self.largest
    }

    /// Learns from an execution with so many bytes of inputs.
    pub(crate) fn note(&mut self, size: usize, took: Duration) {
        self.turn = self.turn.saturating_add(took);
        if took > QUICK {
            (self.streak, self.largest) = (0, 0);
        } else {
            self.streak = self.streak.saturating_add(1);
            self.largest = self.largest.max(size);
        }
    }

    /// Whether those who wait have waited long enough.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.turn >= TURN
    }

    /// Others were woken.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    fn after(executions: &[(usize, Duration)]) -> Pace {
        let mut pace = Pace::default();
        executions.iter().for_each(|&(size, took)| pace.note(size, took));
        pace
    }

    #[test]
    fn a_streak_of_quick_ones_promises_more_of_their_size() {
        let mut streak = vec![(8, MICROSECOND); 15];
        assert!(!after(&streak).foresees_quick(8));
        streak.push((4, QUICK));
        assert!(after(&streak).foresees_quick(8));
        assert!(!after(&streak).foresees_quick(9));
        streak.push((1, QUICK.saturating_add(MICROSECOND)));
        assert!(!after(&streak).foresees_quick(1));
    }

    #[test]
    fn a_turn_is_as_long_as_what_is_executed_in_it() {
        let mut pace = after(&[(1, TURN - MICROSECOND)]);
        assert!(!pace.is_turn_over());
        pace.note(1, MICROSECOND);
        assert!(pace.is_turn_over());
        pace.begin_turn();
        assert!(!pace.is_turn_over());
    }
}
