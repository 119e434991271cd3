//! Parses a configuration's parameters and a backend's settings.

use std::collections::BTreeMap;

use galatea_config::DEFAULT_MAX_BATCH_SIZE;
use galatea_infer::Status;

use crate::switch::OnOff;

/// The integer parameter `key`, if present.
///
/// # Errors
///
/// `InvalidArgument`, in Triton's words, if the value isn't an integer.
pub fn integer_parameter(
    values: &BTreeMap<String, String>,
    key: &str,
) -> Result<Option<i32>, Status> {
    let Some(text) = values.get(key) else { return Ok(None) };
    match leading_number(text).map(str::parse) {
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) | None => Err(parameter_conversion_error(key, text, "integral number")),
    }
}

/// The boolean parameter `key`, if present.
///
/// # Errors
///
/// `InvalidArgument`, in Triton's words, if the value isn't a boolean.
pub fn bool_parameter(
    values: &BTreeMap<String, String>,
    key: &str,
) -> Result<Option<OnOff>, Status> {
    values.get(key).map(|text| parse_bool_parameter(key, text)).transpose()
}

/// Parses a boolean in any form that Triton accepts.
///
/// # Errors
///
/// `InvalidArgument`, in Triton's words, for any other value.
pub fn parse_bool_parameter(key: &str, text: &str) -> Result<OnOff, Status> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" => Ok(OnOff::On),
        "0" | "false" | "off" => Ok(OnOff::Off),
        _ => Err(parameter_conversion_error(key, text, "boolean")),
    }
}

/// The number at the start of the string, as `std::stoi` reads it: leading whitespace and anything
/// after the number are ignored.
#[must_use]
pub fn leading_number(text: &str) -> Option<&str> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text.bytes().skip(sign).take_while(u8::is_ascii_digit).count();
    if digits == 0 { None } else { text.get(..sign + digits) }
}

/// Triton's error text for the value, followed by the parameter that contains it.
#[must_use]
pub fn parameter_conversion_error(key: &str, text: &str, to: &str) -> Status {
    Status::invalid_argument(format!("failed to convert '{text}' to {to}: parameter '{key}'"))
}

/// The batch size for completed configurations, from the backend's command-line settings
/// (`default-max-batch-size`).
///
/// # Errors
///
/// `InvalidArgument` if the value isn't a valid batch size.
pub fn default_max_batch_size(settings: &BTreeMap<String, String>) -> Result<i32, Status> {
    const KEY: &str = "default-max-batch-size";
    match integer_parameter(settings, KEY)? {
        None => Ok(i32::try_from(DEFAULT_MAX_BATCH_SIZE).unwrap_or(i32::MAX)),
        Some(size) if size >= 0 => Ok(size),
        Some(size) => Err(invalid_value_error(KEY, &size.to_string(), "a batch size")),
    }
}

/// The error for a value that the library would refuse later.
#[must_use]
pub fn invalid_value_error(key: &str, text: &str, expected: &str) -> Status {
    Status::invalid_argument(format!("'{key}' is '{text}', which is not {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_triton_reads_them() {
        let number = |text: &str| {
            let values = BTreeMap::from([(String::from("k"), text.to_owned())]);
            integer_parameter(&values, "k").map_err(|status| status.message().to_owned())
        };
        for (text, expected) in [("7", 7), (" -2", -2), ("+3x", 3), ("4.9", 4)] {
            assert_eq!(number(text), Ok(Some(expected)), "{text}");
        }
        for text in ["", "x", "-", "- 1", "2147483648"] {
            let expected = format!("failed to convert '{text}' to integral number: parameter 'k'");
            assert_eq!(number(text), Err(expected));
        }
    }

    #[test]
    fn booleans_are_read_as_triton_reads_them() {
        let value =
            |text| parse_bool_parameter("k", text).map_err(|status| status.message().to_owned());
        for text in ["1", "true", "TRUE", "On"] {
            assert_eq!(value(text), Ok(OnOff::On), "{text}");
        }
        for text in ["0", "False", "off"] {
            assert_eq!(value(text), Ok(OnOff::Off), "{text}");
        }
        for text in ["", "yes", " 1", "2"] {
            let expected = format!("failed to convert '{text}' to boolean: parameter 'k'");
            assert_eq!(value(text), Err(expected));
        }
    }
}
