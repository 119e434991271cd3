//! Tests that need more than one comparison: category lists, equality, and zeros as missing values.

use crate::source::Test;

/// The largest category. Not all larger numbers are exact in 32 bits.
const CATEGORY_MAX: f32 = 16_777_216.0;
/// The largest magnitude that LightGBM treats as zero.
const ZERO_MAX: f64 = 1e-35;

/// A test that needs more than one comparison.
#[derive(Debug, Clone, Copy)]
enum Special {
    Equal(f64),
    LessOrEqualUnlessZero(f64),
    /// A bit set in the table's words, with one bit for each category.
    Bits {
        first: usize,
        count: usize,
    },
    /// A list of categories in ascending order.
    List {
        first: usize,
        count: usize,
    },
}

/// A forest's special tests, indexed by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Specials {
    tests: Vec<Special>,
    words: Vec<u32>,
}

impl Specials {
    /// Adds a test and returns its number. Categories are stored in the more compact form, so a
    /// single large category in a file doesn't cost memory.
    pub(crate) fn add(&mut self, test: &Test, categories: &[u32]) -> usize {
        let special = match *test {
            Test::Equal(value) => Special::Equal(value),
            Test::LessOrEqualUnlessZero(threshold) => Special::LessOrEqualUnlessZero(threshold),
            Test::OneOf { .. } => self.add_categories(categories),
            // These tests are never special.
            Test::Less(value)
            | Test::LessOrEqual(value)
            | Test::Greater(value)
            | Test::GreaterOrEqual(value) => Special::Equal(value),
        };
        self.tests.push(special);
        self.tests.len() - 1
    }

    fn add_categories(&mut self, categories: &[u32]) -> Special {
        let first = self.words.len();
        let highest = categories.iter().copied().max().unwrap_or(0) as usize;
        let words = highest / 32 + 1;
        if words <= categories.len() + 2 {
            self.words.resize(first + words, 0);
            for category in categories {
                self.words[first + *category as usize / 32] |= 1 << (category % 32);
            }
            return Special::Bits { first, count: words };
        }
        self.words.extend_from_slice(categories);
        self.words[first..].sort_unstable();
        Special::List { first, count: categories.len() }
    }

    /// Evaluates a test for a value. Returns `None` if the value counts as missing.
    #[inline]
    pub(crate) fn is_true(&self, number: usize, value: f32) -> Option<bool> {
        if value.is_nan() {
            return None;
        }
        Some(match self.tests[number] {
            Special::Equal(expected) => f64::from(value) == expected,
            Special::LessOrEqualUnlessZero(threshold) => {
                if f64::from(value).abs() <= ZERO_MAX {
                    return None;
                }
                f64::from(value) <= threshold
            }
            Special::Bits { first, count } => category(value).is_some_and(|category| {
                let word = category as usize / 32;
                word < count && self.words[first + word] >> (category % 32) & 1 == 1
            }),
            Special::List { first, count } => category(value).is_some_and(|category| {
                self.words[first..first + count].binary_search(&category).is_ok()
            }),
        })
    }
}

/// The category for a value. Fractions are rounded down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range was checked, and fractions are cut as treelite does"
)]
fn category(value: f32) -> Option<u32> {
    (0.0..=CATEGORY_MAX).contains(&value).then_some(value as u32)
}

#[cfg(test)]
mod tests {
    use super::Specials;
    use crate::source::Test;

    fn check(test: &Test, categories: &[u32], value: f32, expected: Option<bool>) {
        let mut specials = Specials::default();
        specials.add(&Test::Equal(9.0), &[]);
        let number = specials.add(test, categories);
        assert_eq!(specials.is_true(number, value), expected, "{test:?} {categories:?} {value}");
    }

    #[test]
    fn categories_are_found_in_both_forms() {
        let test = Test::OneOf { first: 0, count: 2 };
        for list in [&[33, 1][..], &[3_000_000, 1]] {
            check(&test, list, 1.0, Some(true));
            check(&test, list, 1.9, Some(true));
            check(&test, list, list[0] as f32, Some(true));
            check(&test, list, 2.0, Some(false));
            check(&test, list, 64.0, Some(false));
            check(&test, list, -1.0, Some(false));
            check(&test, list, -0.5, Some(false));
            check(&test, list, f32::INFINITY, Some(false));
            check(&test, list, f32::NAN, None);
        }
        check(&test, &[], 0.0, Some(false));
        check(&test, &[u32::MAX], 4_294_967_295.0, Some(false));
    }

    #[test]
    fn a_great_category_costs_no_memory() {
        let mut specials = Specials::default();
        specials.add(&Test::OneOf { first: 0, count: 1 }, &[u32::MAX]);
        assert_eq!(specials.words.len(), 1);
    }

    #[test]
    fn zero_and_nan_may_be_missing() {
        let test = Test::LessOrEqualUnlessZero(1.0);
        check(&test, &[], 0.0, None);
        check(&test, &[], -1e-36, None);
        check(&test, &[], f32::NAN, None);
        check(&test, &[], 1.0, Some(true));
        check(&test, &[], 1.5, Some(false));
        check(&Test::Equal(0.5), &[], 0.5, Some(true));
        check(&Test::Equal(0.1), &[], 0.1, Some(false));
    }
}
