//! JSON that is read as it arrives, without being kept.

use super::output::EventOutput;
use crate::json::parse_text;

/// The search for the end of a value.
#[derive(Debug, Default)]
pub(super) struct ValueScanner {
    depth: usize,
    has_begun: bool,
    in_string: bool,
    is_escaped: bool,
    is_done: bool,
}

impl ValueScanner {
    pub(super) const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the number of bytes that belong to the value.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            let length = match self.step(*byte) {
                BytePlace::Inside => continue,
                BytePlace::Last => index.saturating_add(1),
                BytePlace::Behind => index,
            };
            self.is_done = true;
            return length;
        }
        bytes.len()
    }

    fn step(&mut self, byte: u8) -> BytePlace {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.in_string = false;
                    return if self.depth == 0 { BytePlace::Last } else { BytePlace::Inside };
                }
                _ => {}
            }
            return BytePlace::Inside;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => match self.depth {
                0 => return BytePlace::Behind,
                1 => return BytePlace::Last,
                depth => self.depth = depth.saturating_sub(1),
            },
            b',' | b' ' | b'\n' | b'\r' | b'\t' | b'<' | b'`' if self.depth == 0 && has_begun => {
                return BytePlace::Behind;
            }
            _ => {}
        }
        BytePlace::Inside
    }
}

/// The place of a byte.
enum BytePlace {
    Inside,
    Last,
    Behind,
}

/// The place in an object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ObjectPlace {
    Start,
    FirstName,
    Name,
    InName,
    Colon,
    Value,
    InValue,
    Comma,
    Done,
    Malformed,
}

/// The meaning of a member.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

/// A call in the form of a JSON object with the members `name` and `arguments`. The arguments are
/// sent as they arrive, once the name is known.
#[derive(Debug)]
pub(super) struct CallScanner {
    place: ObjectPlace,
    member: Member,
    value: ValueScanner,
    /// The name of the member or of the function.
    captured: String,
    /// Arguments that precede the name.
    early: String,
    has_begun: bool,
    has_arguments: bool,
}

impl CallScanner {
    pub(super) fn new() -> Self {
        Self {
            place: ObjectPlace::Start,
            member: Member::Other,
            value: ValueScanner::default(),
            captured: String::new(),
            early: String::new(),
            has_begun: false,
            has_arguments: false,
        }
    }

    /// The memory for the parts that can't be sent yet.
    pub(super) const fn held_bytes(&self) -> usize {
        self.captured.capacity().saturating_add(self.early.capacity())
    }

    /// True if the call was sent, at least in part.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// True if the object is complete.
    pub(super) fn is_done(&self) -> bool {
        self.place == ObjectPlace::Done
    }

    /// True if the text isn't a call.
    pub(super) fn is_malformed(&self) -> bool {
        self.place == ObjectPlace::Malformed
    }

    /// Reads a text up to the end of the object or a mistake. Returns the number of bytes read.
    pub(super) fn feed(&mut self, text: &str, out: &mut EventOutput<'_>) -> usize {
        let mut at = 0_usize;
        while let Some(byte) = text.as_bytes().get(at).copied() {
            match self.place {
                ObjectPlace::Done | ObjectPlace::Malformed => break,
                ObjectPlace::InName | ObjectPlace::InValue => {
                    let rest = text.get(at..).unwrap_or_default();
                    at = at.saturating_add(self.part(rest, out));
                }
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => at = at.saturating_add(1),
                _ => {
                    if self.between(byte, out) {
                        at = at.saturating_add(1);
                    }
                }
            }
        }
        at
    }

    /// Processes a byte between names and values. Returns false if the byte is still to be read.
    fn between(&mut self, byte: u8, out: &mut EventOutput<'_>) -> bool {
        let place = match (self.place, byte) {
            (ObjectPlace::Start, b'{') => ObjectPlace::FirstName,
            (ObjectPlace::FirstName | ObjectPlace::Comma, b'}') => self.end(out),
            (ObjectPlace::FirstName | ObjectPlace::Name, b'"') => ObjectPlace::InName,
            (ObjectPlace::Colon, b':') => ObjectPlace::Value,
            (ObjectPlace::Comma, b',') => ObjectPlace::Name,
            (ObjectPlace::Value, b'}' | b']' | b',' | b':') => ObjectPlace::Malformed,
            (ObjectPlace::Value, _) => ObjectPlace::InValue,
            _ => ObjectPlace::Malformed,
        };
        if matches!(place, ObjectPlace::InName | ObjectPlace::InValue) {
            self.value = ValueScanner::default();
            self.captured.clear();
        }
        self.place = place;
        !matches!(place, ObjectPlace::InName | ObjectPlace::InValue | ObjectPlace::Malformed)
    }

    /// Processes the next part of a name or a value.
    fn part(&mut self, text: &str, out: &mut EventOutput<'_>) -> usize {
        let length = self.value.feed(text.as_bytes());
        let part = text.get(..length).unwrap_or_default();
        match (self.place, self.member) {
            (ObjectPlace::InName, _) | (_, Member::Name) => self.captured.push_str(part),
            (_, Member::Arguments) if self.has_begun => out.arguments(part),
            (_, Member::Arguments) => self.early.push_str(part),
            (_, Member::Other) => {}
        }
        if self.value.is_done() {
            self.place = self.after_part(out);
        }
        length
    }

    fn after_part(&mut self, out: &mut EventOutput<'_>) -> ObjectPlace {
        let text = || {
            let value = parse_text(&self.captured).ok()?;
            value.as_str().map(str::to_owned)
        };
        if self.place == ObjectPlace::InName {
            let Some(name) = text() else { return ObjectPlace::Malformed };
            self.member = match &*name {
                "name" if !self.has_begun => Member::Name,
                "arguments" | "parameters" if !self.has_arguments => {
                    self.has_arguments = true;
                    Member::Arguments
                }
                _ => Member::Other,
            };
            return ObjectPlace::Colon;
        }
        if self.member == Member::Name {
            let Some(name) = text().filter(|name| !name.is_empty()) else {
                return ObjectPlace::Malformed;
            };
            self.has_begun = true;
            out.begin(&name);
            out.arguments(&std::mem::take(&mut self.early));
        }
        ObjectPlace::Comma
    }

    fn end(&self, out: &mut EventOutput<'_>) -> ObjectPlace {
        if !self.has_begun {
            return ObjectPlace::Malformed;
        }
        if !self.has_arguments {
            out.arguments("{}");
        }
        ObjectPlace::Done
    }
}
