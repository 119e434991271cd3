//! A size that is computed from another one, in the source of a compiled model.

use std::fmt;

/// `factor * symbol + offset`, with a positive factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SizeFormula {
    pub(super) symbol: String,
    factor: i64,
    offset: i64,
}

impl SizeFormula {
    /// Parses `s17`, `2L*s17`, `1L + s17` or `(-1L) + 2L*s17`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (mut variable, mut offset) = (None, 0_i64);
        for term in text.split(" + ") {
            if let Some(number) = integer(term) {
                offset = offset.checked_add(number)?;
                continue;
            }
            let (factor, symbol) = match term.split_once('*') {
                Some((factor, symbol)) => (integer(factor)?, symbol),
                None => (1, term),
            };
            if variable.is_some() || factor < 1 || !is_name(symbol) {
                return None;
            }
            variable = Some((factor, symbol.to_owned()));
        }
        let (factor, symbol) = variable?;
        Some(Self { symbol, factor, offset })
    }

    /// The symbol, if the size is simply the symbol's value.
    pub(super) fn plain_symbol(&self) -> Option<&str> {
        (self.factor == 1 && self.offset == 0).then_some(&self.symbol)
    }

    /// The size that results from this value of the symbol.
    pub(super) fn size(&self, value: i64) -> Option<i64> {
        self.factor.checked_mul(value)?.checked_add(self.offset)
    }

    /// The value of the symbol that results in this size.
    pub(super) fn value(&self, size: i64) -> Option<i64> {
        let product = size.checked_sub(self.offset)?;
        let is_multiple = product >= 0 && product % self.factor == 0;
        is_multiple.then_some(product / self.factor)
    }
}

impl fmt::Display for SizeFormula {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.plain_symbol() {
            Some(symbol) => formatter.write_str(symbol),
            None => write!(formatter, "{}*{} + {}", self.factor, self.symbol, self.offset),
        }
    }
}

/// A number, with or without C's suffix, which is in parentheses if it is negative.
pub(super) fn integer(text: &str) -> Option<i64> {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    inner.unwrap_or(text).trim_end_matches('L').parse().ok()
}

fn is_name(text: &str) -> bool {
    text.starts_with(|one: char| one.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_sizes_are_evaluated() {
        for (text, size) in
            [("s17", 5), ("2L*s17", 10), ("1L + s17", 6), ("(-1L) + 2L*s17", 9), ("3*s17 + 2L", 17)]
        {
            let formula = SizeFormula::parse(text).unwrap();
            assert_eq!((formula.size(5), formula.value(size)), (Some(size), Some(5)), "{text}");
            assert_eq!(SizeFormula::parse(&formula.to_string()), Some(formula), "{text}");
        }
        let formula = SizeFormula::parse("1L + 2L*s17").unwrap();
        assert_eq!([0, 2, 1].map(|size| formula.value(size)), [None, None, Some(0)]);
        assert_eq!(formula.size(i64::MAX), None);
        assert_eq!(formula.value(i64::MIN), None);
    }

    #[test]
    fn other_expressions_are_unknown() {
        for text in ["", "s1*s2", "s1 + s2", "0L*s1", "(-2L)*s1", "c10::div_floor(s1, 2L)", "4L"] {
            assert_eq!(SizeFormula::parse(text), None, "{text}");
        }
    }
}
