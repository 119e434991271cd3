//! Numbers at the start of a text, parsed like C's `strtod`.

use std::str;

/// Parses the number at the start of `text`, regardless of what follows it. Returns `None` if there
/// is no number, or if it is too large or too small for a double.
pub(super) fn leading_number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        Some(_) | None => (false, text),
    };
    let value = match (named(digits), hexadecimal_digits(digits)) {
        (Some(value), _) => value,
        (None, Some(digits)) => hexadecimal(digits)?,
        (None, None) => decimal(digits)?,
    };
    Some(if is_negative { -value } else { value })
}

/// Parses the names of infinity and not-a-number.
fn named(text: &[u8]) -> Option<f64> {
    let name = text.get(..3)?.to_ascii_lowercase();
    match name.as_slice() {
        b"inf" => Some(f64::INFINITY),
        b"nan" => Some(f64::NAN),
        _ => None,
    }
}

/// Parses a decimal number with an optional exponent.
fn decimal(text: &[u8]) -> Option<f64> {
    let mantissa = mantissa_length(text, u8::is_ascii_digit)?;
    let exponent = exponent_length(text.get(mantissa..)?, b'e');
    let number = str::from_utf8(text.get(..mantissa.checked_add(exponent)?)?).ok()?;
    let value: f64 = number.parse().ok()?;
    let is_zero = text.get(..mantissa)?.iter().all(|byte| matches!(byte, b'0' | b'.'));
    (is_zero || value.is_normal()).then_some(value)
}

/// Returns the digits after the prefix of a hexadecimal number, or `None` if there are none.
fn hexadecimal_digits(text: &[u8]) -> Option<&[u8]> {
    let digits = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"))?;
    mantissa_length(digits, u8::is_ascii_hexdigit).map(|_| digits)
}

/// Parses a hexadecimal number with an optional exponent of two: `1.8p1`.
fn hexadecimal(digits: &[u8]) -> Option<f64> {
    let length = mantissa_length(digits, u8::is_ascii_hexdigit)?;
    let mut mantissa = 0.0;
    let mut scale: i32 = 0;
    let mut is_fraction = false;
    for byte in digits.get(..length)? {
        let Some(digit) = char::from(*byte).to_digit(16) else {
            is_fraction = true;
            continue;
        };
        mantissa = f64::mul_add(mantissa, 16.0, f64::from(digit));
        scale = scale.saturating_sub(if is_fraction { 4 } else { 0 });
    }
    let exponent = digits.get(length..)?;
    let exponent = exponent.get(..exponent_length(exponent, b'p'))?;
    let exponent = str::from_utf8(exponent.get(1..).unwrap_or_default()).ok()?;
    let exponent: i32 = if exponent.is_empty() { 0 } else { exponent.parse().ok()? };
    // Two steps reach the smallest numbers, but a single power of two does not.
    let power = exponent.saturating_add(scale);
    let half = power.checked_div(2)?;
    let value = mantissa * 2_f64.powi(half) * 2_f64.powi(power.saturating_sub(half));
    (mantissa == 0.0 || (value.is_finite() && value > 0.0)).then_some(value)
}

/// Returns the length of the leading digits, which may contain one decimal point, or `None` if
/// there is no digit.
fn mantissa_length(text: &[u8], is_digit: impl Fn(&u8) -> bool) -> Option<usize> {
    let mut has_point = false;
    let mut has_digit = false;
    let end = text.iter().position(|byte| {
        if *byte == b'.' {
            return std::mem::replace(&mut has_point, true);
        }
        has_digit |= is_digit(byte);
        !is_digit(byte)
    });
    has_digit.then(|| end.unwrap_or(text.len()))
}

/// Returns the length of an exponent that `mark` introduces, or 0 if it has no digits.
fn exponent_length(text: &[u8], mark: u8) -> usize {
    let Some((first, rest)) = text.split_first() else { return 0 };
    if !first.eq_ignore_ascii_case(&mark) {
        return 0;
    }
    let sign = usize::from(matches!(rest.first(), Some(b'+' | b'-')));
    let digits = rest.iter().skip(sign).take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 { 0 } else { digits.saturating_add(sign).saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<f64>) {
        assert_eq!(leading_number(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        for (text, expected) in [
            ("1", 1.0),
            (" \t0.5", 0.5),
            ("+.5x", 0.5),
            ("-2.", -2.0),
            ("1e2e3", 100.0),
            ("1e", 1.0),
            ("1e+", 1.0),
            ("1_0", 1.0),
            ("1.5.2", 1.5),
            ("0e9999", 0.0),
            ("infinite", f64::INFINITY),
            ("0x1.8p1", 3.0),
            ("0x.8p-1", 0.25),
            ("0xAg", 10.0),
            ("0x1p", 1.0),
            ("0x", 0.0),
            ("0x.p1", 0.0),
            ("0x1p-1074", 5e-324),
        ] {
            check(text, Some(expected));
        }
        assert!(leading_number(b"-nan(x)").is_some_and(f64::is_nan));
    }

    #[test]
    fn what_is_no_number_or_none_of_a_double_is_nothing() {
        for text in ["", " ", ".", "x", "-", "+-1", "\"1\"", "in", "e5", ".e5"] {
            check(text, None);
        }
        for text in ["1e9999", "-1e9999", "1e-9999", "1e-320", "0x1p1024", "0x1p-1075"] {
            check(text, None);
        }
        check("0x1p99999999999", None);
    }
}
