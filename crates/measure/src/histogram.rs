//! Histograms that count observations in buckets.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of observations in each bucket.
///
/// The sum of the observations is not included, because most callers already count it.
#[derive(Debug)]
pub struct Histogram<T> {
    bounds: Box<[T]>,
    /// The counts. There is one more than there are bounds: the last counts observations above all
    /// bounds.
    counts: Box<[AtomicU64]>,
}

impl<T: Copy + PartialOrd> Histogram<T> {
    /// Creates a histogram with these upper bounds, inclusive.
    ///
    /// # Panics
    ///
    /// Panics if the bounds are not strictly increasing.
    #[must_use]
    pub fn new(bounds: &[T]) -> Self {
        assert!(bounds.is_sorted_by(|low, high| low < high), "bounds ascend");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds: bounds.into(), counts }
    }

    /// Counts an observation.
    pub fn observe(&self, value: T) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The upper bounds.
    #[must_use]
    pub const fn bounds(&self) -> &[T] {
        &self.bounds
    }

    /// The non-cumulative count of each bucket.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::new(&[0.5, 3.0]);
        for value in [0.0, 0.5, 0.6, 3.0, 3.1, f64::INFINITY, -1.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.counts(), [3, 2, 2]);
        assert_eq!(histogram.bounds(), [0.5, 3.0]);
    }

    #[test]
    fn without_bounds_there_is_one_bucket() {
        let histogram = Histogram::new(&[]);
        histogram.observe(7_u64);
        assert_eq!(histogram.counts(), [1]);
    }

    #[test]
    #[should_panic(expected = "bounds ascend")]
    fn bounds_ascend_strictly() {
        let _ = Histogram::new(&[1, 1]);
    }
}
