//! The arrival rate, measured over the latest arrivals.

use crate::time::Time;
use crate::tuned::ARRIVALS;

/// The latest arrivals.
#[derive(Clone, Debug)]
pub(super) struct ArrivalRate {
    /// Arrival times, each with the total amount that had arrived by then.
    latest: [(Time, u64); ARRIVALS],
    /// The number of arrivals so far. Modulo [`ARRIVALS`], it is the index of the next arrival.
    count: usize,
    total: u64,
}

impl Default for ArrivalRate {
    fn default() -> Self {
        ArrivalRate { latest: [(Time(0), 0); ARRIVALS], count: 0, total: 0 }
    }
}

impl ArrivalRate {
    /// Records the arrival of a request with this many rows, or this much work.
    pub(super) fn add(&mut self, now: Time, amount: u64) {
        self.total = self.total.wrapping_add(amount);
        self.latest[self.count % ARRIVALS] = (now, self.total);
        // Wrapping preserves the remainder and keeps the count above the number of arrivals.
        self.count = if self.count + 1 == 2 * ARRIVALS { ARRIVALS } else { self.count + 1 };
    }

    /// Returns the amount that arrives per second, or 0 until enough arrivals have been seen.
    pub(super) fn per_second(&self, now: Time) -> f64 {
        if self.count < ARRIVALS {
            return 0.0;
        }
        let (since, before) = self.latest[self.count % ARRIVALS];
        let nanoseconds = now.saturating_since(since).max(1);
        self.total.wrapping_sub(before) as f64 * 1e9 / nanoseconds as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_latest_arrivals() {
        let mut rate = ArrivalRate::default();
        for number in 0..63 {
            rate.add(Time(number * 1_000_000_000), 1);
        }
        assert_eq!(rate.per_second(Time(63_000_000_000)), 0.0, "too few arrivals");
        for number in 63..163 {
            rate.add(Time(number * 1_000_000_000), 2);
        }
        let seen = rate.per_second(Time(163_000_000_000));
        assert!((1.9..=2.1).contains(&seen), "{seen}");
        let after_a_pause = rate.per_second(Time(263_000_000_000));
        assert!(after_a_pause < 1.0, "{after_a_pause}");
    }
}
