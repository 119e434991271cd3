//! Parses the text of a JSON configuration as protocol buffers' reader for C++ does.
//!
//! Triton takes what that reader takes: keys without quotes, single quotes, a comma before a
//! closing bracket, control characters in strings, and any character behind a backslash.

use serde_json::{Map, Number, Value as Json};

use crate::diagnostic::Position;

/// Deeper nesting is refused, as by protocol buffers.
const DEPTH_MAX: usize = 100;

/// What is wrong with a text, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    pub(crate) position: Position,
    pub(crate) message: &'static str,
}

pub(crate) fn parse(text: &str) -> Result<Json, JsonError> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0).and_then(|value| {
        parser.skip_space();
        if parser.peek().is_some() { Err("nothing may follow the value") } else { Ok(value) }
    });
    value.map_err(|message| JsonError { position: parser.position(), message })
}

struct Parser<'t> {
    text: &'t str,
    /// The number of bytes that were read.
    at: usize,
}

impl Parser<'_> {
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

    /// Takes this character behind any space.
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

    fn value(&mut self, depth: usize) -> Result<Json, &'static str> {
        if depth > DEPTH_MAX {
            return Err("the nesting is too deep");
        }
        self.skip_space();
        match self.peek() {
            Some('{') => self.object(depth),
            Some('[') => self.list(depth),
            Some(quote @ ('"' | '\'')) => self.string(quote).map(Json::String),
            Some('-' | '0'..='9') => self.number(),
            Some(_) => self.word(),
            None => Err("a value is missing"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, &'static str> {
        self.next();
        let mut members = Map::new();
        loop {
            if self.take('}') {
                return Ok(Json::Object(members));
            }
            let key = self.key()?;
            if !self.take(':') {
                return Err("':' is missing behind a key");
            }
            members.insert(key, self.value(depth + 1)?);
            if !self.take(',') {
                return if self.take('}') {
                    Ok(Json::Object(members))
                } else {
                    Err("',' or '}' is missing behind a member")
                };
            }
        }
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

    fn list(&mut self, depth: usize) -> Result<Json, &'static str> {
        self.next();
        let mut elements = Vec::new();
        loop {
            if self.take(']') {
                return Ok(Json::Array(elements));
            }
            elements.push(self.value(depth + 1)?);
            if !self.take(',') {
                return if self.take(']') {
                    Ok(Json::Array(elements))
                } else {
                    Err("',' or ']' is missing behind an element")
                };
            }
        }
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

    fn number(&mut self) -> Result<Json, &'static str> {
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
        Ok(Json::Number(number))
    }

    fn word(&mut self) -> Result<Json, &'static str> {
        for (word, value) in
            [("true", Json::Bool(true)), ("false", Json::Bool(false)), ("null", Json::Null)]
        {
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

    fn check(text: &str, expected: &str) {
        let actual = match parse(text) {
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
