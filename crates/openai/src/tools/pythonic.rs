//! Calls in the form of a list in Python, as the whole text: `[f(a=1), g()]`.

use super::output::EventOutput;
use super::python::{Charset, dumps};
use super::python_literal::PythonReader;
use crate::json::{JsonValue, Object};

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum PythonicState {
    /// The text up to the list.
    Start,
    /// A call, up to its last parenthesis.
    Call(CallEnd),
    /// The text after a call.
    Between,
    /// Text for the user.
    Text,
}

/// The search for the end of a call, which is sent as a whole.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct CallEnd {
    /// The number of bytes read.
    length: usize,
    depth: usize,
    quote: Option<u8>,
    is_escaped: bool,
}

impl CallEnd {
    /// Reads a text that was read up to `length` before. Returns true at the end of the call.
    fn read(&mut self, text: &str) -> bool {
        for byte in text.bytes().skip(self.length) {
            self.length = self.length.saturating_add(1);
            match (self.quote, byte) {
                (Some(_), _) if self.is_escaped => self.is_escaped = false,
                (Some(_), b'\\') => self.is_escaped = true,
                (Some(quote), _) if quote == byte => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b'(' | b'[' | b'{') => self.depth = self.depth.saturating_add(1),
                (None, b')' | b']' | b'}') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return true;
                    }
                }
                (None, _) => {}
            }
        }
        false
    }
}

/// The calls of a stream.
#[derive(Debug)]
pub(super) struct PythonicStream {
    state: PythonicState,
}

impl PythonicStream {
    pub(super) const fn new() -> Self {
        Self { state: PythonicState::Start }
    }

    /// Processes the start of a text. Returns its length, or `None` if more text is needed.
    pub(super) fn step(
        &mut self,
        rest: &str,
        is_last: bool,
        out: &mut EventOutput<'_>,
    ) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        let behind = rest.trim_start();
        let space = rest.len().saturating_sub(behind.len());
        match &mut self.state {
            PythonicState::Text => {
                out.content(rest);
                Some(rest.len())
            }
            PythonicState::Start if behind.is_empty() && !is_last => None,
            PythonicState::Start => {
                // The bracket stays with the first call, in case that it is none.
                let is_list = behind.starts_with('[');
                let start = CallEnd { length: space.saturating_add(1), ..CallEnd::default() };
                self.state = if is_list { PythonicState::Call(start) } else { PythonicState::Text };
                Some(0)
            }
            PythonicState::Call(end) => {
                if !end.read(rest) {
                    if !is_last {
                        return None;
                    }
                    self.state = PythonicState::Text;
                    return Some(0);
                }
                let length = end.length;
                let call = rest.get(..length)?.trim_start();
                let call = if *out.count == 0 { call.strip_prefix('[')? } else { call };
                self.state = match read_call(call) {
                    Some((name, arguments)) => {
                        out.begin(name);
                        out.arguments(&arguments);
                        PythonicState::Between
                    }
                    None => {
                        self.state = PythonicState::Text;
                        return Some(0);
                    }
                };
                Some(length)
            }
            PythonicState::Between => {
                if behind.is_empty() {
                    return Some(rest.len());
                }
                match behind.chars().next() {
                    Some(',') => self.state = PythonicState::Call(CallEnd::default()),
                    // Only space may follow the list.
                    Some(']') => {}
                    _ => {
                        self.state = PythonicState::Text;
                        return Some(space);
                    }
                }
                Some(space.saturating_add(1))
            }
        }
    }
}

/// Reads a call: a name, and named arguments in parentheses.
fn read_call(text: &str) -> Option<(&str, String)> {
    let mut reader = PythonReader::new(text);
    let name = reader.name()?;
    let mut arguments: Vec<(Box<str>, JsonValue)> = Vec::new();
    if !reader.take('(') {
        return None;
    }
    while !reader.take(')') {
        let argument = reader.name()?;
        if !reader.take('=') {
            return None;
        }
        arguments.push((argument.into(), reader.value(0)?));
        if !reader.take(',') {
            if reader.take(')') {
                break;
            }
            return None;
        }
    }
    let arguments = JsonValue::Object(Object::from_members(arguments));
    reader.is_at_end().then(|| (name, dumps(&arguments, Charset::Unicode)))
}
