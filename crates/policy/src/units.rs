//! The units of batch sizes and costs in the modules whose decisions depend on execution costs:
//! `cost`, `padding` and `deadline`.
//!
//! | type | is | comes from |
//! |---|---|---|
//! | [`Rows`] | rows of a request, of a batch or of all that wait | requests |
//! | [`Length`] | elements of one row | requests |
//! | [`Elements`] | the size of a batch | rows × length |
//! | [`Work`] | the time of requests if each is executed alone | estimates |
//! | [`Speed`] | work per time | work ÷ time |
//! | [`RowRate`] | rows per time | rows ÷ time |
//!
//! Each type supports only meaningful arithmetic: rows can't be compared with elements, and a
//! length can't be passed where rows are expected. Sums and products saturate at the largest
//! number, and differences at 0.
//!
//! # What remains a number
//!
//! - Durations in nanoseconds: [`Time`](crate::time::Time) takes and returns them as integers,
//!   their names end in `_ns`, and estimates are fractions of them. A dedicated type would be
//!   unwrapped at each use.
//! - Rows in `batcher` and `sequence`, which compare rows only with rows and use no other unit.
//! - Fields of events, actions and settings, which drivers set by name.
//! - Unitless ratios, such as shares and factors.

use std::ops::{Add, AddAssign, Mul, SubAssign};

const NS_PER_SECOND: f64 = 1e9;

/// Rows of a request, of a batch or of all waiting requests.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Rows(pub(crate) u64);

impl Rows {
    /// Returns the product of rows and their length. Without elements, the product counts as one
    /// element.
    #[inline]
    pub(crate) fn of_length(self, length: Length) -> Elements {
        Elements(self.0.saturating_mul(u64::from(length.0)).max(1))
    }

    /// Returns the rate of instances that execute this many rows in this time.
    #[inline]
    pub(crate) fn per_ns(self, duration_ns: f64) -> RowRate {
        RowRate { per_second: self.as_f64() * NS_PER_SECOND / duration_ns }
    }

    /// Returns the total if each of `count` instances has this many rows.
    #[inline]
    pub(crate) fn on_each_of(self, count: usize) -> Rows {
        Rows(self.0.saturating_mul(count as u64))
    }

    /// Returns the number of full batches of these rows, and the remaining rows.
    #[inline]
    pub(crate) fn in_batches_of(self, full: Rows) -> (u64, Rows) {
        (self.0 / full.0, Rows(self.0 % full.0))
    }

    #[inline]
    pub(crate) fn saturating_sub(self, other: Rows) -> Rows {
        Rows(self.0.saturating_sub(other.0))
    }

    /// Returns the rows as a plain number, for actions and tables.
    #[inline]
    pub(crate) fn as_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl Add for Rows {
    type Output = Rows;

    #[inline]
    fn add(self, other: Rows) -> Rows {
        Rows(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Rows {
    #[inline]
    fn add_assign(&mut self, other: Rows) {
        *self = *self + other;
    }
}

impl SubAssign for Rows {
    #[inline]
    fn sub_assign(&mut self, other: Rows) {
        *self = self.saturating_sub(other);
    }
}

impl std::iter::Sum for Rows {
    fn sum<I: Iterator<Item = Rows>>(rows: I) -> Rows {
        rows.fold(Rows(0), Add::add)
    }
}

/// Elements per row; for a padded batch, those of its longest request.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Length(pub(crate) u32);

/// Elements of a request, of a batch or of all waiting requests: rows times length.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Elements(pub(crate) u64);

impl Elements {
    /// Returns the maximum number of rows of this length that have at most this many elements.
    #[inline]
    pub(crate) fn rows_of(self, length: Length) -> Rows {
        Rows(self.0 / u64::from(length.0.max(1)))
    }

    /// Returns the mean number of elements per row.
    #[inline]
    pub(crate) fn per_row(self, rows: Rows) -> f64 {
        self.as_f64() / rows.0.max(1) as f64
    }

    /// Returns the ratio of these elements to the others.
    #[inline]
    pub(crate) fn ratio_to(self, others: Elements) -> f64 {
        self.as_f64() / others.0.max(1) as f64
    }

    #[inline]
    pub(crate) fn saturating_sub(self, other: Elements) -> Elements {
        Elements(self.0.saturating_sub(other.0))
    }

    #[inline]
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl Add for Elements {
    type Output = Elements;

    #[inline]
    fn add(self, other: Elements) -> Elements {
        Elements(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Elements {
    #[inline]
    fn add_assign(&mut self, other: Elements) {
        *self = *self + other;
    }
}

impl SubAssign for Elements {
    #[inline]
    fn sub_assign(&mut self, other: Elements) {
        *self = self.saturating_sub(other);
    }
}

impl std::iter::Sum for Elements {
    fn sum<I: Iterator<Item = Elements>>(elements: I) -> Elements {
        elements.fold(Elements(0), Add::add)
    }
}

/// The total time of requests that are executed one by one, in nanoseconds.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
pub(crate) struct Work {
    ns: f64,
}

impl Work {
    /// Returns the work of a request that takes this long when executed alone.
    #[inline]
    pub(crate) fn alone(duration_ns: f64) -> Work {
        Work { ns: duration_ns }
    }

    /// Returns the speed of a batch that completes this work in this time.
    #[inline]
    pub(crate) fn over(self, duration_ns: f64) -> Speed {
        Speed(self.ns / duration_ns.max(1.0))
    }

    /// Returns the time that the work takes at this speed.
    #[inline]
    pub(crate) fn ns_at(self, speed: Speed) -> f64 {
        self.ns / speed.0
    }

    /// Returns the time that the work takes if it is executed one by one.
    #[inline]
    pub(crate) fn one_by_one_ns(self) -> f64 {
        self.ns
    }
}

impl Add for Work {
    type Output = Work;

    #[inline]
    fn add(self, other: Work) -> Work {
        Work { ns: self.ns + other.ns }
    }
}

/// The total work for rows that each need this much.
impl Mul<Rows> for Work {
    type Output = Work;

    #[inline]
    fn mul(self, rows: Rows) -> Work {
        Work { ns: self.ns * rows.as_f64() }
    }
}

/// Work per time: the speedup of a batch over executing its requests one by one, or the number of
/// instances that the arriving requests would occupy if executed one by one.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
pub(crate) struct Speed(pub(crate) f64);

impl Speed {
    /// The speed of executing requests one by one.
    pub(crate) const ONE: Speed = Speed(1.0);

    /// Returns the speed that each of `count` instances must have.
    #[inline]
    pub(crate) fn on_each_of(self, count: usize) -> Speed {
        Speed(self.0 / count.max(1) as f64)
    }

    /// Returns the lower of two speeds.
    #[inline]
    pub(crate) fn min(self, other: Speed) -> Speed {
        Speed(self.0.min(other.0))
    }

    /// Returns the time that a batch saves, as a share of its duration.
    #[inline]
    pub(crate) fn gain(self) -> f64 {
        self.0 - 1.0
    }

    /// Returns the work completed at this speed in this time.
    #[inline]
    pub(crate) fn during(self, duration_ns: f64) -> Work {
        Work { ns: self.0 * duration_ns }
    }
}

/// This speed multiplied by a factor.
impl Mul<f64> for Speed {
    type Output = Speed;

    #[inline]
    fn mul(self, factor: f64) -> Speed {
        Speed(self.0 * factor)
    }
}

/// Rows per time.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
pub(crate) struct RowRate {
    per_second: f64,
}

impl RowRate {
    /// Zero rows per second.
    pub(crate) const ZERO: RowRate = RowRate { per_second: 0.0 };

    #[inline]
    pub(crate) fn per_second(rows: f64) -> RowRate {
        RowRate { per_second: rows }
    }

    /// Returns the time in which this many rows arrive.
    #[inline]
    pub(crate) fn ns_for(self, rows: Rows) -> f64 {
        rows.as_f64() * NS_PER_SECOND / self.per_second
    }
}

/// This rate multiplied by a factor.
impl Mul<f64> for RowRate {
    type Output = RowRate;

    #[inline]
    fn mul(self, factor: f64) -> RowRate {
        RowRate { per_second: self.per_second * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_quotients_of_units_are_the_third() {
        let elements = Rows(3).of_length(Length(40));
        assert_eq!(elements, Elements(120));
        assert_eq!(elements.rows_of(Length(50)), Rows(2));
        assert_eq!(elements.per_row(Rows(3)), 40.0);
        assert_eq!(Rows(7).in_batches_of(Rows(3)), (2, Rows(1)));
        let speed = (Work::alone(50.0) + Work::alone(10.0) * Rows(5)).over(40.0);
        assert_eq!(speed, Speed(2.5));
        assert_eq!(speed.during(40.0).ns_at(speed), 40.0);
        assert_eq!(Rows(4).per_ns(2e6), RowRate::per_second(2_000.0));
        assert_eq!(RowRate::per_second(2_000.0).ns_for(Rows(4)), 2e6);
    }

    #[test]
    fn extreme_numbers_stay_at_the_largest() {
        assert_eq!(Rows(u64::MAX).of_length(Length(2)), Elements(u64::MAX));
        assert_eq!(Rows(u64::MAX) + Rows(1), Rows(u64::MAX));
        assert_eq!(Rows(u64::MAX).as_u32(), u32::MAX);
        assert_eq!(Rows(1).saturating_sub(Rows(2)), Rows(0));
        assert_eq!([Elements(u64::MAX), Elements(1)].into_iter().sum::<Elements>().0, u64::MAX);
    }

    #[test]
    fn a_request_without_elements_counts_as_one() {
        assert_eq!(Rows(0).of_length(Length(8)), Elements(1));
        assert_eq!(Rows(8).of_length(Length(0)), Elements(1));
        assert_eq!(Elements(8).rows_of(Length(0)), Rows(8));
    }
}
