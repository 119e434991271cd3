//! Parses string and number tokens.

/// A number as written, not yet typed.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Number {
    /// A number that consists only of digits.
    Integer {
        /// The value, without its sign; `None` if it overflows.
        magnitude: Option<u64>,
        /// True if the number is hexadecimal or octal.
        based: bool,
    },
    /// A number with a point, an exponent or the suffix `f`.
    Float(f64),
}

/// Parses a number token; `None` if it isn't a number.
pub(super) fn number(text: &str) -> Option<Number> {
    let based = |digits: &str, radix: u32| {
        let valid = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        valid.then(|| Number::Integer {
            magnitude: u64::from_str_radix(digits, radix).ok(),
            based: true,
        })
    };
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return based(digits, 16);
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1
            && let Some(digits) = text.strip_prefix('0')
        {
            return based(digits, 8);
        }
        return Some(Number::Integer { magnitude: text.parse().ok(), based: false });
    }
    float(text).map(Number::Float)
}

fn float(text: &str) -> Option<f64> {
    let digits = text.strip_suffix(['f', 'F']).unwrap_or(text);
    let allowed = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
    // Rust also parses "inf" and "nan", which are names here.
    if digits.bytes().all(allowed) { digits.parse().ok() } else { None }
}

/// An error in a string and its byte offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StringError {
    pub(super) message: String,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// Parses a string token, including its quotes.
pub(super) fn string(token: &str) -> Result<Vec<u8>, StringError> {
    let quote = token.chars().next().unwrap_or('"');
    let inner = token.strip_prefix(quote).unwrap_or(token);
    // An unterminated string has already been reported.
    let inner = inner.strip_suffix(quote).unwrap_or(inner);
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        bytes.extend_from_slice(plain.as_bytes());
        let offset = token.len() - quote.len_utf8() - escape.len();
        let used = unescape(escape, &mut bytes).map_err(|(message, length)| StringError {
            message,
            offset,
            length,
        })?;
        rest = escape.get(used..).unwrap_or("");
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

type EscapeError = (String, usize);

/// Appends the bytes of the escape at the start of `text` and returns its length.
fn unescape(text: &str, bytes: &mut Vec<u8>) -> Result<usize, EscapeError> {
    let Some(kind) = text.chars().nth(1) else {
        return Err(("the string ends in the middle of an escape".to_owned(), 1));
    };
    let plain = match kind {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' => b'\\',
        '\'' => b'\'',
        '"' => b'"',
        '?' => b'?',
        '0'..='7' => return octal(text, bytes),
        'x' | 'X' => return hexadecimal(text, bytes),
        'u' => return unicode(text, 4, bytes),
        'U' => return unicode(text, 8, bytes),
        other => {
            let shown = other.escape_debug();
            return Err((format!("there is no escape '\\{shown}'"), 1 + other.len_utf8()));
        }
    };
    bytes.push(plain);
    Ok(2)
}

fn digits(text: &str, start: usize, most: usize, radix: u32) -> &str {
    let rest = text.get(start..).unwrap_or("");
    let length = rest.chars().take(most).take_while(|c| c.is_digit(radix)).count();
    rest.get(..length).unwrap_or("")
}

fn octal(text: &str, bytes: &mut Vec<u8>) -> Result<usize, EscapeError> {
    let digits = digits(text, 1, 3, 8);
    let length = digits.len() + 1;
    let byte = u8::from_str_radix(digits, 8)
        .map_err(|_| (format!("'\\{digits}' is more than a byte"), length))?;
    bytes.push(byte);
    Ok(length)
}

fn hexadecimal(text: &str, bytes: &mut Vec<u8>) -> Result<usize, EscapeError> {
    let digits = digits(text, 2, 2, 16);
    let byte = u8::from_str_radix(digits, 16)
        .map_err(|_| ("'\\x' needs one or two hexadecimal digits".to_owned(), 2))?;
    bytes.push(byte);
    Ok(digits.len() + 2)
}

fn unicode(text: &str, count: usize, bytes: &mut Vec<u8>) -> Result<usize, EscapeError> {
    let length = count + 2;
    let first = code_point(text, count)?;
    if !(0xd800..0xdc00).contains(&first) {
        push_character(first, length, bytes)?;
        return Ok(length);
    }
    // The other half of a surrogate pair must follow.
    let lone = || ("half of a surrogate pair is not a character".to_owned(), length);
    let rest = text.get(length..).filter(|rest| rest.starts_with("\\u")).ok_or_else(lone)?;
    let second = code_point(rest, 4).map_err(|_| lone())?;
    if !(0xdc00..0xe000).contains(&second) {
        return Err(lone());
    }
    let character = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    push_character(character, length, bytes)?;
    Ok(length + 6)
}

fn code_point(text: &str, count: usize) -> Result<u32, EscapeError> {
    let digits = digits(text, 2, count, 16);
    let needs = || (format!("this escape needs {count} hexadecimal digits"), 2 + digits.len());
    if digits.len() != count {
        return Err(needs());
    }
    u32::from_str_radix(digits, 16).map_err(|_| needs())
}

fn push_character(point: u32, length: usize, bytes: &mut Vec<u8>) -> Result<(), EscapeError> {
    let character = char::from_u32(point)
        .ok_or_else(|| (format!("{point:#x} is not a Unicode character"), length))?;
    let mut buffer = [0; 4];
    bytes.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: &str, expected: &[u8]) {
        assert_eq!(string(token).as_deref(), Ok(expected), "{token}");
    }

    fn check_error(token: &str, offset: usize, length: usize, text: &str) {
        let error = string(token).unwrap_err();
        assert_eq!((error.offset, error.length), (offset, length), "{token}: {}", error.message);
        assert!(error.message.contains(text), "{token}: {}", error.message);
    }

    #[test]
    fn escapes_are_decoded() {
        check(r#""""#, b"");
        check(r#""a\n\t\r\a\b\f\v\\\'\"\?z""#, b"a\n\t\r\x07\x08\x0c\x0b\\'\"?z");
        check(r"'\0\7\101\1234'", b"\0\x07AS4");
        check(r"'\x41\X4a\x4G'", b"AJ\x04G");
        check(r"'\u00e4\U0001F600\ud83d\ude00'", "ä😀😀".as_bytes());
        check("'ä'", "ä".as_bytes());
        check(r#"'"'"#, b"\"");
    }

    #[test]
    fn invalid_escapes_have_a_position() {
        check_error(r"'ab\q'", 3, 2, r"no escape '\q'");
        check_error(r"'\400'", 1, 4, "more than a byte");
        check_error(r"'\x'", 1, 2, "one or two");
        check_error(r"'\u12'", 1, 4, "4 hexadecimal");
        check_error(r"'\U00110000'", 1, 10, "not a Unicode character");
        check_error(r"'\ud83d'", 1, 6, "surrogate");
        check_error(r"'\ud83d\u0041'", 1, 6, "surrogate");
        check_error(r"'\udc00'", 1, 6, "not a Unicode character");
    }

    #[test]
    fn numbers_are_parsed() {
        let integer =
            |magnitude| Some(Number::Integer { magnitude: Some(magnitude), based: false });
        let based = |magnitude| Some(Number::Integer { magnitude: Some(magnitude), based: true });
        assert_eq!(number("0"), integer(0));
        assert_eq!(number("18446744073709551615"), integer(u64::MAX));
        assert_eq!(
            number("18446744073709551616"),
            Some(Number::Integer { magnitude: None, based: false })
        );
        assert_eq!(number("0x1F"), based(31));
        assert_eq!(number("017"), based(15));
        assert_eq!(number("1.5e3f"), Some(Number::Float(1500.0)));
        assert_eq!(number(".5"), Some(Number::Float(0.5)));
        assert_eq!(number("1f"), Some(Number::Float(1.0)));
        for wrong in ["08", "0x", "0xg", "1.2.3", "12abc", "1e", "1_000", "1ff"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
