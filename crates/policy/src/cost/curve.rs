//! Execution durations by batch size, for requests of one length.
//!
//! The curve keeps the latest durations for each size and reports the typical duration of an
//! execution. Sizes that weren't executed recently are interpolated from neighbouring sizes. No
//! estimate exceeds that of a larger batch that was executed.
//!
//! Durations expire by count rather than by time. The latest durations of a size determine the
//! estimate, so one slow execution neither distorts it nor is forgotten immediately. The spread of
//! durations around their typical value is learned from all sizes together, because rare events are
//! rarely seen at any one size.

use super::samples::Samples;
use super::scale;
use super::spread::ExcessSpread;
use crate::tuned::FORGET_EXECUTIONS;
use crate::units::{RowRate, Rows};

/// Sizes up to this many rows are distinguished exactly; larger ones by quarter octaves.
const EXACT_MAX: u32 = 8;

/// An estimated execution duration, in nanoseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Estimate {
    /// Half of the executions take longer.
    pub(crate) typical_ns: u64,
    /// Few executions take longer.
    pub(crate) cautious_ns: u64,
}

/// The number of rows that a batch needs to keep up with arrivals.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RequiredRows {
    /// The smallest number of rows that keeps up.
    KeepsUp(Rows),
    /// No batch size keeps up; this number of rows comes closest.
    FallsBehind(Rows),
}

/// Execution durations by batch size.
#[derive(Clone, Debug)]
pub(crate) struct CostCurve {
    /// Size classes in ascending order, up to the largest batch.
    sizes: Vec<SizeClass>,
    /// The typical duration of each entry of `sizes`, ascending. Empty until something has
    /// executed.
    typical_ns: Vec<u64>,
    spread: ExcessSpread,
    executions: u64,
}

/// Batch sizes that share their durations.
#[derive(Clone, Debug)]
struct SizeClass {
    /// The largest size of the class.
    rows: Rows,
    /// Durations in nanoseconds.
    samples: Samples<u64>,
}

impl SizeClass {
    fn median_ns(&self) -> Option<u64> {
        self.samples.median(u64::cmp)
    }
}

impl CostCurve {
    /// Creates a curve without any known execution.
    pub(super) fn new(max_rows: Rows) -> Self {
        let max_rows = max_rows.max(Rows(1));
        let class = |index| {
            let rows = Rows(u64::from(end_of(index))).min(max_rows);
            SizeClass { rows, samples: Samples::default() }
        };
        CostCurve {
            sizes: (0..=index_of(max_rows.as_u32())).map(class).collect(),
            typical_ns: Vec::new(),
            spread: ExcessSpread::default(),
            executions: 0,
        }
    }

    /// Learns the duration of an execution with this many rows.
    pub(super) fn observe(&mut self, rows: Rows, duration_ns: u64) {
        let index = self.index_of(rows);
        if let Some(expected) = self.typical_ns.get(index) {
            self.spread.add(duration_ns, *expected);
        }
        self.executions += 1;
        self.sizes[index].samples.add(duration_ns, self.executions, FORGET_EXECUTIONS);
        self.estimate_all();
    }

    /// Returns the estimate for this many rows, or `None` until something has executed.
    pub(crate) fn estimate(&self, rows: Rows) -> Option<Estimate> {
        let typical_ns = *self.typical_ns.get(self.index_of(rows))?;
        Some(Estimate { typical_ns, cautious_ns: self.spread.cautious(typical_ns) })
    }

    /// Returns the largest number of rows whose execution probably ends within this time, at least
    /// one. Returns `None` until something has executed.
    pub(crate) fn rows_within(&self, time_ns: u64) -> Option<Rows> {
        let fits = |typical: &u64| self.spread.cautious(*typical) <= time_ns;
        let fitting = self.typical_ns.partition_point(fits);
        let last = self.sizes.get(fitting.saturating_sub(1))?;
        (!self.typical_ns.is_empty()).then_some(last.rows)
    }

    /// Returns the number of rows per batch with which `lanes` instances keep up with the arrivals.
    /// Returns `None` until something has executed.
    pub(crate) fn rows_for_rate(&self, arriving: RowRate, lanes: usize) -> Option<RequiredRows> {
        let mut best: Option<(Rows, RowRate)> = None;
        for (size, typical_ns) in self.sizes.iter().zip(&self.typical_ns) {
            let rate = size.rows.on_each_of(lanes).per_ns((*typical_ns).max(1) as f64);
            if rate >= arriving {
                return Some(RequiredRows::KeepsUp(size.rows));
            }
            if best.is_none_or(|(_, most)| rate >= most) {
                best = Some((size.rows, rate));
            }
        }
        best.map(|(rows, _)| RequiredRows::FallsBehind(rows))
    }

    fn index_of(&self, rows: Rows) -> usize {
        index_of(rows.as_u32()).min(self.sizes.len() - 1)
    }

    /// Returns true if a size has enough recent durations to be trusted.
    fn is_known(&self, size: &SizeClass) -> bool {
        size.samples.are_known(self.executions, FORGET_EXECUTIONS)
    }

    /// Fills `typical_ns` from the samples.
    fn estimate_all(&mut self) {
        let known: Vec<(u32, u64)> = self
            .sizes
            .iter()
            .filter(|size| self.is_known(size))
            .filter_map(|size| Some((size.rows.as_u32(), size.median_ns()?)))
            .collect();
        let estimate =
            |size: &SizeClass| match (size.median_ns(), on_line(&known, size.rows.as_u32())) {
                (Some(own), _) if self.is_known(size) => Some(own),
                // Values that were seen only once or twice, or long ago, may be outliers.
                (Some(own), Some(others)) => Some(own.min(others)),
                (own, others) => own.or(others),
            };
        let mut estimates: Vec<Option<u64>> = self.sizes.iter().map(estimate).collect();
        // A batch never takes longer than a larger one.
        let mut ceiling = None;
        for estimate in estimates.iter_mut().rev() {
            ceiling = [ceiling, *estimate].into_iter().flatten().min();
            *estimate = ceiling;
        }
        // At first only one size is known, and larger ones take proportionally longer.
        let mut last = (1, 0);
        let in_proportion = |(size, estimate): (&SizeClass, Option<u64>)| {
            last = match estimate {
                Some(ns) => (size.rows.as_u32(), ns),
                None => (size.rows.as_u32(), scale(last.1, size.rows.as_u32(), last.0)),
            };
            last.1
        };
        self.typical_ns = self.sizes.iter().zip(estimates).map(in_proportion).collect();
    }
}

/// Returns the duration of a size, interpolated between known sizes in ascending order. With only
/// one known size, half of its duration is assumed to be fixed.
fn on_line(known: &[(u32, u64)], rows: u32) -> Option<u64> {
    let (first, last) = (*known.first()?, *known.last()?);
    if rows <= first.0 {
        return Some(first.1);
    }
    let above = known.partition_point(|(size, _)| *size < rows);
    let (from, to) = match known.get(above) {
        Some(above_it) => (known[above - 1], *above_it),
        None if known.len() == 1 => ((0, last.1 / 2), last),
        None => (known[known.len() - 2], last),
    };
    let slope_ns = to.1.saturating_sub(from.1);
    Some(from.1.saturating_add(scale(slope_ns, rows - from.0, to.0 - from.0)))
}

/// Returns the largest number in the same class as this one.
pub(super) fn class_end(number: u32) -> u32 {
    end_of(index_of(number))
}

/// Returns the class index of a row or element count.
fn index_of(number: u32) -> usize {
    let number = number.max(1);
    if number <= EXACT_MAX {
        return number as usize - 1;
    }
    // The classes are quarter octaves, each including its upper end.
    let octave = (number - 1).ilog2();
    let quarter = ((number - 1) >> (octave - 2)) & 3;
    (EXACT_MAX + 4 * (octave - EXACT_MAX.ilog2()) + quarter) as usize
}

/// Returns the largest number in a class.
fn end_of(index: usize) -> u32 {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    if index < EXACT_MAX {
        return index + 1;
    }
    let beyond = index - EXACT_MAX;
    let (octave, quarter) = (EXACT_MAX.ilog2() + beyond / 4, beyond % 4);
    let end = u64::from(4 + quarter + 1) << (octave - 2);
    u32::try_from(end).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_ends_where_the_next_begins() {
        for number in 1..5000 {
            let index = index_of(number);
            assert!(end_of(index) >= number, "{number}");
            assert!(index == 0 || end_of(index - 1) < number, "{number}");
        }
        assert!(index_of(u32::MAX) < 140);
        assert_eq!(class_end(u32::MAX), u32::MAX);
    }

    fn learned(max_rows: u64, executions: &[(u64, u64)]) -> CostCurve {
        let mut curve = CostCurve::new(Rows(max_rows));
        for (rows, duration_ns) in executions {
            curve.observe(Rows(*rows), *duration_ns);
        }
        curve
    }

    fn typical(curve: &CostCurve, rows: u64) -> u64 {
        curve.estimate(Rows(rows)).unwrap().typical_ns
    }

    #[test]
    fn a_first_execution_says_that_larger_batches_take_longer_in_proportion() {
        assert_eq!(CostCurve::new(Rows(4)).estimate(Rows(4)), None);
        assert_eq!(CostCurve::new(Rows(4)).rows_within(1), None);
        let curve = learned(64, &[(4, 1_000)]);
        assert_eq!([1, 4, 8, 64].map(|rows| typical(&curve, rows)), [1_000, 1_000, 2_000, 16_000]);
    }

    #[test]
    fn other_sizes_are_on_the_line_through_known_ones() {
        let one = learned(64, &[(4, 1_000); 3]);
        assert_eq!([1, 8].map(|rows| typical(&one, rows)), [1_000, 1_500]);
        let mut two = one;
        (0..3).for_each(|_| two.observe(Rows(8), 1_400));
        assert_eq!([6, 16, 64].map(|rows| typical(&two, rows)), [1_200, 2_200, 7_000]);
    }

    #[test]
    fn one_slow_execution_among_sixteen_changes_little() {
        let mut curve = CostCurve::new(Rows(1));
        for number in 0..16 {
            curve.observe(Rows(1), if number == 5 { 9_000 } else { 100 + number });
        }
        assert_eq!(typical(&curve, 1), 109);
    }

    #[test]
    fn a_batch_never_counts_as_longer_than_a_larger_one() {
        let curve = learned(8, &[(2, 900), (2, 900), (2, 900), (4, 500), (4, 500), (4, 500)]);
        assert_eq!([1, 2, 3, 4].map(|rows| typical(&curve, rows)), [500; 4]);
    }

    #[test]
    fn an_accident_of_a_size_is_not_believed_if_others_contradict() {
        let curve =
            learned(8, &[(2, 200), (2, 200), (2, 200), (4, 300), (4, 300), (4, 300), (8, 9_000)]);
        assert_eq!(typical(&curve, 8), 500);
    }

    #[test]
    fn a_size_that_is_avoided_is_tried_again() {
        let mut curve =
            learned(8, &[(1, 200), (1, 200), (1, 200), (4, 9_000), (4, 9_000), (4, 9_000)]);
        assert_eq!(curve.rows_within(1_000), Some(Rows(1)));
        (0..=FORGET_EXECUTIONS).for_each(|_| curve.observe(Rows(1), 200));
        assert_eq!(curve.rows_within(1_000), Some(Rows(8)));
    }

    #[test]
    fn the_least_batch_that_keeps_up_is_found() {
        let per_second = RowRate::per_second;
        // 1 ms fixed and 1 ms per row: 500 rows per second one at a time, 800 in batches of four.
        let curve = learned(4, &[(1, 2_000_000), (2, 3_000_000), (3, 4_000_000), (4, 5_000_000)]);
        assert_eq!(curve.rows_for_rate(per_second(400.0), 1), Some(RequiredRows::KeepsUp(Rows(1))));
        assert_eq!(curve.rows_for_rate(per_second(700.0), 1), Some(RequiredRows::KeepsUp(Rows(3))));
        assert_eq!(
            curve.rows_for_rate(per_second(1500.0), 2),
            Some(RequiredRows::KeepsUp(Rows(3)))
        );
        assert_eq!(
            curve.rows_for_rate(per_second(900.0), 1),
            Some(RequiredRows::FallsBehind(Rows(4)))
        );
    }
}
