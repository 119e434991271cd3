//! Reads numbers: integers exactly, and other numbers with correct rounding.

use galatea_infer::Status;

use super::cursor::JsonReader;

/// A number, in the narrowest type that Triton distinguishes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Number {
    /// A whole number from 0 to `u64::MAX`.
    Unsigned(u64),
    /// A whole number below 0, down to `i64::MIN`.
    Negative(i64),
    /// Any other number.
    Double(f64),
}

impl Number {
    /// Returns the value if it is a whole number that fits.
    #[inline]
    pub(crate) fn as_unsigned(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Negative(_) | Self::Double(_) => None,
        }
    }

    /// Returns the value if it is a whole number that fits.
    #[inline]
    pub(crate) fn as_signed(self) -> Option<i64> {
        match self {
            Self::Unsigned(value) => i64::try_from(value).ok(),
            Self::Negative(value) => Some(value),
            Self::Double(_) => None,
        }
    }

    /// Returns the value, rounded if necessary.
    #[inline]
    pub(crate) fn as_double(self) -> f64 {
        match self {
            Self::Unsigned(value) => value as f64,
            Self::Negative(value) => value as f64,
            Self::Double(value) => value,
        }
    }
}

/// The powers of ten that a double represents exactly.
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// The largest number up to which a double represents all whole numbers exactly.
const EXACT_MANTISSA_MAX: u64 = 1 << 53;

/// A decimal number, before it is converted to a double.
struct Decimal {
    /// The digits without the point; `None` if they overflow.
    mantissa: Option<u64>,
    /// The power of ten.
    exponent: i32,
    negative: bool,
}

#[inline]
pub(super) fn read(reader: &mut JsonReader<'_>) -> Result<Number, Status> {
    reader.peek();
    let start = reader.clone();
    let negative = reader.take(b'-');
    if matches!(reader.rest, [b'N' | b'I', ..]) {
        return non_finite(reader, negative);
    }
    let mut decimal = Decimal { mantissa: Some(0), exponent: 0, negative };
    if !reader.take(b'0') && !digits(reader, &mut decimal) {
        return Err(reader.invalid_value());
    }
    if !matches!(reader.rest, [b'.' | b'e' | b'E', ..])
        && let Some(number) = whole(&decimal)
    {
        return Ok(number);
    }
    fraction_and_exponent(reader, &mut decimal)?;
    double(&start, reader, &decimal)
}

/// Reads digits into the mantissa. Returns false if there are none.
#[inline]
fn digits(reader: &mut JsonReader<'_>, decimal: &mut Decimal) -> bool {
    let before = reader.rest.len();
    while let [digit @ b'0'..=b'9', rest @ ..] = reader.rest {
        let value = u64::from(digit & 0x0f);
        decimal.mantissa = decimal
            .mantissa
            .and_then(|mantissa| mantissa.checked_mul(10))
            .and_then(|mantissa| mantissa.checked_add(value));
        reader.rest = rest;
    }
    reader.rest.len() < before
}

fn whole(decimal: &Decimal) -> Option<Number> {
    let mantissa = decimal.mantissa?;
    if !decimal.negative || mantissa == 0 {
        return Some(Number::Unsigned(mantissa));
    }
    0_i64.checked_sub_unsigned(mantissa).map(Number::Negative)
}

fn fraction_and_exponent(reader: &mut JsonReader<'_>, decimal: &mut Decimal) -> Result<(), Status> {
    if reader.take(b'.') {
        let before = reader.rest.len();
        if !digits(reader, decimal) {
            return Err(reader.error("Miss fraction part in number."));
        }
        let count = before.saturating_sub(reader.rest.len());
        decimal.exponent = i32::try_from(count).unwrap_or(i32::MAX).saturating_neg();
    }
    if reader.take(b'e') || reader.take(b'E') {
        let negative = !reader.take(b'+') && reader.take(b'-');
        let mut exponent = Decimal { mantissa: Some(0), exponent: 0, negative: false };
        if !digits(reader, &mut exponent) {
            return Err(reader.error("Miss exponent in number."));
        }
        let value = exponent.mantissa.and_then(|value| i32::try_from(value).ok());
        let value = value.unwrap_or(i32::MAX);
        let value = if negative { value.saturating_neg() } else { value };
        decimal.exponent = decimal.exponent.saturating_add(value);
    }
    Ok(())
}

/// Returns the double nearest to the decimal between `start` and `reader`.
///
/// If the digits and the power of ten are both exact, a single operation rounds once and therefore
/// correctly. The standard library converts all other numbers.
fn double(
    start: &JsonReader<'_>,
    reader: &JsonReader<'_>,
    decimal: &Decimal,
) -> Result<Number, Status> {
    let power = usize::try_from(decimal.exponent.unsigned_abs())
        .ok()
        .and_then(|power| EXACT_POWERS.get(power));
    let mantissa = decimal.mantissa.filter(|mantissa| *mantissa <= EXACT_MANTISSA_MAX);
    let value = if let (Some(mantissa), Some(power)) = (mantissa, power) {
        let mantissa = mantissa as f64;
        let value = if decimal.exponent < 0 { mantissa / power } else { mantissa * power };
        if decimal.negative { -value } else { value }
    } else {
        let length = start.rest.len().saturating_sub(reader.rest.len());
        let digits = start.rest.get(..length).and_then(|text| std::str::from_utf8(text).ok());
        digits.and_then(|text| text.parse().ok()).ok_or_else(|| start.invalid_value())?
    };
    if value.is_finite() {
        Ok(Number::Double(value))
    } else {
        Err(start.error("Number too big to be stored in double."))
    }
}

/// Reads `NaN`, `Inf` and `Infinity`. They are not JSON, but Triton reads and writes
/// them.
fn non_finite(reader: &mut JsonReader<'_>, negative: bool) -> Result<Number, Status> {
    let value = if reader.rest.starts_with(b"N") {
        reader.expect_word(b"NaN")?;
        f64::NAN
    } else {
        reader.expect_word(b"Inf")?;
        if reader.rest.starts_with(b"i") {
            reader.expect_word(b"inity")?;
        }
        f64::INFINITY
    };
    Ok(Number::Double(if negative { -value } else { value }))
}
