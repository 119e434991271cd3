//! The values of trace settings, which are strings in both protocols.
//!
//! As in Triton, a number is the longest numeric prefix of a string, within the range of an `int`.

use galatea_control::TraceLevels;
use galatea_gate::text::format_bounded;
use galatea_infer::Status;

/// The maximum length of a value that an error repeats, in bytes.
const SHOWN_BYTES_MAX: usize = 1024;

/// Parses `trace_rate` or another unsigned field. Negative values wrap around.
pub fn parse_unsigned_field(field: &str, value: &str) -> Result<u32, Status> {
    number(field, value, 0, i64::from(u32::MAX)).map(i32::cast_unsigned)
}

/// Parses `trace_count`. The protocols differ in the text before the value in an error.
pub fn parse_trace_count(value: &str, before_value: &str) -> Result<i32, Status> {
    let count = number("trace_count", value, -1, i64::from(i32::MAX))?;
    if count < -1 {
        return Err(Status::invalid_argument(format!(
            "Unable to parse 'trace_count'. Expecting value >= -1, got:{before_value}{}",
            shown(value)
        )));
    }
    Ok(count)
}

fn number(field: &str, value: &str, min: i64, max: i64) -> Result<i32, Status> {
    let is_space = |character| matches!(character, ' ' | '\t'..='\r');
    let rest = value.trim_start_matches(is_space);
    let unsigned = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(Status::invalid_argument(format!(
            "Unable to parse '{field}', got: {}",
            shown(value)
        )));
    }
    let end = rest.len().saturating_sub(unsigned.len()).saturating_add(digits);
    let text = rest.get(..end).unwrap_or_default();
    text.parse().map_err(|_| {
        Status::invalid_argument(format!(
            "Unable to parse '{field}', value is out of range [ {min}, {max} ], got: {}",
            shown(value)
        ))
    })
}

fn shown(value: &str) -> impl std::fmt::Display {
    format_bounded(value, SHOWN_BYTES_MAX)
}

/// Adds a level to the preceding ones in a list of `length`. As in Triton, unknown levels change
/// nothing. If no level is known, `levels` stays `None`.
pub fn add_trace_level(
    levels: &mut Option<TraceLevels>,
    name: &str,
    length: usize,
) -> Result<(), Status> {
    let known = levels.unwrap_or_default();
    *levels = match name {
        "OFF" if length == 1 => Some(TraceLevels::default()),
        "OFF" => {
            let text = "Expect only one trace level 'OFF' is specified";
            return Err(Status::invalid_argument(text));
        }
        "TIMESTAMPS" => Some(TraceLevels { timestamps: true, ..known }),
        "TENSORS" => Some(TraceLevels { tensors: true, ..known }),
        _ => return Ok(()),
    };
    Ok(())
}

/// The error for an attempt to change the file.
pub fn fixed_trace_file_error() -> Status {
    Status::unsupported("trace file location can not be updated through network protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, expected) in [
            ("5", 5),
            (" \t5x", 5),
            ("+7", 7),
            ("0x10", 0),
            ("-1", u32::MAX),
            ("2147483647", i32::MAX.cast_unsigned()),
        ] {
            assert_eq!(parse_unsigned_field("f", text), Ok(expected), "{text}");
        }
        for text in ["", " ", "x", "-", "+-1", "--1", "\u{e9}1"] {
            let error = parse_unsigned_field("f", text).unwrap_err();
            assert_eq!(error.message(), format!("Unable to parse 'f', got: {text}"));
        }
        let error = parse_unsigned_field("f", "2147483648").unwrap_err();
        let range = "value is out of range [ 0, 4294967295 ], got: 2147483648";
        assert_eq!(error.message(), format!("Unable to parse 'f', {range}"));
    }

    #[test]
    fn counts_are_at_least_minus_one() {
        assert_eq!(parse_trace_count("-1", ""), Ok(-1));
        let error = parse_trace_count("-2", " ").unwrap_err();
        let text = "Unable to parse 'trace_count'. Expecting value >= -1, got: -2";
        assert_eq!(error.message(), text);
        let error = parse_trace_count("-9999999999", "").unwrap_err();
        let range = "value is out of range [ -1, 2147483647 ], got: -9999999999";
        assert_eq!(error.message(), format!("Unable to parse 'trace_count', {range}"));
    }

    #[test]
    fn long_values_are_not_repeated_as_a_whole() {
        let error = parse_unsigned_field("f", &"x".repeat(1 << 20)).unwrap_err();
        assert!(error.message().len() < 2048);
    }
}
