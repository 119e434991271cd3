//! Parses flag values.

use std::str::FromStr;

use galatea_codec::forward::HeaderForwardPattern;
use galatea_gate::access::{AccessRuleError, AccessRules};

use super::Settings;

/// The reason why a flag's value is refused; the caller adds the flag's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidValue(pub(super) String);

/// Parses `true`, `on` or `1`, or `false`, `off` or `0`, ignoring case.
pub(super) fn boolean(value: &str) -> Result<bool, InvalidValue> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(InvalidValue(format!("invalid value for bool option: {value}"))),
    }
}

/// Parses an integer in the range of its type. As in Triton, anything after the digits is ignored.
pub(super) fn number<T: FromStr>(value: &str) -> Result<T, InvalidValue> {
    let text = value.trim_ascii_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let digits = &digits[..end];
    if digits.is_empty() {
        return Err(InvalidValue(format!("Invalid option value. Got {value}")));
    }
    format!("{sign}{digits}").parse().map_err(|_| out_of_bound(value))
}

/// The error for a number that its type can't represent.
pub(super) fn out_of_bound(value: &str) -> InvalidValue {
    InvalidValue(format!("Provided option value is out of bound. Got {value}"))
}

/// Parses a port. For a number that isn't a valid port, this function uses the low 16 bits, as
/// Triton does.
pub(super) fn port(settings: &mut Settings, flag: &str, value: &str) -> Result<u16, InvalidValue> {
    let number: i32 = number(value)?;
    let [low, high, ..] = number.to_le_bytes();
    let port = u16::from_le_bytes([low, high]);
    if i32::from(port) != number {
        settings.add_remark(format!("'--{flag}={number}' is no port: the port is {port}"));
    }
    Ok(port)
}

/// Parses a number that may have a fraction. Anything after it is ignored.
pub(super) fn fraction(value: &str) -> Result<f64, InvalidValue> {
    let text = value.trim_ascii_start();
    let ends = text.char_indices().map(|(start, letter)| start + letter.len_utf8()).rev();
    let mut numbers = ends.filter_map(|end| text[..end].parse::<f64>().ok());
    numbers.next().ok_or_else(|| InvalidValue(format!("Invalid option value. Got {value}")))
}

/// Parses a size in bytes: a number with an optional unit `K` (1024 bytes), `M` (1024 `K`), `G` or
/// `T`.
pub(super) fn byte_size(value: &str) -> Result<usize, InvalidValue> {
    let (digits, shift) = match value.as_bytes().last() {
        Some(b'K' | b'k') => (&value[..value.len() - 1], 10),
        Some(b'M' | b'm') => (&value[..value.len() - 1], 20),
        Some(b'G' | b'g') => (&value[..value.len() - 1], 30),
        Some(b'T' | b't') => (&value[..value.len() - 1], 40),
        _ => (value, 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: usize = digits.parse().ok().filter(|_| is_number).ok_or_else(|| {
        InvalidValue(format!("expected a number of bytes, such as 1000, 512M or 16G. Got {value}"))
    })?;
    count.checked_mul(1 << shift).ok_or_else(|| out_of_bound(value))
}

/// Parses a number. As in Triton, a negative number counts as 0.
pub(super) fn not_negative(value: &str) -> Result<u32, InvalidValue> {
    let number: i64 = number(value)?;
    u32::try_from(number.max(0)).map_err(|_| out_of_bound(value))
}

/// Splits a value at a separator into two non-empty parts.
pub(super) fn pair<'a>(
    value: &'a str,
    separator: char,
    shape: &str,
) -> Result<(&'a str, &'a str), InvalidValue> {
    match value.split_once(separator) {
        Some((first, second)) if !first.is_empty() && !second.is_empty() => Ok((first, second)),
        _ => Err(InvalidValue(format!("the format is {shape}. Got {value}"))),
    }
}

/// Splits `NAME,SETTING=VALUE` into its parts, if none of them is empty.
pub(super) fn setting(value: &str) -> Option<[&str; 3]> {
    let (name, rest) = value.split_once(',')?;
    let (setting, value) = rest.split_once('=')?;
    let parts = [name, setting, value];
    parts.iter().all(|part| !part.is_empty()).then_some(parts)
}

/// Splits a value at a separator into two parts, either of which may be empty.
pub(super) fn numbers(value: &str, separator: char) -> Result<(&str, &str), InvalidValue> {
    value.split_once(separator).ok_or_else(|| {
        InvalidValue(format!(
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument \
             requires format <first>{separator}<second>. Found: {value}"
        ))
    })
}

/// Parses a pattern for header names; an empty value means no pattern.
pub(super) fn header_pattern(value: &str) -> Result<Option<HeaderForwardPattern>, InvalidValue> {
    if value.is_empty() {
        return Ok(None);
    }
    HeaderForwardPattern::new(value)
        .map(Some)
        .map_err(|error| InvalidValue(format!("not a regular expression: {error}")))
}

/// Adds a group's rules to those of a protocol, which calls categories `noun`. The messages are
/// Triton's.
pub(super) fn restriction(
    rules: &mut AccessRules,
    group: &str,
    prefix: &str,
    flag: &str,
    noun: &str,
) -> Result<(), InvalidValue> {
    rules.add(group, prefix).map_err(|error| {
        InvalidValue(match error {
            AccessRuleError::Malformed => format!(
                "--{flag} option format is '<config name>:<setting>=<value>'. Got {group}\n"
            ),
            AccessRuleError::Unknown { name } => format!("unknown restricted {noun} '{name}' \n"),
            AccessRuleError::Repeated { category } => format!(
                "restricted {noun} '{category}' can not be specified in multiple config groups\n"
            ),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // row: CLI-01
    fn booleans_have_six_spellings_in_any_case() {
        for (words, expected) in [(["true", "On", "1"], true), (["FALSE", "off", "0"], false)] {
            for word in words {
                assert_eq!(boolean(word), Ok(expected));
            }
        }
        for word in ["", "yes", "2", " true"] {
            assert_eq!(
                boolean(word),
                Err(InvalidValue(format!("invalid value for bool option: {word}")))
            );
        }
    }

    #[test]
    fn numbers_end_behind_their_digits_and_are_in_range() {
        for (value, expected) in [("8000", 8000), ("80a", 80), (" +7.5", 7), ("0x10", 0)] {
            assert_eq!(number::<u16>(value), Ok(expected), "{value}");
        }
        let invalid = |value: &str| Err(InvalidValue(format!("Invalid option value. Got {value}")));
        let out = |value: &str| {
            Err(InvalidValue(format!("Provided option value is out of bound. Got {value}")))
        };
        for value in ["", "-", "x1", " ", "--1"] {
            assert_eq!(number::<u16>(value), invalid(value));
        }
        for value in ["65536", "-1", "99999999999999999999x"] {
            assert_eq!(number::<u16>(value), out(value));
        }
        assert_eq!(not_negative("-5x"), Ok(0));
        assert!(not_negative("4294967296").is_err());
    }

    #[test]
    fn ports_have_sixteen_bits() {
        for (value, expected, notes) in [("80x", 80, 0), ("70000", 4464, 1), ("-5", 65531, 1)] {
            let mut settings = Settings::default();
            assert_eq!(port(&mut settings, "p", value), Ok(expected));
            assert_eq!(settings.notes.len(), notes, "{value}");
        }
    }

    #[test]
    fn fractions_end_behind_their_digits() {
        for (value, expected) in [("0.5", 0.5), ("6x", 6.0), (" -1e", -1.0)] {
            assert_eq!(fraction(value), Ok(expected), "{value}");
        }
        assert!(fraction("x").is_err());
    }

    #[test]
    fn sizes_have_units() {
        for (value, bytes) in [
            ("0", 0),
            ("70", 70),
            ("3K", 3072),
            ("256M", 1 << 28),
            ("2g", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(byte_size(value), Ok(bytes), "{value}");
        }
        for value in ["", "K", "-1M", "1.5G", "1KB", "1 M", "ü", "99999999T"] {
            assert!(byte_size(value).is_err(), "{value}");
        }
    }

    #[test]
    fn pairs_have_two_parts() {
        assert_eq!(pair("a=b=c", '=', "x"), Ok(("a", "b=c")));
        for value in ["", "a", "=b", "a="] {
            assert!(pair(value, '=', "x").is_err(), "{value}");
        }
    }
}
