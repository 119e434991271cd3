//! Formats JSON.

use super::JsonValue;

/// Appends a value without spaces and without escaping non-ASCII characters, as FastAPI does.
pub(crate) fn push_compact(text: &mut Vec<u8>, value: &JsonValue) {
    push_value(text, value, &Style { comma: b",", colon: b":", is_ascii: false });
}

/// Appends a value as Python's `json.dumps` does by default: with spaces, and in ASCII.
pub(crate) fn push_spaced(text: &mut Vec<u8>, value: &JsonValue) {
    push_value(text, value, &Style { comma: b", ", colon: b": ", is_ascii: true });
}

/// Appends a value without escaping non-ASCII characters, either with spaces or on lines that are
/// indented by `indent` spaces.
pub(crate) fn push_indented(text: &mut Vec<u8>, value: &JsonValue, indent: Option<usize>) {
    match indent {
        None => push_value(text, value, &Style { comma: b", ", colon: b": ", is_ascii: false }),
        Some(width) => push_lines(text, value, width, 0),
    }
}

fn push_lines(text: &mut Vec<u8>, value: &JsonValue, width: usize, margin: usize) {
    let inner = margin.saturating_add(width);
    let line = |text: &mut Vec<u8>, margin: usize| {
        text.push(b'\n');
        text.resize(text.len().saturating_add(margin), b' ');
    };
    let next = |text: &mut Vec<u8>, index: usize| {
        if index > 0 {
            text.push(b',');
        }
        line(text, inner);
    };
    match value {
        JsonValue::List(elements) if !elements.is_empty() => {
            text.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                next(text, index);
                push_lines(text, element, width, inner);
            }
            line(text, margin);
            text.push(b']');
        }
        JsonValue::Object(object) if object.iter().next().is_some() => {
            text.push(b'{');
            for (index, (name, member)) in object.iter().enumerate() {
                next(text, index);
                push_text(text, name, false);
                text.extend_from_slice(b": ");
                push_lines(text, member, width, inner);
            }
            line(text, margin);
            text.push(b'}');
        }
        _ => push_compact(text, value),
    }
}

/// Appends a string in quotation marks.
pub(crate) fn push_string(text: &mut Vec<u8>, string: &str) {
    push_text(text, string, false);
}

struct Style {
    comma: &'static [u8],
    colon: &'static [u8],
    is_ascii: bool,
}

/// The reader limits the depth of a value.
fn push_value(text: &mut Vec<u8>, value: &JsonValue, style: &Style) {
    match value {
        JsonValue::Null => text.extend_from_slice(b"null"),
        JsonValue::Bool(value) => text.extend_from_slice(if *value { b"true" } else { b"false" }),
        JsonValue::Int(number) => {
            text.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes())
        }
        JsonValue::BigInt(digits) => text.extend_from_slice(digits.as_bytes()),
        JsonValue::Float(number) => text.extend_from_slice(python_float(*number).as_bytes()),
        JsonValue::Text(string) => push_text(text, string, style.is_ascii),
        JsonValue::List(elements) => {
            text.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    text.extend_from_slice(style.comma);
                }
                push_value(text, element, style);
            }
            text.push(b']');
        }
        JsonValue::Object(object) => {
            text.push(b'{');
            for (index, (name, member)) in object.iter().enumerate() {
                if index > 0 {
                    text.extend_from_slice(style.comma);
                }
                push_text(text, name, style.is_ascii);
                text.extend_from_slice(style.colon);
                push_value(text, member, style);
            }
            text.push(b'}');
        }
    }
}

fn push_text(text: &mut Vec<u8>, string: &str, is_ascii: bool) {
    text.push(b'"');
    let mut start = 0;
    for (index, letter) in string.char_indices() {
        let is_plain = !matches!(letter, '"' | '\\' | '\0'..='\x1f');
        if is_plain && (!is_ascii || letter.is_ascii()) {
            continue;
        }
        text.extend_from_slice(string.get(start..index).unwrap_or_default().as_bytes());
        start = index.saturating_add(letter.len_utf8());
        push_escape(text, letter);
    }
    text.extend_from_slice(string.get(start..).unwrap_or_default().as_bytes());
    text.push(b'"');
}

fn push_escape(text: &mut Vec<u8>, letter: char) {
    let short: &[u8] = match letter {
        '"' => b"\\\"",
        '\\' => b"\\\\",
        '\n' => b"\\n",
        '\r' => b"\\r",
        '\t' => b"\\t",
        '\x08' => b"\\b",
        '\x0c' => b"\\f",
        _ => {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                text.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
            }
            return;
        }
    };
    text.extend_from_slice(short);
}

/// Returns a number in Python's notation.
pub(crate) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return String::from("NaN");
    }
    if number.is_infinite() {
        return String::from(if number > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_python() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.7, "0.7"),
            (1.0, "1.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(python_float(number), expected);
        }
    }

    #[test]
    fn strings_are_escaped_in_two_ways() {
        let string = JsonValue::text("a\"\\\n\u{1}\u{7f}é😀");
        let mut text = Vec::new();
        push_compact(&mut text, &string);
        assert_eq!(String::from_utf8(text).unwrap(), "\"a\\\"\\\\\\n\\u0001\u{7f}é😀\"");
        let mut text = Vec::new();
        push_spaced(&mut text, &string);
        let expected = "\"a\\\"\\\\\\n\\u0001\u{7f}\\u00e9\\ud83d\\ude00\"";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
