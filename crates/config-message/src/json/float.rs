//! Prints floating-point numbers in Triton's form.
//!
//! Triton prints a configuration twice. Protocol Buffers first writes a number with six significant
//! digits, or with nine if six do not read back as the same number (15 and 17 for double
//! precision). A JSON library then reads that text, treats a number without a point or exponent as
//! an integer, and writes it with the fewest digits. Both steps affect the result. One effect is
//! not reproduced: that library reads nine digits with an exponent above 30 or below -14 slightly
//! wrongly.

/// Prints a single-precision number.
pub(super) fn single(value: f32) -> String {
    // A subnormal number never counts as reading back correctly.
    let same =
        |text: &str| !value.is_subnormal() && text.parse::<f32>().is_ok_and(|read| read == value);
    special(f64::from(value)).unwrap_or_else(|| {
        let decimal = Decimal::of(f64::from(value), [6, 9], same);
        decimal.integer().unwrap_or_else(|| decimal.fraction())
    })
}

/// Prints a double-precision number.
pub(super) fn double(value: f64) -> String {
    let same =
        |text: &str| !value.is_subnormal() && text.parse::<f64>().is_ok_and(|read| read == value);
    special(value).unwrap_or_else(|| {
        let decimal = Decimal::of(value, [15, 17], same);
        decimal.integer().unwrap_or_else(|| Decimal::parse(&format!("{value:e}")).fraction())
    })
}

/// Prints NaN and infinities in quotes.
fn special(value: f64) -> Option<String> {
    let name = if value.is_nan() {
        "\"NaN\""
    } else if value == f64::INFINITY {
        "\"Infinity\""
    } else if value == f64::NEG_INFINITY {
        "\"-Infinity\""
    } else {
        return None;
    };
    Some(name.to_owned())
}

/// A decimal number: `digits`, with the point after the first digit, times ten to the power of
/// `exponent`.
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i32,
    /// Numbers with at least this exponent are written with an exponent.
    precision: i32,
}

impl Decimal {
    fn of(value: f64, [few, many]: [usize; 2], same: impl Fn(&str) -> bool) -> Self {
        let scientific = |precision: usize| format!("{value:.*e}", precision.saturating_sub(1));
        let (precision, text) = match scientific(few) {
            text if same(&text) => (few, text),
            _ => (many, scientific(many)),
        };
        let precision = i32::try_from(precision).unwrap_or(i32::MAX);
        Self { precision, ..Self::parse(&text) }
    }

    /// Parses Rust's format: a sign, digits with a point, and an exponent.
    fn parse(text: &str) -> Self {
        let (number, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let digits: String = number.chars().filter(char::is_ascii_digit).collect();
        let significant = digits.trim_end_matches('0');
        Self {
            negative: number.starts_with('-'),
            digits: if significant.is_empty() { "0" } else { significant }.to_owned(),
            exponent: exponent.parse().unwrap_or(0),
            precision: 0,
        }
    }

    /// The number of digits before the point in the form without an exponent; 0 or less for a
    /// number below 1.
    fn point(&self) -> i32 {
        self.exponent.saturating_add(1)
    }

    fn length(&self) -> i32 {
        i32::try_from(self.digits.len()).unwrap_or(i32::MAX)
    }

    /// The text, if it needs neither a point nor an exponent.
    fn integer(&self) -> Option<String> {
        let plain = (0..self.precision).contains(&self.exponent) && self.length() <= self.point();
        plain.then(|| match self.digits.as_str() {
            // Zero loses its sign.
            "0" => "0".to_owned(),
            digits => format!("{}{digits}{}", self.sign(), zeros(self.point() - self.length())),
        })
    }

    /// The text with a point or an exponent, in the form of the JSON library.
    fn fraction(&self) -> String {
        /// Numbers below ten to this power are written without an exponent.
        const LONGEST: i32 = 21;
        let (sign, digits, point) = (self.sign(), self.digits.as_str(), self.point());
        let missing = point - self.length();
        if missing >= 0 && point <= LONGEST {
            return format!("{sign}{digits}{}.0", zeros(missing));
        }
        if (1..=LONGEST).contains(&point) {
            let (whole, fraction) = split(digits, point);
            return format!("{sign}{whole}.{fraction}");
        }
        if (-5..=0).contains(&point) {
            return format!("{sign}0.{}{digits}", zeros(-point));
        }
        match split(digits, 1) {
            (first, "") => format!("{sign}{first}e{}", self.exponent),
            (first, rest) => format!("{sign}{first}.{rest}e{}", self.exponent),
        }
    }

    fn sign(&self) -> &'static str {
        if self.negative { "-" } else { "" }
    }
}

fn zeros(count: i32) -> String {
    "0".repeat(usize::try_from(count).unwrap_or(0))
}

fn split(digits: &str, at: i32) -> (&str, &str) {
    let at = usize::try_from(at).unwrap_or(0);
    digits.split_at_checked(at).unwrap_or((digits, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_precision() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-20.0, "-20"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (100_000.0, "100000"),
            // With six digits, this number needs an exponent, so it is not an integer.
            (1_000_000.0, "1000000.0"),
            (1_234_567.0, "1234567"),
            (16_777_216.0, "16777216"),
            (1e10, "10000000000.0"),
            (1e20, "100000000000000000000.0"),
            (1e21, "1e21"),
            (1.5e21, "1.5e21"),
            (0.000_1, "0.0001"),
            (0.000_001, "0.000001"),
            (1e-7, "1e-7"),
            (0.333_333_34, "0.333333343"),
            (0.000_123_456_78, "0.000123456775"),
            (-123_456.79, "-123456.789"),
            (6.022_14e23, "6.02214e23"),
            (f32::MIN_POSITIVE, "1.17549435e-38"),
            (1e-45, "1.40129846e-45"),
            (f32::NAN, "\"NaN\""),
            (f32::INFINITY, "\"Infinity\""),
            (f32::NEG_INFINITY, "\"-Infinity\""),
        ] {
            assert_eq!(single(value), expected);
        }
    }

    #[test]
    fn double_precision() {
        for (value, expected) in [
            (0.0, "0"),
            (0.1, "0.1"),
            (123_456.75, "123456.75"),
            (1e14, "100000000000000"),
            (1e15, "1000000000000000.0"),
            (1e-9, "1e-9"),
            (f64::NAN, "\"NaN\""),
        ] {
            assert_eq!(double(value), expected);
        }
    }
}
