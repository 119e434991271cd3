//! Execution durations, learned from past executions.
//!
//! There are two learners. Both keep the latest values for each kind of execution (`samples`) and
//! the extent to which executions exceed their estimates (`spread`), but they fit different models.
//! Batches of equal lengths have one curve per length, by exact batch size. Padded batches are
//! rarely alike, so they share a single curve, indexed by the number of elements. ARCHITECTURE.md
//! explains why neither learner can replace the other.

mod curve;
mod padded;
mod samples;
mod spread;

use std::collections::BTreeMap;

pub(crate) use self::curve::{CostCurve, RequiredRows};
pub(crate) use self::padded::PaddedCosts;
use crate::units::{Length, Rows};

/// The durations of a model's executions, by request length and batch size.
///
/// All rows of a batch have the same length, which is the number of elements per row of the
/// variable-size inputs. Lengths are grouped as coarsely as sizes, so there are at most 140 curves,
/// regardless of what clients send.
#[derive(Clone, Debug)]
pub(crate) struct CostModel {
    max_rows: Rows,
    /// Curves by the largest length of each class.
    curves: BTreeMap<Length, CostCurve>,
}

impl CostModel {
    /// Creates a cost model without any known execution, for batches of at most this many rows.
    pub(crate) fn new(max_rows: Rows) -> Self {
        CostModel { max_rows, curves: BTreeMap::new() }
    }

    /// Learns the duration of an execution.
    pub(crate) fn observe(&mut self, rows: Rows, length: Length, duration_ns: u64) {
        let max_rows = self.max_rows;
        let class = longest_alike(length);
        let curve = self.curves.entry(class).or_insert_with(|| CostCurve::new(max_rows));
        curve.observe(rows, duration_ns);
    }

    /// Returns the curve for requests of this length. It belongs to their class or to the next
    /// longer known class, which is at least as slow. Otherwise it belongs to the longest known
    /// class, which may be faster. Returns `None` until something has executed.
    pub(crate) fn curve(&self, length: Length) -> Option<&CostCurve> {
        let longer = self.curves.range(longest_alike(length)..).next();
        longer.or_else(|| self.curves.last_key_value()).map(|(_, curve)| curve)
    }
}

/// Returns the largest length of the class.
fn longest_alike(length: Length) -> Length {
    Length(curve::class_end(length.0))
}

/// Scales a duration by a ratio.
fn scale(ns: u64, numerator: u32, denominator: u32) -> u64 {
    let scaled = u128::from(ns) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_was_never_executed_is_estimated_by_the_next_longer_one() {
        let mut costs = CostModel::new(Rows(4));
        assert!(costs.curve(Length(10)).is_none());
        costs.observe(Rows(1), Length(10), 100);
        costs.observe(Rows(1), Length(100), 900);
        let curve = |length| costs.curve(Length(length)).unwrap();
        let typical = |length| curve(length).estimate(Rows(1)).unwrap().typical_ns;
        assert_eq!([1, 10, 11, 100, 5000].map(typical), [100, 100, 900, 900, 900]);
    }
}
