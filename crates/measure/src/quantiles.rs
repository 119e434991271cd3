//! Quantiles over the last minute.
//!
//! **Problem.** For each summary of a model, Triton keeps five sorted samples of different ages,
//! and inserts every observation into all of them. That costs a third of the throughput for small
//! requests.
//!
//! **Mechanism.** Time is divided into slices. An observation is counted once, in the slice of its
//! time and the bucket of its value. A reader adds up the slices in the window. Each value below
//! [`EXACT_MAX`] has its own bucket; above it, each power of two is divided into enough buckets to
//! represent a value to within 0.4 %. A reader sees between four and five slices, the same window
//! as Triton's five samples.
//!
//! **Cost.** One atomic addition per observation, and 87 KiB per object.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use galatea_stdx::Lock;

/// The number of slices in the window, including the current one.
const SLICES: usize = 5;
/// The duration of a slice. Five slices make a window of at most a minute.
const SLICE_SECONDS: u64 = 12;

/// The base-two logarithm of the number of buckets into which each power of two is divided.
const SPLIT_BITS: u32 = 7;
/// The limit below which values are counted exactly.
const EXACT_MAX: u64 = 2 << SPLIT_BITS;
/// The base-two logarithm of the value at which the last bucket begins; in microseconds, about
/// twelve days.
const RANGE_BITS: u32 = 40;
const SPLIT: u64 = 1 << SPLIT_BITS;
const BUCKETS: usize = (EXACT_MAX + (RANGE_BITS - SPLIT_BITS - 1) as u64 * SPLIT) as usize;

/// Values counted by size and time. Many threads can record concurrently.
#[derive(Debug)]
pub struct SlidingQuantiles {
    slices: [Slice; SLICES],
    /// Held while a slice is being reset.
    beginning: Lock<()>,
}

/// The values of one period.
#[derive(Debug)]
struct Slice {
    /// The number of the period, counted from the start.
    number: AtomicU64,
    counts: Box<[AtomicU32]>,
}

/// The values in the window at the time of a read.
#[derive(Clone, Debug)]
pub struct QuantileReading {
    counts: Vec<u64>,
    total: u64,
}

impl Default for SlidingQuantiles {
    fn default() -> Self {
        Self::new()
    }
}

impl SlidingQuantiles {
    /// Creates an empty object.
    #[must_use]
    pub fn new() -> Self {
        let slice = |_| Slice {
            number: AtomicU64::new(0),
            counts: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        };
        Self { slices: std::array::from_fn(slice), beginning: Lock::new(()) }
    }

    /// Counts a value. `now` is the time since a fixed moment, the same for all calls.
    pub fn observe(&self, now: Duration, value: u64) {
        let number = number_of(now);
        let Some(slice) = self.slices.get(index_of_slice(number)) else { return };
        if slice.number.load(Ordering::Acquire) < number {
            self.begin(slice, number);
        }
        if let Some(count) = slice.counts.get(bucket_of(value)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the values in the window that ends now.
    #[must_use]
    pub fn read(&self, now: Duration) -> QuantileReading {
        let current = number_of(now);
        let mut counts = vec![0; BUCKETS];
        for slice in &self.slices {
            let number = slice.number.load(Ordering::Acquire);
            if current.saturating_sub(number) >= SLICES as u64 {
                continue;
            }
            for (sum, count) in counts.iter_mut().zip(&slice.counts) {
                *sum += u64::from(count.load(Ordering::Relaxed));
            }
        }
        QuantileReading { total: counts.iter().sum(), counts }
    }

    /// Resets a slice for its next period. A value that another thread is recording at that moment
    /// may be lost, but at most one per slice.
    #[cold]
    fn begin(&self, slice: &Slice, number: u64) {
        let _guard = self.beginning.lock("begin a slice");
        if slice.number.load(Ordering::Acquire) < number {
            slice.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            slice.number.store(number, Ordering::Release);
        }
    }
}

impl QuantileReading {
    /// The value that this share of the values doesn't exceed, or `None` if there are no values. As
    /// in Triton, the rank is rounded down, and a share above 1 yields the largest value.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is far below 2^53, and the conversion saturates"
    )]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = ((share * self.total as f64) as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        bucket.map(value_of)
    }
}

fn number_of(now: Duration) -> u64 {
    now.as_secs() / SLICE_SECONDS
}

#[allow(clippy::cast_possible_truncation, reason = "it is below the number of slices")]
const fn index_of_slice(number: u64) -> usize {
    (number % SLICES as u64) as usize
}

/// The bucket that counts a value.
#[allow(clippy::cast_possible_truncation, reason = "it is below the number of buckets")]
const fn bucket_of(value: u64) -> usize {
    if value < EXACT_MAX {
        return value as usize;
    }
    let power = value.ilog2();
    if power >= RANGE_BITS {
        return BUCKETS - 1;
    }
    let part = (value >> (power - SPLIT_BITS)) & (SPLIT - 1);
    (EXACT_MAX + (power - SPLIT_BITS - 1) as u64 * SPLIT + part) as usize
}

/// The midpoint of a bucket.
const fn value_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT_MAX {
        return bucket;
    }
    let (power, part) = ((bucket - EXACT_MAX) / SPLIT + 1, (bucket - EXACT_MAX) % SPLIT);
    ((SPLIT + part) << power) + (1 << (power - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn check(values: &[u64], share: f64, expected: Option<u64>) {
        let quantiles = SlidingQuantiles::new();
        values.iter().for_each(|value| quantiles.observe(at(0), *value));
        assert_eq!(quantiles.read(at(0)).quantile(share), expected, "{share} of {values:?}");
    }

    #[test]
    fn ranks_are_rounded_down_as_in_triton() {
        check(&[], 0.5, None);
        check(&[86], 0.5, Some(86));
        check(&[8, 168], 0.99, Some(8));
        check(&[8, 168], 1.0, Some(168));
        check(&[8, 168], 1.5, Some(168));
        check(&[8, 168], -1.0, Some(8));
        check(&[8, 168], f64::NAN, Some(8));
        check(&[5, 1, 4, 2, 3], 0.6, Some(3));
    }

    #[test]
    fn each_value_is_within_half_a_percent_of_its_bucket() {
        let mut previous = 0;
        for power in 0..RANGE_BITS {
            for step in 0..1_000 {
                let value = (1_u64 << power) + (1_u64 << power) * step / 1_000;
                let bucket = bucket_of(value);
                assert!(bucket >= previous && bucket < BUCKETS, "{value}");
                previous = bucket;
                let shown = value_of(bucket);
                assert!(shown.abs_diff(value) * 250 <= value, "{value} is shown as {shown}");
                assert!(value >= EXACT_MAX || shown == value);
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << RANGE_BITS) - 1), BUCKETS - 1);
    }

    #[test]
    fn values_leave_with_their_slice() {
        let quantiles = SlidingQuantiles::new();
        let median = |now| quantiles.read(at(now)).quantile(0.5);
        quantiles.observe(at(11), 1);
        quantiles.observe(at(11), 2);
        quantiles.observe(at(12), 9);
        assert_eq!(median(12), Some(1));
        assert_eq!(median(59), Some(1));
        assert_eq!(median(60), Some(9));
        assert_eq!(median(71), Some(9));
        assert_eq!(median(72), None);
        // The slice of the first two values is reset.
        quantiles.observe(at(60), 7);
        assert_eq!(median(60), Some(7));
        quantiles.observe(at(1_000_000), 3);
        assert_eq!(median(1_000_000), Some(3));
    }

    #[test]
    fn threads_record_at_once() {
        let quantiles = SlidingQuantiles::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let quantiles = &quantiles;
                scope.spawn(move || {
                    (0..1_000).for_each(|value| quantiles.observe(at(13), value % 100 + thread));
                });
            }
        });
        assert_eq!(quantiles.read(at(13)).total, 4_000);
    }
}
