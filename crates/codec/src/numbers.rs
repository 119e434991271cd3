//! Numbers in text, parsed as in the C library: after whitespace, and up to the first character
//! that is not a digit. Triton parses versions and lengths in this way.

use galatea_infer::Status;

/// The reason why a text has no valid number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum IntegerParseError {
    /// The text does not start with a digit.
    Missing,
    /// The number has more than 64 bits.
    TooLarge,
}

/// Parses the number at the start of a text.
pub fn leading_integer(text: &[u8]) -> Result<i64, IntegerParseError> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r');
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let text = text.get(start..).unwrap_or_default();
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return Err(IntegerParseError::Missing);
    }
    let digits = digits.iter().take(count).map(|byte| i64::from(byte & 0x0f));
    let number = digits.into_iter().try_fold(0_i64, |number, digit| {
        let number = number.checked_mul(10)?;
        if is_negative { number.checked_sub(digit) } else { number.checked_add(digit) }
    });
    number.ok_or(IntegerParseError::TooLarge)
}

/// Parses a model version. An empty text selects the newest version.
///
/// # Errors
///
/// `InvalidArgument` unless the text starts with a number that fits and is not negative.
pub fn parse_version(text: &str) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    match leading_integer(text.as_bytes()) {
        Ok(version) if version >= 0 => Ok(Some(version)),
        Ok(_) => Err(Status::invalid_argument(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0"
        ))),
        // Triton's message names the C function `stol`.
        Err(IntegerParseError::Missing | IntegerParseError::TooLarge) => {
            Err(Status::invalid_argument(format!(
                "failed to get model version from specified version string '{text}' (details: stol), \
             version should be an integral value > 0"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_in_c() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("007", Ok(7)),
            (" \t\n\x0b\x0c\r+12", Ok(12)),
            ("-5", Ok(-5)),
            ("1x", Ok(1)),
            ("1.9", Ok(1)),
            ("0x10", Ok(0)),
            ("9223372036854775807", Ok(i64::MAX)),
            ("-9223372036854775808", Ok(i64::MIN)),
            ("9223372036854775808", Err(IntegerParseError::TooLarge)),
            ("-9223372036854775809", Err(IntegerParseError::TooLarge)),
            ("", Err(IntegerParseError::Missing)),
            ("x1", Err(IntegerParseError::Missing)),
            ("- 1", Err(IntegerParseError::Missing)),
            ("+-1", Err(IntegerParseError::Missing)),
            ("\u{663}", Err(IntegerParseError::Missing)),
        ] {
            assert_eq!(leading_integer(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn versions_are_not_negative() {
        assert_eq!(parse_version(""), Ok(None));
        assert_eq!(parse_version("3"), Ok(Some(3)));
        assert_eq!(parse_version("1.0"), Ok(Some(1)));
        assert_eq!(
            parse_version("-1").unwrap_err().message(),
            "invalid model version specified '-1' , version should be an integral value > 0"
        );
        for text in ["x", "99999999999999999999"] {
            let expected = format!(
                "failed to get model version from specified version string '{text}' (details: \
                 stol), version should be an integral value > 0"
            );
            assert_eq!(parse_version(text).unwrap_err().message(), expected);
        }
    }
}
