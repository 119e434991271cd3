//! Converts tests to comparisons of 32-bit floats.
//!
//! Rows contain 32-bit floats. Comparing one with a 64-bit threshold is equivalent to comparing it
//! with a nearby 32-bit float on the correct side of the threshold. All numerical tests are
//! converted to one form: the right child is chosen if the value is at least the threshold.

use crate::source::Test;

/// A threshold that no value reaches. It is NaN, because an infinite value would reach infinity.
pub(crate) const NEVER: f32 = f32::NAN;
/// A threshold that every number reaches.
const ALWAYS: f32 = f32::NEG_INFINITY;

/// A numerical test in its converted form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AtLeast {
    /// The right child is chosen if the value is at least this threshold.
    pub(crate) threshold: f32,
    /// True if the children are swapped.
    pub(crate) is_swapped: bool,
}

impl AtLeast {
    /// Converts a test; returns `None` if the test needs more than one comparison.
    pub(crate) fn from_test(test: &Test) -> Option<Self> {
        Some(match *test {
            Test::Less(threshold) if threshold.is_nan() => Self::straight(ALWAYS),
            Test::Less(threshold) => Self::straight(at_least(threshold)),
            Test::LessOrEqual(threshold) if threshold.is_nan() => Self::straight(ALWAYS),
            Test::LessOrEqual(threshold) => Self::straight(above(threshold)),
            Test::Greater(threshold) => Self::swapped(above(threshold)),
            Test::GreaterOrEqual(threshold) => Self::swapped(at_least(threshold)),
            Test::Equal(_) | Test::LessOrEqualUnlessZero(_) | Test::OneOf { .. } => return None,
        })
    }

    fn straight(threshold: f32) -> Self {
        Self { threshold, is_swapped: false }
    }

    fn swapped(threshold: f32) -> Self {
        Self { threshold, is_swapped: true }
    }
}

/// The smallest 32-bit float that is at least `threshold`.
fn at_least(threshold: f64) -> f32 {
    let nearest = narrow(threshold);
    if f64::from(nearest) < threshold { nearest.next_up() } else { nearest }
}

/// The smallest 32-bit float above `threshold`.
fn above(threshold: f64) -> f32 {
    if threshold.is_nan() || threshold == f64::INFINITY {
        return NEVER;
    }
    let nearest = narrow(threshold);
    if f64::from(nearest) <= threshold { nearest.next_up() } else { nearest }
}

#[expect(clippy::cast_possible_truncation, reason = "both callers mend the rounding")]
fn narrow(threshold: f64) -> f32 {
    threshold as f32
}

#[cfg(test)]
mod tests {
    use super::AtLeast;
    use crate::source::Test;

    const VALUES: [f64; 15] = [
        f64::NEG_INFINITY,
        -1e300,
        f32::MIN as f64,
        -1.0,
        -1e-300,
        -0.0,
        0.0,
        1.000_000_018_002_509_5e-35,
        0.1,
        0.3,
        16_777_217.0,
        f32::MAX as f64,
        3.402_823_5e38,
        f64::INFINITY,
        f64::NAN,
    ];

    /// For these values and their neighbors, every comparison agrees with the 64-bit one.
    #[test]
    fn one_comparison_replaces_each() {
        type Kind = (fn(f64) -> Test, fn(f64, f64) -> bool);
        let kinds: [Kind; 4] = [
            (Test::Less, |a, b| a < b),
            (Test::LessOrEqual, |a, b| a <= b),
            (Test::Greater, |a, b| a > b),
            (Test::GreaterOrEqual, |a, b| a >= b),
        ];
        for (kind, compare) in kinds {
            for threshold in VALUES {
                let test = kind(threshold);
                let ours = AtLeast::from_test(&test).unwrap();
                for near in VALUES.iter().filter(|value| !value.is_nan()) {
                    let near = *near as f32;
                    for value in [near.next_down(), near, near.next_up()] {
                        let is_left = (value >= ours.threshold) == ours.is_swapped;
                        assert_eq!(is_left, compare(value.into(), threshold), "{value} {test:?}");
                    }
                }
            }
        }
    }
}
