//! Parses the text of a JSON configuration in the same way as the C++ parser of Protocol Buffers.
//!
//! Triton accepts everything that this parser accepts: unquoted keys, single quotes, a comma before
//! a closing bracket, control characters in strings, and any character after a backslash.

use serde_json::Number;

use crate::diagnostic::Position;

/// The maximum nesting depth, as in Protocol Buffers.
const DEPTH_MAX: usize = 100;

/// An error in a text and its position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    pub(crate) position: Position,
    pub(crate) message: &'static str,
}

/// A value, or the beginning of a compound value, whose parts are read one at a time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonPart {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    /// The beginning of a list: [`JsonReader::next_element`] comes next.
    List,
    /// The beginning of an object: [`JsonReader::next_key`] comes next.
    Object,
}

/// The parts of a list or object that have been read.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadParts {
    #[default]
    None,
    Some,
}

/// A reader that parses a text part by part, because a tree for a short text would take a hundred
/// times the text's memory.
pub(crate) struct JsonReader<'t> {
    text: &'t str,
    /// The number of bytes read so far.
    at: usize,
    /// The number of lists and objects that are still open.
    depth: usize,
}

impl<'t> JsonReader<'t> {
    pub(crate) const fn new(text: &'t str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// Reads a value. For a list or an object, reads only the opening bracket.
    pub(crate) fn value(&mut self) -> Result<JsonPart, JsonError> {
        self.part().map_err(|message| self.error(message))
    }

    /// Returns true if a list has another element, which must be read next.
    pub(crate) fn next_element(&mut self, read: &mut ReadParts) -> Result<bool, JsonError> {
        let missing = "',' or ']' is missing behind an element";
        self.has_next(read, ']', missing).map_err(|message| self.error(message))
    }

    /// The key of the next object member, whose value must be read next.
    pub(crate) fn next_key(&mut self, read: &mut ReadParts) -> Result<Option<String>, JsonError> {
        self.member(read).map_err(|message| self.error(message))
    }

    /// Skips the parts of a value that belongs to no field.
    pub(crate) fn skip(&mut self, value: &JsonPart) -> Result<(), JsonError> {
        let mut read = ReadParts::None;
        match value {
            JsonPart::List => {
                while self.next_element(&mut read)? {
                    let element = self.value()?;
                    self.skip(&element)?;
                }
            }
            JsonPart::Object => {
                while self.next_key(&mut read)?.is_some() {
                    let member = self.value()?;
                    self.skip(&member)?;
                }
            }
            JsonPart::Null | JsonPart::Bool(_) | JsonPart::Number(_) | JsonPart::String(_) => {}
        }
        Ok(())
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        match self.peek() {
            Some(_) => Err(self.error("nothing may follow the value")),
            None => Ok(()),
        }
    }

    fn error(&self, message: &'static str) -> JsonError {
        JsonError { position: self.position(), message }
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Skips whitespace and consumes this character, if it comes next.
    fn take(&mut self, expected: char) -> bool {
        self.skip_space();
        let is_next = self.peek() == Some(expected);
        if is_next {
            self.at += expected.len_utf8();
        }
        is_next
    }

    fn position(&self) -> Position {
        let read = self.text.get(..self.at).unwrap_or(self.text);
        let line = read.matches('\n').count() + 1;
        let column = read.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Position { line, column }
    }

    fn part(&mut self) -> Result<JsonPart, &'static str> {
        if self.depth > DEPTH_MAX {
            return Err("the nesting is too deep");
        }
        self.skip_space();
        match self.peek() {
            Some('{') => Ok(self.open(JsonPart::Object)),
            Some('[') => Ok(self.open(JsonPart::List)),
            Some(quote @ ('"' | '\'')) => self.string(quote).map(JsonPart::String),
            Some('-' | '0'..='9') => self.number(),
            Some(_) => self.word(),
            None => Err("a value is missing"),
        }
    }

    fn open(&mut self, part: JsonPart) -> JsonPart {
        self.next();
        self.depth += 1;
        part
    }

    /// Returns true if another part comes before the closing bracket. A comma may precede the
    /// bracket.
    fn has_next(
        &mut self,
        read: &mut ReadParts,
        closer: char,
        missing: &'static str,
    ) -> Result<bool, &'static str> {
        let is_separated = *read == ReadParts::None || self.take(',');
        *read = ReadParts::Some;
        if self.take(closer) {
            self.depth -= 1;
            return Ok(false);
        }
        if is_separated { Ok(true) } else { Err(missing) }
    }

    fn member(&mut self, read: &mut ReadParts) -> Result<Option<String>, &'static str> {
        if !self.has_next(read, '}', "',' or '}' is missing behind a member")? {
            return Ok(None);
        }
        let key = self.key()?;
        if !self.take(':') {
            return Err("':' is missing behind a key");
        }
        Ok(Some(key))
    }

    fn key(&mut self) -> Result<String, &'static str> {
        self.skip_space();
        if let Some(quote @ ('"' | '\'')) = self.peek() {
            return self.string(quote);
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        let rest = self.rest();
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let key = rest.get(..length).unwrap_or_default().to_owned();
        if key.is_empty() || key.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("a key must be a string or a name");
        }
        self.at += length;
        Ok(key)
    }

    fn string(&mut self, quote: char) -> Result<String, &'static str> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err("the string does not end"),
                Some(end) if end == quote => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(other) => text.push(other),
            }
        }
    }

    fn escape(&mut self) -> Result<char, &'static str> {
        Ok(match self.next().ok_or("the string does not end")? {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'u' => return self.unicode(),
            other => other,
        })
    }

    fn unicode(&mut self) -> Result<char, &'static str> {
        const WRONG: &str = "the escape is no character";
        let first = self.hex()?;
        if !(0xD800..0xDC00).contains(&first) {
            return char::from_u32(first).ok_or(WRONG);
        }
        if self.next() != Some('\\') || self.next() != Some('u') {
            return Err(WRONG);
        }
        let second = self.hex()?;
        let low = second.checked_sub(0xDC00).filter(|low| *low < 0x400).ok_or(WRONG)?;
        char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + low).ok_or(WRONG)
    }

    fn hex(&mut self) -> Result<u32, &'static str> {
        let mut number = 0;
        for _ in 0..4 {
            let digit = self.next().and_then(|digit| digit.to_digit(16));
            number = number * 16 + digit.ok_or("four hexadecimal digits must follow '\\u'")?;
        }
        Ok(number)
    }

    fn number(&mut self) -> Result<JsonPart, &'static str> {
        const WRONG: &str = "this is no number";
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let text = rest.get(..length).unwrap_or_default();
        let digits = text.strip_prefix('-').unwrap_or(text);
        let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let has_leading_zero = digits.strip_prefix('0').is_some_and(starts_with_digit);
        if has_leading_zero || !starts_with_digit(digits) {
            return Err(WRONG);
        }
        let number = if let Ok(number) = text.parse::<u64>() {
            Number::from(number)
        } else if let Ok(number) = text.parse::<i64>() {
            Number::from(number)
        } else {
            let number: f64 = text.parse().map_err(|_| WRONG)?;
            Number::from_f64(number).ok_or("the number is out of range")?
        };
        self.at += length;
        Ok(JsonPart::Number(number))
    }

    fn word(&mut self) -> Result<JsonPart, &'static str> {
        for (word, value) in [
            ("true", JsonPart::Bool(true)),
            ("false", JsonPart::Bool(false)),
            ("null", JsonPart::Null),
        ] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("this is no value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a complete text as plain JSON.
    fn plain(text: &str) -> Result<serde_json::Value, JsonError> {
        let mut reader = JsonReader::new(text);
        let value = tree(&mut reader)?;
        reader.end().map(|()| value)
    }

    fn tree(reader: &mut JsonReader<'_>) -> Result<serde_json::Value, JsonError> {
        let mut read = ReadParts::default();
        Ok(match reader.value()? {
            JsonPart::Null => serde_json::Value::Null,
            JsonPart::Bool(value) => value.into(),
            JsonPart::Number(number) => number.into(),
            JsonPart::String(text) => text.into(),
            JsonPart::List => {
                let mut elements = Vec::new();
                while reader.next_element(&mut read)? {
                    elements.push(tree(reader)?);
                }
                elements.into()
            }
            JsonPart::Object => {
                let mut members = serde_json::Map::new();
                while let Some(key) = reader.next_key(&mut read)? {
                    members.insert(key, tree(reader)?);
                }
                members.into()
            }
        })
    }

    fn skipped(text: &str) -> Result<(), JsonError> {
        let mut reader = JsonReader::new(text);
        let value = reader.value()?;
        reader.skip(&value)?;
        reader.end()
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(skipped(text).err(), plain(text).err(), "{text}");
        let actual = match plain(text) {
            Ok(value) => value.to_string(),
            Err(JsonError { position: Position { line, column }, message }) => {
                format!("{line}:{column}: {message}")
            }
        };
        assert_eq!(actual, expected, "{text}");
    }

    #[test]
    fn what_other_readers_refuse_is_taken() {
        check("{a: 1, 'b': \"x\", $c_1: 'it\"s',}", r#"{"a":1,"b":"x","$c_1":"it\"s"}"#);
        check("[1, [2,], {},]", "[1,[2],{}]");
        check("'a\\x\\v\t'", r#""ax\u000b\t""#);
        check("[4., -1e3, 18446744073709551615]", "[4.0,-1000.0,18446744073709551615]");
    }

    #[test]
    fn plain_json_is_read() {
        check(" { \"a\" : [ true , false , null ] } \n", r#"{"a":[true,false,null]}"#);
        check(r#""\u0041\ud83d\ude00\n\/""#, "\"A\u{1f600}\\n/\"");
        check("-0", "0");
        check("0.5", "0.5");
    }

    #[test]
    fn mistakes_have_their_place() {
        check("", "1:1: a value is missing");
        check("{\n  a 1}", "2:5: ':' is missing behind a key");
        check("{1: 2}", "1:2: a key must be a string or a name");
        check("{a: 1 b: 2}", "1:7: ',' or '}' is missing behind a member");
        check("[1 2]", "1:4: ',' or ']' is missing behind an element");
        check("[,]", "1:2: this is no value");
        check("'a", "1:3: the string does not end");
        check(r#""\ud83d""#, "1:9: the escape is no character");
        check(r#""\u12x4""#, "1:7: four hexadecimal digits must follow '\\u'");
        for number in ["04", "0x4", "-", "-a", "1.2.3"] {
            check(number, "1:1: this is no number");
        }
        check("1e999", "1:1: the number is out of range");
        check("{} x", "1:4: nothing may follow the value");
        check(&"[".repeat(102), "1:102: the nesting is too deep");
    }
}
