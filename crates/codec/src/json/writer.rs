//! Writes JSON in RapidJSON's format.

use super::double;
use super::plain::unescaped_prefix_length;

/// Appends a whole number.
pub fn push_json_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a whole number.
pub fn push_json_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends an array of `items`.
pub fn push_json_array<T>(json: &mut Vec<u8>, items: &[T], mut push: impl FnMut(&mut Vec<u8>, &T)) {
    json.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        push(json, item);
    }
    json.push(b']');
}

/// Appends a double with a point or an exponent, or as `NaN` or `Infinity`.
pub fn push_json_f64(out: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        out.extend_from_slice(b"NaN");
    } else if value.is_infinite() {
        out.extend_from_slice(if value < 0.0 { b"-Infinity" } else { b"Infinity" });
    } else {
        double::push_finite(out, value);
    }
}

/// Appends a string between quotation marks. Bytes above 0x7f are not escaped.
pub fn push_json_string(out: &mut Vec<u8>, mut text: &[u8]) {
    out.push(b'"');
    loop {
        let (plain, rest) =
            text.split_at_checked(unescaped_prefix_length(text)).unwrap_or((text, &[]));
        out.extend_from_slice(plain);
        let [byte, after @ ..] = rest else { break };
        push_escape(out, *byte);
        text = after;
    }
    out.push(b'"');
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            out.extend_from_slice(b"\\u00");
            out.push(hex_digit(byte >> 4));
            out.push(hex_digit(byte & 0x0f));
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn hex_digit(value: u8) -> u8 {
    b"0123456789ABCDEF".get(usize::from(value)).copied().unwrap_or(b'0')
}
