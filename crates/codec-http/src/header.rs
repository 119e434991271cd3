//! Parses the JSON length from a request's headers.

use galatea_infer::Status;

use galatea_codec::numbers::{IntegerParseError, leading_integer};

/// Parses the header `Inference-Header-Content-Length`, which states the length of the JSON at the
/// start of a body of `body_length` bytes.
///
/// # Errors
///
/// `InvalidArgument` unless the value starts with a whole number from 0 to the body's length.
pub fn parse_header_length(value: &[u8], body_length: usize) -> Result<usize, Status> {
    const NAME: &str = "Inference-Header-Content-Length";
    let length = match leading_integer(value).map(i32::try_from) {
        Ok(Ok(length)) => length,
        Err(IntegerParseError::Missing) => {
            return Err(Status::invalid_argument(format!(
                "Unable to parse {NAME}, got: {}",
                String::from_utf8_lossy(value)
            )));
        }
        Ok(Err(_)) | Err(IntegerParseError::TooLarge) => {
            return Err(Status::invalid_argument(format!(
                "Unable to parse {NAME}, value is out of range [ {}, {} ], got: {}",
                i32::MIN,
                i32::MAX,
                String::from_utf8_lossy(value)
            )));
        }
    };
    in_range(length, body_length, value)
}

/// Parses a content type that consists of `prefix` and the length of the JSON at the start of a
/// body of `body_length` bytes. Returns `None` for other content types.
///
/// # Errors
///
/// `InvalidArgument` if the content type doesn't begin with the prefix, or if no whole number from
/// 0 to the body's length follows it.
pub fn header_length_from_content_type(
    content_type: &[u8],
    prefix: &str,
    body_length: usize,
) -> Result<Option<usize>, Status> {
    let Some(value) = content_type.strip_prefix(prefix.as_bytes()) else {
        let mut parts = content_type.windows(prefix.len());
        if !parts.any(|part| part == prefix.as_bytes()) {
            return Ok(None);
        }
        return Err(Status::invalid_argument(format!(
            "expect MIME type for binary data starts with '{prefix}', got: {}",
            String::from_utf8_lossy(content_type)
        )));
    };
    let refused = |why: &str| {
        let printed = String::from_utf8_lossy(value);
        Status::invalid_argument(format!("Unable to parse inference header size, {why}: {printed}"))
    };
    let length = match leading_integer(value).map(i32::try_from) {
        Ok(Ok(length)) => length,
        Err(IntegerParseError::Missing) => return Err(refused("got")),
        Ok(Err(_)) | Err(IntegerParseError::TooLarge) => {
            return Err(refused("value is out of range, got"));
        }
    };
    in_range(length, body_length, value).map(Some)
}

fn in_range(length: i32, body_length: usize, value: &[u8]) -> Result<usize, Status> {
    usize::try_from(length).ok().filter(|length| *length <= body_length).ok_or_else(|| {
        let printed = String::from_utf8_lossy(value);
        Status::invalid_argument(format!(
            "inference header size should be in range (0, {body_length}), got: {printed}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "a/b;size=";

    fn check(content_type: &str, expected: Result<Option<usize>, &str>) {
        let parsed = header_length_from_content_type(content_type.as_bytes(), PREFIX, 10);
        let parsed = parsed.as_ref().map_err(Status::message).copied();
        assert_eq!(parsed, expected, "{content_type}");
    }

    #[test]
    fn a_content_type_may_end_in_a_length() {
        for other in ["", "a/b", "application/json", "A/B;size=3"] {
            check(other, Ok(None));
        }
        for (value, length) in [("0", 0), ("10", 10), (" +7", 7), ("5; charset=x", 5)] {
            check(&format!("{PREFIX}{value}"), Ok(Some(length)));
        }
    }

    #[test]
    fn mistakes_in_a_content_type_are_named() {
        let text = "Unable to parse inference header size, got: ";
        for value in ["", "x", "-", " "] {
            check(&format!("{PREFIX}{value}"), Err(&format!("{text}{value}")));
        }
        let text = "Unable to parse inference header size, value is out of range, got: ";
        for value in ["99999999999", "2147483648", "-2147483649", "99999999999999999999"] {
            check(&format!("{PREFIX}{value}"), Err(&format!("{text}{value}")));
        }
        let text = "inference header size should be in range (0, 10), got: ";
        for value in ["-1", "11", "2147483647"] {
            check(&format!("{PREFIX}{value}"), Err(&format!("{text}{value}")));
        }
        let text = "expect MIME type for binary data starts with 'a/b;size=', got: xa/b;size=3";
        check("xa/b;size=3", Err(text));
    }
}
