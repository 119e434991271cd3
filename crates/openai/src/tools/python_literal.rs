//! Python's literals, in calls that are written in Python.

use crate::json::{JsonValue, Object};

/// The maximum nesting depth.
const DEPTH_MAX: usize = 64;

/// A reader of a text in Python.
pub(super) struct PythonReader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> PythonReader<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn advance(&mut self, length: usize) {
        self.at = self.at.saturating_add(length);
    }

    pub(super) fn skip_space(&mut self) {
        let rest = self.rest();
        self.advance(rest.len().saturating_sub(rest.trim_start().len()));
    }

    /// Reads this character after space, if it is the next one.
    pub(super) fn take(&mut self, letter: char) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(letter);
        if is_next {
            self.advance(letter.len_utf8());
        }
        is_next
    }

    /// True if only space is left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }

    /// Reads a name, which may contain dots and hyphens.
    pub(super) fn name(&mut self) -> Option<&'t str> {
        self.skip_space();
        let rest = self.rest();
        let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-');
        let end = rest.find(|letter: char| !is_part(letter)).unwrap_or(rest.len());
        let name = rest.get(..end).filter(|name| !name.is_empty())?;
        self.advance(end);
        Some(name)
    }

    /// Reads a value.
    pub(super) fn value(&mut self, depth: usize) -> Option<JsonValue> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.skip_space();
        let below = depth.saturating_add(1);
        match self.rest().chars().next()? {
            '"' | '\'' => self.string().map(|text| JsonValue::Text(text.into())),
            '[' => self.elements('[', ']', below).map(JsonValue::List),
            '(' => self.elements('(', ')', below).map(JsonValue::List),
            '{' => self.dictionary(below),
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => match self.name()? {
                "True" | "true" => Some(JsonValue::Bool(true)),
                "False" | "false" => Some(JsonValue::Bool(false)),
                "None" | "null" => Some(JsonValue::Null),
                _ => None,
            },
        }
    }

    fn elements(&mut self, open: char, close: char, depth: usize) -> Option<Vec<JsonValue>> {
        let mut elements = Vec::new();
        if !self.take(open) {
            return None;
        }
        while !self.take(close) {
            elements.push(self.value(depth)?);
            if !self.take(',') {
                return self.take(close).then_some(elements);
            }
        }
        Some(elements)
    }

    fn dictionary(&mut self, depth: usize) -> Option<JsonValue> {
        let mut members: Vec<(Box<str>, JsonValue)> = Vec::new();
        if !self.take('{') {
            return None;
        }
        while !self.take('}') {
            let JsonValue::Text(name) = self.value(depth)? else { return None };
            if !self.take(':') {
                return None;
            }
            let value = self.value(depth)?;
            members.push((name, value));
            if !self.take(',') {
                if self.take('}') {
                    break;
                }
                return None;
            }
        }
        Some(JsonValue::Object(Object::from_members(members)))
    }

    fn number(&mut self) -> Option<JsonValue> {
        let rest = self.rest();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "+-._".contains(letter);
        let end = rest.find(|letter: char| !is_part(letter)).unwrap_or(rest.len());
        let text = rest.get(..end)?.replace('_', "");
        let text = text.strip_prefix('+').unwrap_or(&text);
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let value = if is_whole {
            let trimmed = digits.trim_start_matches('0');
            let shown = if trimmed.is_empty() { "0" } else { trimmed };
            let sign = if text.starts_with('-') && shown != "0" { "-" } else { "" };
            let shown = format!("{sign}{shown}");
            shown.parse().map_or_else(|_| JsonValue::BigInt(shown.into()), JsonValue::Int)
        } else {
            if !digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.') {
                return None;
            }
            JsonValue::Float(text.parse().ok().filter(|number: &f64| number.is_finite())?)
        };
        self.advance(end);
        Some(value)
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest().chars().next()?;
        self.advance(1);
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let end = rest.find([quote, '\\'])?;
            text.push_str(rest.get(..end)?);
            self.advance(end.saturating_add(1));
            if rest.get(end..)?.starts_with(quote) {
                return Some(text);
            }
            self.escape(&mut text)?;
        }
    }

    /// Reads what follows a backslash. Unknown sequences stay as they are.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let letter = self.rest().chars().next()?;
        self.advance(letter.len_utf8());
        let digits = match letter {
            'n' => return push(text, '\n'),
            't' => return push(text, '\t'),
            'r' => return push(text, '\r'),
            'b' => return push(text, '\x08'),
            'f' => return push(text, '\x0c'),
            '0' => return push(text, '\0'),
            '\\' | '\'' | '"' => return push(text, letter),
            '\n' => return Some(()),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => {
                text.push('\\');
                return push(text, letter);
            }
        };
        let code = self.rest().get(..digits)?;
        let code = u32::from_str_radix(code, 16).ok()?;
        self.advance(digits);
        push(text, char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

fn push(text: &mut String, letter: char) -> Option<()> {
    text.push(letter);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::python::{Charset, dumps};
    use super::*;

    fn check(text: &str, expected: &str) {
        let value = PythonReader::new(text).value(0);
        let found = value.map_or(String::from("none"), |value| dumps(&value, Charset::Unicode));
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn literals_become_json() {
        check("'a\"b'", r#""a\"b""#);
        check(r#""a'\n\x41\u00e9\q""#, r#""a'\nAé\\q""#);
        check("[1, -2.5, +3, 1e3, 1_000, True, None]", "[1, -2.5, 3, 1000.0, 1000, true, null]");
        check("(1, 'b',)", r#"[1, "b"]"#);
        check("{'a': {'b': []}, \"c\": ()}", r#"{"a": {"b": []}, "c": []}"#);
        check("123456789012345678901234567890", "123456789012345678901234567890");
        check("-0", "0");
        for malformed in ["", "'a", "[1", "{1: 2}", "{'a' 1}", "f", "--1", "1x", "inf", "'\\x4'"] {
            check(malformed, "none");
        }
        check(&"[".repeat(1000), "none");
    }
}
