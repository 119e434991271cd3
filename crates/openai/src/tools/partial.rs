//! JSON that is still being written, completed as the Python package `partial_json_parser` does.
//!
//! Triton's parsers of llama3 and mistral send what that package makes of the text so far. Clients
//! therefore see its decisions, including those for malformed text.

use super::python::{is_space, strip};
use crate::json::{JsonError, JsonValue, parse_first, parse_text};

/// The treatment of a string that has no end yet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum PartialStrings {
    /// The string ends here.
    Keep,
    /// The string is omitted, along with the name of its member.
    Omit,
}

/// The maximum nesting depth. The JSON reader has the same limit.
const DEPTH_MAX: usize = 256;

/// Returns the value of a text that may end anywhere; `None` if it is malformed.
pub(super) fn value_so_far(text: &str, strings: PartialStrings) -> Option<JsonValue> {
    parse_text(&completed(text, strings)?).ok()
}

/// Returns the first value of a text, along with the position of its end. Only the last value of a
/// text may be incomplete.
pub(super) fn first_value_so_far(
    text: &str,
    strings: PartialStrings,
) -> Option<(JsonValue, usize)> {
    match parse_text(&completed(text, strings)?) {
        Ok(value) => Some((value, text.len())),
        Err(JsonError::Syntax { message: "Extra data", .. }) => parse_first(text).ok(),
        Err(_) => None,
    }
}

/// Returns the text up to its last usable value, with everything closed that is open there.
fn completed(text: &str, strings: PartialStrings) -> Option<String> {
    let Outline { first, last, mut open, in_string, string_start, string_end } = Outline::of(text)?;
    if first.is_none_or(|byte| byte == b'"') {
        return fix(text, strings, true);
    }
    let Some((top, opener)) = open.last().copied() else { return Some(text.to_owned()) };
    let all = closers(&open);
    open.pop();
    let outer = closers(&open);
    let python = Python(text);
    let ending = Ending { text, strings, top, opener, all, outer, string_start, string_end };
    if in_string {
        return match strings {
            PartialStrings::Omit => ending.without_string(),
            PartialStrings::Keep => ending.inside_string(),
        };
    }
    let (at, token) = last?;
    let comma = python.rfind(b',', string_end.max(at).saturating_add(1), python.end());
    if let Some(comma) = comma {
        return ending.after_comma(comma);
    }
    match token {
        b']' | b'}' => {
            let is_blank = strip(python.from(at.saturating_add(1))).is_empty();
            is_blank.then(|| format!("{text}{}", ending.all))
        }
        b'[' | b'{' => ending.last_part(at, "", at),
        _ => ending.after_string(),
    }
}

/// The brackets and strings of a text.
struct Outline {
    first: Option<u8>,
    last: Option<(isize, u8)>,
    /// The brackets that are open at the end, with their positions.
    open: Vec<(isize, u8)>,
    in_string: bool,
    /// The positions of the last quotation marks that begin and end a string; -1 before the first.
    string_start: isize,
    string_end: isize,
}

impl Outline {
    /// Reads the brackets; `None` if they don't match.
    fn of(text: &str) -> Option<Self> {
        let mut outline = Self {
            first: None,
            last: None,
            open: Vec::new(),
            in_string: false,
            string_start: -1,
            string_end: -1,
        };
        let mut backslashes = 0_usize;
        for (index, byte) in text.bytes().enumerate() {
            let is_escaped = backslashes % 2 == 1;
            backslashes = if byte == b'\\' { backslashes.saturating_add(1) } else { 0 };
            if !matches!(byte, b'"' | b'[' | b']' | b'{' | b'}') {
                continue;
            }
            let at = isize::try_from(index).ok()?;
            outline.first.get_or_insert(byte);
            outline.last = Some((at, byte));
            if outline.first == Some(b'"') {
                return Some(outline);
            }
            outline.take(at, byte, is_escaped)?;
        }
        Some(outline)
    }

    fn take(&mut self, at: isize, byte: u8, is_escaped: bool) -> Option<()> {
        match byte {
            b'"' if !self.in_string => {
                (self.in_string, self.string_start) = (true, at);
            }
            b'"' if !is_escaped => (self.in_string, self.string_end) = (false, at),
            _ if self.in_string => {}
            b'}' => return self.open.pop().filter(|(_, opener)| *opener == b'{').map(drop),
            b']' => return self.open.pop().filter(|(_, opener)| *opener == b'[').map(drop),
            opener => self.open.push((at, opener)),
        }
        Some(())
    }
}

/// Returns the brackets that close these, from the last to the first.
fn closers(open: &[(isize, u8)]) -> String {
    let closer = |(_, opener): &(isize, u8)| if *opener == b'{' { '}' } else { ']' };
    open.iter().rev().map(closer).collect()
}

/// The end of a text in which brackets are open.
struct Ending<'t> {
    text: &'t str,
    strings: PartialStrings,
    /// The position of the innermost open bracket, and the bracket.
    top: isize,
    opener: u8,
    /// The brackets that close all open brackets.
    all: String,
    /// The brackets that close all but the innermost.
    outer: String,
    string_start: isize,
    string_end: isize,
}

impl Ending<'_> {
    fn python(&self) -> Python<'_> {
        Python(self.text)
    }

    /// Returns the text up to a position, with all brackets closed.
    fn until(&self, end: isize) -> Option<String> {
        Some(format!("{}{}", self.python().until(end), self.all))
    }

    /// Completes the text from `start` on, after `prefix`. The result replaces the text from `kept`
    /// on.
    fn last_part(&self, kept: isize, prefix: &str, start: isize) -> Option<String> {
        let rest = format!("{prefix}{}", self.python().from(start));
        let (head, tail) = fix_parts(&rest, self.strings, false)?;
        let head = head.get(prefix.len()..).unwrap_or_default();
        Some(format!("{}{head}{tail}{}", self.python().until(kept), self.outer))
    }

    /// Completes the text after a comma: without the comma if nothing follows it.
    fn part_after(&self, comma: isize, opener: &str, closers: &str) -> Option<String> {
        let behind = comma.saturating_add(1);
        let rest = format!("{opener}{}", self.python().from(behind));
        let (head, tail) = fix_parts(&rest, self.strings, false)?;
        let head = head.get(1..).unwrap_or_default();
        let inner = tail.get(..tail.len().saturating_sub(1)).unwrap_or_default();
        let is_empty = head.is_empty() && strip(inner).is_empty();
        let (kept, closers) = if is_empty { (comma, &*self.outer) } else { (behind, closers) };
        Some(format!("{}{head}{tail}{closers}", self.python().until(kept)))
    }

    /// The last string has no end, and is omitted.
    fn without_string(&self) -> Option<String> {
        let python = self.python();
        if self.top > self.string_end && self.opener == b'{' {
            return self.until(self.top.saturating_add(1));
        }
        let start = self.top.max(self.string_end).saturating_add(1);
        if let Some(comma) = python.rfind(b',', start, self.string_start) {
            return self.until(comma);
        }
        let mut name_start = self.string_end;
        loop {
            let Some(found) = python.rfind(b'"', self.top, name_start) else {
                return self.until(self.top.saturating_add(1));
            };
            if !python.is_escaped(found) {
                let comma = python.rfind(b',', self.top, found);
                return self.until(comma.unwrap_or(self.top.saturating_add(1)));
            }
            name_start = found.saturating_sub(1);
        }
    }

    /// The last string has no end, and is kept if it is a value.
    fn inside_string(&self) -> Option<String> {
        let python = self.python();
        let keep_string = || {
            let (head, tail) = fix_parts(python.from(self.string_start), self.strings, false)?;
            Some(format!("{}{head}{tail}{}", python.until(self.string_start), self.all))
        };
        if self.opener == b'[' {
            return keep_string();
        }
        let start = self.string_end.max(self.top);
        let behind = start.saturating_add(1);
        if python.rfind(b',', behind, self.string_start).is_some() {
            let comma = python.rfind(b',', start, self.string_start)?;
            return self.last_part(comma, "{", comma.saturating_add(1));
        }
        if python.rfind(b':', behind, self.string_start).is_some() {
            return keep_string();
        }
        self.until(self.string_start)
    }

    /// The text ends after a comma that no string or bracket follows.
    fn after_comma(&self, comma: isize) -> Option<String> {
        if strip(self.python().from(comma.saturating_add(1))).is_empty() {
            return self.until(comma);
        }
        // Numbers and words of an array.
        if self.opener != b'[' {
            return None;
        }
        self.part_after(comma, "[", &self.outer)
    }

    /// The text ends after a string that no comma or bracket follows.
    fn after_string(&self) -> Option<String> {
        let python = self.python();
        if self.opener == b'[' {
            return Some(format!("{}{}", self.text, self.all));
        }
        let colon = python.rfind(b':', self.string_end, python.end());
        let comma = python.rfind(b',', self.top.saturating_add(1), self.string_start);
        let Some(comma) = comma else { return self.last_part(self.top, "", self.top) };
        let Some(colon) = colon else {
            let start = self.top.max(comma).saturating_add(1);
            if python.rfind(b':', start, self.string_start).is_some() {
                return Some(format!("{}{}", self.text, self.all));
            }
            return self.part_after(comma, "{", &self.all);
        };
        if colon <= comma {
            return None;
        }
        self.part_after(comma, "{", &self.outer)
    }
}

/// Indexes a text as Python does: negative positions count from the end.
#[derive(Copy, Clone)]
struct Python<'t>(&'t str);

impl<'t> Python<'t> {
    fn end(self) -> isize {
        isize::try_from(self.0.len()).unwrap_or(isize::MAX)
    }

    fn position(self, index: isize) -> usize {
        let index = if index < 0 { self.end().saturating_add(index) } else { index };
        usize::try_from(index).unwrap_or(0).min(self.0.len())
    }

    fn from(self, start: isize) -> &'t str {
        self.0.get(self.position(start)..).unwrap_or_default()
    }

    fn until(self, end: isize) -> &'t str {
        self.0.get(..self.position(end)).unwrap_or_default()
    }

    fn rfind(self, wanted: u8, start: isize, end: isize) -> Option<isize> {
        let (start, end) = (self.position(start), self.position(end));
        let part = self.0.as_bytes().get(start..end)?;
        let found = part.iter().rposition(|byte| *byte == wanted)?;
        isize::try_from(start.saturating_add(found)).ok()
    }

    /// True if an odd number of backslashes precedes this position.
    fn is_escaped(self, at: isize) -> bool {
        let before = self.0.as_bytes().get(..self.position(at)).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
    }
}

fn fix(text: &str, strings: PartialStrings, is_top: bool) -> Option<String> {
    fix_parts(text, strings, is_top).map(|(head, tail)| head + &tail)
}

/// Returns the usable start of a text, and the text that completes it.
fn fix_parts(text: &str, strings: PartialStrings, is_top: bool) -> Option<(String, String)> {
    let stripped = strip(text);
    let completer = Completer { strings };
    let (end, completion) = match completer.any(stripped, 0, is_top) {
        Ok(ValueEnd::Whole(end)) => (end, String::new()),
        Ok(ValueEnd::Partial(end, tail)) => (end, tail),
        Ok(ValueEnd::Unusable) | Err(_) => return None,
    };
    // As in the package, the position in the stripped text is used for the whole text.
    let head = if stripped.len() == text.trim_end_matches(is_space).len() {
        Python(text).until(end).to_owned()
    } else {
        let count = Python(stripped).until(end).chars().count();
        text.chars().take(count).collect()
    };
    Some((head, completion))
}

/// The end of a value.
enum ValueEnd {
    /// The value is complete, and ends here.
    Whole(isize),
    /// The value is usable up to this position, if this text follows.
    Partial(isize, String),
    /// The value has no usable part.
    Unusable,
}

/// The ways in which a text is malformed. Containers catch the first.
enum Malformed {
    /// The text ends too early.
    End,
    /// The text isn't JSON.
    Syntax,
}

/// Completes the last value of a text.
struct Completer {
    strings: PartialStrings,
}

impl Completer {
    fn any(&self, text: &str, depth: usize, is_top: bool) -> Result<ValueEnd, Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed::Syntax);
        }
        let Some(first) = text.bytes().next() else { return Err(Malformed::End) };
        match first {
            b'"' => return self.string(text),
            b'0'..=b'9' => return number(text, is_top),
            b'[' => return self.container(text, depth, b']'),
            b'{' => return self.container(text, depth, b'}'),
            _ => {}
        }
        for word in ["null", "true", "false", "Infinity"] {
            if let Some(found) = self::word(text, word) {
                return Ok(found);
            }
        }
        if first == b'-' {
            match text.as_bytes().get(1) {
                None => return Ok(ValueEnd::Unusable),
                Some(b'I') => {}
                Some(_) => return number(text, is_top),
            }
        }
        let word = word(text, "-Infinity").or_else(|| word(text, "NaN"));
        word.ok_or(Malformed::Syntax)
    }

    fn string(&self, text: &str) -> Result<ValueEnd, Malformed> {
        let bytes = text.as_bytes();
        if bytes.first() != Some(&b'"') {
            return Err(Malformed::Syntax);
        }
        let mut at = 1_usize;
        loop {
            match bytes.get(at) {
                Some(b'"') => {
                    return Ok(ValueEnd::Whole(isize::try_from(at).unwrap_or(0).saturating_add(1)));
                }
                Some(b'\\') if at.saturating_add(1) == bytes.len() => break,
                Some(b'\\') => {
                    // The escaped character may have several bytes.
                    let rest = text.get(at.saturating_add(1)..).unwrap_or_default();
                    let length = rest.chars().next().map_or(1, char::len_utf8);
                    at = at.saturating_add(1).saturating_add(length);
                }
                Some(_) => at = at.saturating_add(1),
                None => break,
            }
        }
        if self.strings == PartialStrings::Omit {
            return Ok(ValueEnd::Unusable);
        }
        let end = unfinished_escape(text.get(..at).unwrap_or(text)).unwrap_or(at);
        Ok(ValueEnd::Partial(isize::try_from(end).unwrap_or(0), String::from('"')))
    }

    /// Completes an array or an object.
    fn container(&self, text: &str, depth: usize, closer: u8) -> Result<ValueEnd, Malformed> {
        let mut usable = 1_isize;
        match self.members(text, depth, closer, &mut usable) {
            Err(Malformed::End) => Ok(ValueEnd::Partial(usable, char::from(closer).to_string())),
            other => other,
        }
    }

    fn members(
        &self,
        text: &str,
        depth: usize,
        closer: u8,
        usable: &mut isize,
    ) -> Result<ValueEnd, Malformed> {
        let close = || char::from(closer).to_string();
        let python = Python(text);
        let mut at = 1_isize;
        loop {
            at = skip_blank(text, at);
            if byte_at(text, at)? == closer {
                return Ok(ValueEnd::Whole(at.saturating_add(1)));
            }
            if closer == b'}' {
                match self.string(python.from(at))? {
                    ValueEnd::Whole(end) => at = at.saturating_add(end),
                    _ => return Ok(ValueEnd::Partial(*usable, close())),
                }
                at = skip_blank(text, at);
                if byte_at(text, at)? != b':' {
                    return Err(Malformed::Syntax);
                }
                at = skip_blank(text, at.saturating_add(1));
            }
            match self.any(python.from(at), depth.saturating_add(1), false)? {
                ValueEnd::Unusable => return Ok(ValueEnd::Partial(*usable, close())),
                ValueEnd::Partial(end, tail) => {
                    return Ok(ValueEnd::Partial(at.saturating_add(end), tail + &close()));
                }
                ValueEnd::Whole(end) => {
                    at = at.saturating_add(end);
                    *usable = at;
                }
            }
            at = skip_blank(text, at);
            match byte_at(text, at)? {
                b',' => at = at.saturating_add(1),
                byte if byte == closer => return Ok(ValueEnd::Whole(at.saturating_add(1))),
                _ => return Err(Malformed::Syntax),
            }
        }
    }
}

fn byte_at(text: &str, at: isize) -> Result<u8, Malformed> {
    let index = usize::try_from(at).map_err(|_| Malformed::End)?;
    text.as_bytes().get(index).copied().ok_or(Malformed::End)
}

fn skip_blank(text: &str, at: isize) -> isize {
    let rest = Python(text).from(at);
    let blank = rest.len().saturating_sub(rest.trim_start_matches(is_space).len());
    at.saturating_add(isize::try_from(blank).unwrap_or(0))
}

/// Completes a word, if the text starts with it or is its start.
fn word(text: &str, word: &str) -> Option<ValueEnd> {
    if text.starts_with(word) {
        return Some(ValueEnd::Whole(isize::try_from(word.len()).unwrap_or(0)));
    }
    word.starts_with(text).then(|| ValueEnd::Partial(0, word.to_owned()))
}

/// Completes a number, whose last characters may need a digit behind them.
fn number(text: &str, is_top: bool) -> Result<ValueEnd, Malformed> {
    let bytes = text.as_bytes();
    let is_part = |byte: u8| byte.is_ascii_digit() || is_open_ended(byte);
    let count = bytes.iter().skip(1).take_while(|byte| is_part(**byte)).count();
    let length = count.saturating_add(1);
    let mut end = isize::try_from(length).unwrap_or(0);
    let mut is_shortened = false;
    loop {
        let before = end.saturating_sub(1);
        let from_end = Python(text).end().saturating_add(before);
        let byte = byte_at(text, if before < 0 { from_end } else { before })?;
        if !is_open_ended(byte) {
            break;
        }
        is_shortened = true;
        end = before;
    }
    if is_shortened || length == bytes.len() && !is_top {
        return Ok(ValueEnd::Partial(end, String::new()));
    }
    Ok(ValueEnd::Whole(end))
}

const fn is_open_ended(byte: u8) -> bool {
    matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E')
}

/// Returns the position of an escape sequence that may lack digits at the end of a text.
fn unfinished_escape(text: &str) -> Option<usize> {
    for (escape, width) in [("\\u", 5_usize), ("\\U", 9), ("\\x", 3)] {
        let last = text.char_indices().rev().nth(width.saturating_sub(1));
        let start = last.map_or(0, |(index, _)| index);
        let found = text.get(start..).and_then(|window| window.rfind(escape));
        let Some(found) = found.map(|found| start.saturating_add(found)) else { continue };
        if !Python(text).is_escaped(isize::try_from(found).unwrap_or(0)) {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::python::{Charset, dumps};
    use super::PartialStrings::{Keep, Omit};
    use super::*;

    /// The values are those of `partial_json_parser` 0.2.1.1.post7.
    #[test]
    fn texts_are_completed_as_by_the_package() {
        for (text, strings, expected) in [
            (r#"{"e": 0,"#, Keep, r#"{"e": 0}"#),
            (r#"{"dd": {"b": -7"#, Omit, r#"{"dd": {"b": -7}}"#),
            (r#"{"bb":"}","dd"#, Keep, r#"{"bb": "}"}"#),
            (r#"{"f": {}, "aa": " x\u"#, Omit, r#"{"f": {}}"#),
            (r#"{"gg":{"""#, Keep, r#"{"gg": {}}"#),
            (r#"{"ff":fa"#, Keep, r#"{"ff": false}"#),
            (r#"[-7,true,{"dd":"'a"#, Keep, r#"[-7, true, {"dd": "'a"}]"#),
            (r#"{"ff":  \nx"}"#, Omit, "{}"),
            ("[\n\"\\", Keep, r#"[""]"#),
            ("[\n  \",}é\", ", Omit, r#"[",}é"]"#),
            (r#"['1"]"#, Omit, "[]"),
            ("[null, null", Omit, "[null, null]"),
            ("[\n  {\n   ", Keep, "[{}]"),
            ("\"b'", Keep, r#""b'""#),
            ("\"b'", Omit, "none"),
            (r"n\ull", Keep, "none"),
            ("[\n  x\"\",\n  \"\",\n", Keep, "none"),
            (r#"{"g":"","gg"u:{"gg":""},"dd":{}}"#, Keep, "none"),
            ("]", Keep, "none"),
            ("", Keep, "none"),
        ] {
            let value = value_so_far(text, strings);
            let found = value.map_or(String::from("none"), |value| dumps(&value, Charset::Unicode));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn deep_texts_are_malformed() {
        for text in ["[".repeat(100_000), format!("{{\"a\":1,\"b\":{} \"c\"", "[".repeat(100_000))]
        {
            assert_eq!(value_so_far(&text, Keep), None);
        }
    }
}
