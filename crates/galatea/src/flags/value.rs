//! Reads the values of flags.

use std::fmt::Display;
use std::str::FromStr;

use galatea_codec::forward::HeaderForward;
use galatea_gate::access::{RuleError, Rules};

/// Why a flag's value is refused; the caller adds the flag's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) String);

impl Refusal {
    /// The value asks for something that this server can't do yet.
    pub(super) fn unsupported(what: impl Display) -> Self {
        Self(format!("{what} is not supported yet"))
    }
}

/// `true`, `on` or `1`; `false`, `off` or `0`; in any case.
pub(super) fn boolean(value: &str) -> Result<bool, Refusal> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(Refusal(format!("invalid value for bool option: {value}"))),
    }
}

/// A number in the range of its type.
pub(super) fn number<T: FromStr>(value: &str) -> Result<T, Refusal> {
    value.parse().map_err(|_| {
        let digits = value.strip_prefix('-').unwrap_or(value);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        Refusal(if is_number {
            format!("Provided option value is out of bound. Got {value}")
        } else {
            format!("Invalid option value. Got {value}")
        })
    })
}

/// A size in bytes: a number, in units of 1024 bytes with `K`, of 1024 of these with `M`,
/// and so on with `G` and `T`.
pub(super) fn byte_size(value: &str) -> Result<usize, Refusal> {
    let (digits, shift) = match value.as_bytes().last() {
        Some(b'K' | b'k') => (&value[..value.len() - 1], 10),
        Some(b'M' | b'm') => (&value[..value.len() - 1], 20),
        Some(b'G' | b'g') => (&value[..value.len() - 1], 30),
        Some(b'T' | b't') => (&value[..value.len() - 1], 40),
        _ => (value, 0),
    };
    let count: usize = number(digits).map_err(|_| {
        Refusal(format!("expected a number of bytes, such as 1000, 512M or 16G. Got {value}"))
    })?;
    count
        .checked_mul(1 << shift)
        .ok_or_else(|| Refusal(format!("Provided option value is out of bound. Got {value}")))
}

/// A number. Triton takes a negative one as 0.
pub(super) fn not_negative(value: &str) -> Result<u32, Refusal> {
    let number: i64 = number(value)?;
    u32::try_from(number.max(0))
        .map_err(|_| Refusal(format!("Provided option value is out of bound. Got {value}")))
}

/// Two parts with a separator between them, neither of them empty.
pub(super) fn pair<'a>(
    value: &'a str,
    separator: char,
    shape: &str,
) -> Result<(&'a str, &'a str), Refusal> {
    match value.split_once(separator) {
        Some((first, second)) if !first.is_empty() && !second.is_empty() => Ok((first, second)),
        _ => Err(Refusal(format!("the format is {shape}. Got {value}"))),
    }
}

/// A pattern for names of headers; empty is none.
pub(super) fn header_pattern(value: &str) -> Result<Option<HeaderForward>, Refusal> {
    if value.is_empty() {
        return Ok(None);
    }
    HeaderForward::new(value)
        .map(Some)
        .map_err(|error| Refusal(format!("not a regular expression: {error}")))
}

/// Adds the rules of a group to those of a protocol, in which categories are called `noun`.
/// The texts are Triton's.
pub(super) fn restriction(
    rules: &mut Rules,
    group: &str,
    prefix: &str,
    flag: &str,
    noun: &str,
) -> Result<(), Refusal> {
    rules.add(group, prefix).map_err(|error| {
        Refusal(match error {
            RuleError::Malformed => format!(
                "--{flag} option format is '<config name>:<setting>=<value>'. Got {group}\n"
            ),
            RuleError::Unknown { name } => format!("unknown restricted {noun} '{name}' \n"),
            RuleError::Repeated { category } => format!(
                "restricted {noun} '{category}' can not be specified in multiple config groups\n"
            ),
        })
    })
}

/// Takes a boolean that must be false, because `what` isn't there.
pub(super) fn must_be_false(value: &str, what: &str) -> Result<(), Refusal> {
    if boolean(value)? { Err(Refusal::unsupported(what)) } else { Ok(()) }
}

/// Takes a number that must be the default, because `what` can't be changed.
pub(super) fn must_be<T: FromStr + PartialEq + Display>(
    value: &str,
    default: &T,
    what: &str,
) -> Result<(), Refusal> {
    if number::<T>(value)? == *default {
        Ok(())
    } else {
        Err(Refusal::unsupported(format_args!("{what} other than {default}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_have_six_spellings_in_any_case() {
        for (words, expected) in [(["true", "On", "1"], true), (["FALSE", "off", "0"], false)] {
            for word in words {
                assert_eq!(boolean(word), Ok(expected));
            }
        }
        for word in ["", "yes", "2", " true"] {
            assert_eq!(
                boolean(word),
                Err(Refusal(format!("invalid value for bool option: {word}")))
            );
        }
    }

    #[test]
    fn numbers_are_whole_and_in_range() {
        assert_eq!(number::<u16>("8000"), Ok(8000));
        let invalid = |value: &str| Err(Refusal(format!("Invalid option value. Got {value}")));
        let out = |value: &str| {
            Err(Refusal(format!("Provided option value is out of bound. Got {value}")))
        };
        for value in ["", "-", "1.5", "80a", "0x10", " 1"] {
            assert_eq!(number::<u16>(value), invalid(value));
        }
        for value in ["65536", "-1", "99999999999999999999"] {
            assert_eq!(number::<u16>(value), out(value));
        }
        assert_eq!(not_negative("-5"), Ok(0));
        assert!(not_negative("4294967296").is_err());
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
