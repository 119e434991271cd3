//! JSON with XGBoost's extensions: the numbers `NaN`, `Infinity` and `-Infinity`. JSON libraries
//! refuse them, so this crate has its own parser.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::ReadError;
use crate::value::{ArrayBuilder, DEPTH_MAX, Value};

/// Reads a document.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, ReadError> {
    let mut reader = JsonText { bytes, rest: bytes };
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.rest.is_empty() { Ok(value) } else { Err(reader.error("text after the end")) }
}

struct JsonText<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
}

impl<'a> JsonText<'a> {
    fn error(&self, what: &str) -> ReadError {
        let offset = self.bytes.len().saturating_sub(self.rest.len());
        ReadError::malformed(format!("invalid JSON at byte {offset}: {what}"))
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    /// Skips whitespace and consumes the next byte if it equals `byte`.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(&[byte]) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take_word(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word.as_bytes()) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, ReadError> {
        if depth > DEPTH_MAX {
            return Err(self.error("nested too deeply"));
        }
        self.skip_space();
        match self.rest.first() {
            Some(b'{') => self.map(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::Text(self.text()?)),
            Some(b't') if self.take_word("true") => Ok(Value::Bool(true)),
            Some(b'f') if self.take_word("false") => Ok(Value::Bool(false)),
            Some(b'n') if self.take_word("null") => Ok(Value::Null),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => self.number(),
            Some(_) => Err(self.error("expected a value")),
            None => Err(self.error("the file ends within the document")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, ReadError> {
        self.take(b'{');
        let mut entries = Vec::new();
        if self.take(b'}') {
            return Ok(Value::Map(entries));
        }
        loop {
            self.skip_space();
            let key = self.text()?;
            if !self.take(b':') {
                return Err(self.error("expected ':'"));
            }
            entries.push((key, self.value(depth.saturating_add(1))?));
            if self.take(b'}') {
                entries.shrink_to_fit();
                return Ok(Value::Map(entries));
            }
            if !self.take(b',') {
                return Err(self.error("expected ',' or '}'"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, ReadError> {
        self.take(b'[');
        let mut array = ArrayBuilder::default();
        if self.take(b']') {
            return Ok(array.finish());
        }
        loop {
            array.push(self.value(depth.saturating_add(1))?);
            if self.take(b']') {
                return Ok(array.finish());
            }
            if !self.take(b',') {
                return Err(self.error("expected ',' or ']'"));
            }
        }
    }

    fn number(&mut self) -> Result<Value, ReadError> {
        for (word, number) in
            [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)]
        {
            if self.take_word(word) {
                return Ok(Value::Number(number));
            }
        }
        let is_part = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
        let length = self.rest.iter().take_while(|byte| is_part(byte)).count();
        let (digits, rest) = self.rest.split_at(length);
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        let number = number.ok_or_else(|| self.error("expected a number"))?;
        self.rest = rest;
        Ok(Value::Number(number))
    }

    fn text(&mut self) -> Result<Box<str>, ReadError> {
        let Some(mut rest) = self.rest.strip_prefix(b"\"") else {
            return Err(self.error("expected a text"));
        };
        let mut bytes = Vec::new();
        loop {
            let length = rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count();
            let (plain, after) = rest.split_at(length);
            bytes.extend_from_slice(plain);
            match after {
                [b'"', after @ ..] => {
                    self.rest = after;
                    // Feature names may contain any bytes; keys and objectives don't.
                    return Ok(String::from_utf8_lossy(&bytes).into_owned().into_boxed_str());
                }
                [b'\\', b'u', after @ ..] => rest = self.unicode(after, &mut bytes)?,
                [b'\\', byte, after @ ..] => {
                    bytes.push(unescaped(*byte).ok_or_else(|| self.error("unknown escape"))?);
                    rest = after;
                }
                _ => return Err(self.error("the file ends within a text")),
            }
        }
    }

    /// Reads the four digits of an escape sequence. Surrogates become replacement characters,
    /// because only feature names contain them.
    fn unicode(&self, after: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], ReadError> {
        let invalid = || self.error("expected four hexadecimal digits");
        let (digits, rest) = after.split_at_checked(4).ok_or_else(invalid)?;
        let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
        let code = u32::from_str_radix(digits, 16).map_err(|_| invalid())?;
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(rest)
    }
}

fn unescaped(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Value, read};

    fn check(text: &str, expected: &str) {
        let shown = match read(text.as_bytes()) {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn values_of_each_kind() {
        check(" null ", "Null");
        check("true", "Bool(true)");
        check("-1.5e2", "Number(-150.0)");
        check("[NaN, Infinity, -Infinity]", "Numbers([NaN, inf, -inf])");
        check("[1, true, false]", "Numbers([1.0, 1.0, 0.0])");
        check("[]", "List([])");
        check("[\"a\", \"b\"]", "List([Text(\"a\"), Text(\"b\")])");
        check("{\"a\": [1, \"a\"], \"b\": [[], 1]}", "Map([(\"a\", Null), (\"b\", Null)])");
        check("[[1], {}]", "List([Numbers([1.0]), Map([])])");
        check("{\"a\": {\"b\": [2]}}", "Map([(\"a\", Map([(\"b\", Numbers([2.0]))]))])");
        check(r#""a\"\\\/\b\f\n\r\tA\ud800""#, r#"Text("a\"\\/\u{8}\u{c}\n\r\tA�")"#);
    }

    #[test]
    fn the_last_of_repeated_keys_counts() {
        let value = read(br#"{"a": 1, "a": "2.5"}"#).unwrap();
        assert_eq!(value.get("a").and_then(Value::number), Some(2.5));
        assert_eq!(value.get("b"), None);
    }

    #[test]
    fn anything_else_is_refused() {
        check("", "invalid JSON at byte 0: the file ends within the document");
        check("{\"a\"", "invalid JSON at byte 4: expected ':'");
        check("{\"a\":1", "invalid JSON at byte 6: expected ',' or '}'");
        check("{1:1}", "invalid JSON at byte 1: expected a text");
        check("[1 2]", "invalid JSON at byte 3: expected ',' or ']'");
        check("\"a", "invalid JSON at byte 0: the file ends within a text");
        check("\"\\x\"", "invalid JSON at byte 0: unknown escape");
        check("\"\\u12\"", "invalid JSON at byte 0: expected four hexadecimal digits");
        check("--1", "invalid JSON at byte 0: expected a number");
        check("1 1", "invalid JSON at byte 2: text after the end");
        check("nope", "invalid JSON at byte 0: expected a value");
        check(&"[".repeat(1000), "invalid JSON at byte 65: nested too deeply");
    }
}
