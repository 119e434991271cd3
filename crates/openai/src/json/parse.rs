//! Parses JSON with the error texts and positions of Python's `json.loads`.

use std::collections::BTreeMap;
use std::fmt;

use super::{JsonValue, Object};

/// The maximum nesting depth of arrays and objects. Python's own limit is the size of its stack.
const DEPTH_MAX: usize = 256;
/// The number of digits from which Python refuses an integer.
const DIGITS_MAX: usize = 4300;
/// In an object with at least this many members, names are looked up in a tree.
const FEW_MEMBERS: usize = 8;

/// The limits of a document.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bounds {
    /// The maximum number of values.
    pub(crate) values_max: usize,
}

/// The reason why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// A syntax error, with Python's text.
    Syntax {
        /// The text.
        message: &'static str,
        /// The number of characters before the mistake.
        position: usize,
        /// The line of the mistake, starting at 1.
        line: usize,
        /// The column of the mistake, starting at 1.
        column: usize,
    },
    /// The document is not UTF-8, is nested too deeply, or contains a number with too many digits.
    /// Python raises other exceptions for these.
    Unreadable,
    /// There are more values than the limits allow.
    TooManyValues,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { message, position, line, column } => {
                write!(f, "{message}: line {line} column {column} (char {position})")
            }
            Self::Unreadable => f.write_str("the JSON can't be read"),
            Self::TooManyValues => f.write_str("the JSON has too many values"),
        }
    }
}

impl std::error::Error for JsonError {}

/// Returns an upper bound on the number of values in a document without parsing it: each value
/// except the first follows one of these characters.
#[must_use]
pub(crate) fn values_max(document: &[u8]) -> usize {
    openers(document).saturating_add(1)
}

/// Returns the number of characters that precede values, and of the same characters in strings.
pub(crate) fn openers(document: &[u8]) -> usize {
    document.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{' | b':')).count()
}

/// Parses a document.
///
/// # Errors
///
/// Returns the first mistake.
pub(crate) fn parse(document: &[u8], bounds: Bounds) -> Result<JsonValue, JsonError> {
    let document = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    let text = std::str::from_utf8(document).map_err(|_| JsonError::Unreadable)?;
    let mut reader =
        JsonParser { text, bytes: text.as_bytes(), at: 0, values_left: bounds.values_max };
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at < reader.bytes.len() {
        return Err(reader.mistake("Extra data", reader.at));
    }
    Ok(value)
}

/// Parses the value at the very start of a text, as Python's `raw_decode` does. Returns the value and
/// the position of its end.
///
/// # Errors
///
/// Returns the first mistake.
pub(crate) fn parse_first(text: &str) -> Result<(JsonValue, usize), JsonError> {
    let bytes = text.as_bytes();
    let mut reader = JsonParser { text, bytes, at: 0, values_left: values_max(bytes) };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

/// Parses a text, as Python's `loads` does with a string.
///
/// # Errors
///
/// Returns the first mistake.
pub(crate) fn parse_text(text: &str) -> Result<JsonValue, JsonError> {
    if text.starts_with('\u{feff}') {
        return Err(JsonError::Unreadable);
    }
    parse(text.as_bytes(), Bounds { values_max: values_max(text.as_bytes()) })
}

struct JsonParser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    values_left: usize,
}

impl JsonParser<'_> {
    fn mistake(&self, message: &'static str, at: usize) -> JsonError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count().saturating_add(1);
        let last = before.rsplit('\n').next().unwrap_or_default();
        JsonError::Syntax {
            message,
            position: before.chars().count(),
            line,
            column: last.chars().count().saturating_add(1),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn advance(&mut self, count: usize) {
        self.at = self.at.saturating_add(count);
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.advance(1);
        }
    }

    fn value(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
        self.values_left = self.values_left.checked_sub(1).ok_or(JsonError::TooManyValues)?;
        match self.peek() {
            Some(b'"') => self.string().map(|text| JsonValue::Text(text.into())),
            Some(b'{') => self.nested(depth).and_then(|depth| self.object(depth)),
            Some(b'[') => self.nested(depth).and_then(|depth| self.list(depth)),
            _ => match self.word() {
                Some(value) => Ok(value),
                None => self.number(),
            },
        }
    }

    fn nested(&self, depth: usize) -> Result<usize, JsonError> {
        if depth >= DEPTH_MAX { Err(JsonError::Unreadable) } else { Ok(depth.saturating_add(1)) }
    }

    fn word(&mut self) -> Option<JsonValue> {
        let rest = self.bytes.get(self.at..)?;
        let words = [
            (&b"null"[..], JsonValue::Null),
            (b"true", JsonValue::Bool(true)),
            (b"false", JsonValue::Bool(false)),
            (b"NaN", JsonValue::Float(f64::NAN)),
            (b"Infinity", JsonValue::Float(f64::INFINITY)),
            (b"-Infinity", JsonValue::Float(f64::NEG_INFINITY)),
        ];
        let (word, value) = words.into_iter().find(|(word, _)| rest.starts_with(word))?;
        self.advance(word.len());
        Some(value)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.advance(1);
        }
        self.at.saturating_sub(start)
    }

    fn number(&mut self) -> Result<JsonValue, JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.advance(1);
        }
        match self.peek() {
            Some(b'0') => self.advance(1),
            Some(b'1'..=b'9') => {
                self.digits();
            }
            _ => {
                self.at = start;
                return Err(self.mistake("Expecting value", start));
            }
        }
        let whole_end = self.at;
        let has_fraction = self.fraction();
        let has_exponent = self.exponent();
        let text = self.text.get(start..self.at).unwrap_or_default();
        if has_fraction || has_exponent {
            return Ok(JsonValue::Float(text.parse().unwrap_or(f64::NAN)));
        }
        if whole_end.saturating_sub(start) > DIGITS_MAX {
            return Err(JsonError::Unreadable);
        }
        Ok(text.parse().map_or_else(|_| JsonValue::BigInt(text.into()), JsonValue::Int))
    }

    /// Reads a fraction, if a complete one follows.
    fn fraction(&mut self) -> bool {
        let start = self.at;
        if self.peek() == Some(b'.') {
            self.advance(1);
            if self.digits() > 0 {
                return true;
            }
        }
        self.at = start;
        false
    }

    /// Reads an exponent, if a complete one follows.
    fn exponent(&mut self) -> bool {
        let start = self.at;
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.advance(1);
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.advance(1);
            }
            if self.digits() > 0 {
                return true;
            }
        }
        self.at = start;
        false
    }

    fn list(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
        self.advance(1);
        self.skip_space();
        let mut elements = Vec::new();
        if self.peek() == Some(b']') {
            self.advance(1);
            return Ok(JsonValue::List(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.advance(1),
                Some(b']') => {
                    self.advance(1);
                    return Ok(JsonValue::List(elements));
                }
                _ => return Err(self.mistake("Expecting ',' delimiter", self.at)),
            }
            self.skip_space();
        }
    }

    fn object(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
        self.advance(1);
        self.skip_space();
        let mut members = ParsedMembers::default();
        if self.peek() == Some(b'}') {
            self.advance(1);
            return Ok(JsonValue::Object(Object::default()));
        }
        loop {
            if self.peek() != Some(b'"') {
                let message = "Expecting property name enclosed in double quotes";
                return Err(self.mistake(message, self.at));
            }
            let name = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.mistake("Expecting ':' delimiter", self.at));
            }
            self.advance(1);
            self.skip_space();
            members.insert(name, self.value(depth)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.advance(1),
                Some(b'}') => {
                    self.advance(1);
                    return Ok(JsonValue::Object(Object::from_members(members.members)));
                }
                _ => return Err(self.mistake("Expecting ',' delimiter", self.at)),
            }
            self.skip_space();
        }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let begin = self.at;
        self.advance(1);
        let mut text = String::new();
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
            let length = rest.as_bytes().iter().position(is_special).unwrap_or(rest.len());
            text.push_str(rest.get(..length).unwrap_or_default());
            self.advance(length);
            match self.peek() {
                Some(b'"') => {
                    self.advance(1);
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape(begin)?),
                Some(_) => return Err(self.mistake("Invalid control character at", self.at)),
                None => return Err(self.mistake("Unterminated string starting at", begin)),
            }
        }
    }

    fn escape(&mut self, begin: usize) -> Result<char, JsonError> {
        let at = self.at;
        self.advance(1);
        let Some(letter) = self.peek() else {
            return Err(self.mistake("Unterminated string starting at", begin));
        };
        self.advance(1);
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(self.mistake("Invalid \\escape", at)),
        })
    }

    /// Reads the digits after `\u`. Half of a surrogate pair becomes the replacement character,
    /// because our strings can't contain it.
    fn unicode(&mut self) -> Result<char, JsonError> {
        let first = self.code_unit()?;
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let behind = self.at;
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(b"\\u")) {
            self.advance(2);
            if let Ok(second) = self.code_unit()
                && (0xdc00..0xe000).contains(&second)
            {
                let high = first.wrapping_sub(0xd800).wrapping_shl(10);
                let code =
                    0x1_0000_u32.wrapping_add(high).wrapping_add(second.wrapping_sub(0xdc00));
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        self.at = behind;
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn code_unit(&mut self) -> Result<u32, JsonError> {
        let digits = self.bytes.get(self.at..self.at.saturating_add(4)).unwrap_or_default();
        let is_whole = digits.len() == 4 && digits.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(digits).ok().filter(|_| is_whole);
        let unit = text.and_then(|text| u32::from_str_radix(text, 16).ok());
        let unit =
            unit.ok_or_else(|| self.mistake("Invalid \\uXXXX escape", self.at.saturating_sub(1)))?;
        self.advance(4);
        Ok(unit)
    }
}

/// The members of an object that is being read. As in Python, a repeated name keeps its position
/// and gets the last value.
#[derive(Default)]
struct ParsedMembers {
    members: Vec<(Box<str>, JsonValue)>,
    /// The positions by name, once there are many members.
    places: BTreeMap<Box<str>, usize>,
}

impl ParsedMembers {
    fn insert(&mut self, name: String, value: JsonValue) {
        let place = self.place(&name);
        match place.and_then(|place| self.members.get_mut(place)) {
            Some((_, old)) => *old = value,
            None => {
                let name: Box<str> = name.into();
                if !self.places.is_empty() {
                    self.places.insert(name.clone(), self.members.len());
                }
                self.members.push((name, value));
            }
        }
    }

    fn place(&mut self, name: &str) -> Option<usize> {
        if self.members.len() < FEW_MEMBERS {
            return self.members.iter().position(|(given, _)| &**given == name);
        }
        if self.places.is_empty() {
            let names = self.members.iter().enumerate();
            self.places = names.map(|(place, (name, _))| (name.clone(), place)).collect();
        }
        self.places.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::push_compact;
    use super::*;

    fn read(document: &[u8]) -> Result<String, JsonError> {
        let value = parse(document, Bounds { values_max: 100 })?;
        let mut text = Vec::new();
        push_compact(&mut text, &value);
        Ok(String::from_utf8(text).unwrap())
    }

    fn check(document: &str, expected: &str) {
        let found = read(document.as_bytes()).unwrap_or_else(|error| error.to_string());
        assert_eq!(found, expected, "{document}");
    }

    #[test]
    fn values_are_read() {
        check(
            " [1, -2.50, 1e3, true, null, \"a\\u00e9\\ud83d\\ude00\"] ",
            "[1,-2.5,1000.0,true,null,\"aé😀\"]",
        );
        check("{\"a\": 1, \"b\": {}, \"a\": 2}", "{\"a\":2,\"b\":{}}");
        check("[NaN, Infinity, -Infinity, -0]", "[NaN,Infinity,-Infinity,0]");
        check("123456789012345678901234567890", "123456789012345678901234567890");
        check("\"\\ud800x\"", "\"\u{fffd}x\"");
    }

    #[test]
    fn a_repeated_name_among_many_keeps_its_place() {
        let names: Vec<String> = (0..20).map(|index| format!("\"n{index}\":{index}")).collect();
        let document = format!("{{{},\"n3\":99}}", names.join(","));
        let JsonValue::Object(object) =
            parse(document.as_bytes(), Bounds { values_max: 100 }).unwrap()
        else {
            panic!("no object")
        };
        assert_eq!(object.iter().nth(3), Some(("n3", &JsonValue::Int(99))));
        assert_eq!(object.iter().count(), 20);
    }

    /// The texts and positions are those of Python 3.12.
    #[test]
    fn mistakes_have_the_texts_of_python() {
        for (document, expected) in [
            ("", "Expecting value: line 1 column 1 (char 0)"),
            ("[", "Expecting value: line 1 column 2 (char 1)"),
            ("[1,]", "Expecting value: line 1 column 4 (char 3)"),
            ("[1 2]", "Expecting ',' delimiter: line 1 column 4 (char 3)"),
            ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
            (
                "{1:2}",
                "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            ),
            (
                "{\"a\":1,}",
                "Expecting property name enclosed in double quotes: line 1 column 8 (char 7)",
            ),
            ("{\"a\" 1}", "Expecting ':' delimiter: line 1 column 6 (char 5)"),
            ("{\"a\":}", "Expecting value: line 1 column 6 (char 5)"),
            ("{\"a\":1 \"b\"}", "Expecting ',' delimiter: line 1 column 8 (char 7)"),
            ("\"abc", "Unterminated string starting at: line 1 column 1 (char 0)"),
            ("\"é\n\"", "Invalid control character at: line 1 column 3 (char 2)"),
            ("\"a\\x\"", "Invalid \\escape: line 1 column 3 (char 2)"),
            ("\"a\\u12g4\"", "Invalid \\uXXXX escape: line 1 column 4 (char 3)"),
            ("{} x", "Extra data: line 1 column 4 (char 3)"),
            ("\n\n  tru", "Expecting value: line 3 column 3 (char 4)"),
            ("01", "Extra data: line 1 column 2 (char 1)"),
            ("1.", "Extra data: line 1 column 2 (char 1)"),
            ("-", "Expecting value: line 1 column 1 (char 0)"),
        ] {
            check(document, expected);
        }
    }

    #[test]
    fn bounds_hold() {
        assert_eq!(read(b"\xff"), Err(JsonError::Unreadable));
        let deep = "[".repeat(10_000);
        let bounds = Bounds { values_max: values_max(deep.as_bytes()) };
        assert_eq!(parse(deep.as_bytes(), bounds), Err(JsonError::Unreadable));
        assert_eq!(read("1".repeat(5_000).as_bytes()), Err(JsonError::Unreadable));
        let many = format!("[{}1]", "1,".repeat(200));
        assert_eq!(read(many.as_bytes()), Err(JsonError::TooManyValues));
        assert!(values_max(many.as_bytes()) >= 202);
    }
}
