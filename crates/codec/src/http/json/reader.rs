//! Walking over a JSON text.

use std::borrow::Cow;

use galatea_infer::Status;

use crate::limits::Limits;

use super::number::Number;
use super::text::plain_length;

/// A position in a JSON text.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    pub(super) rest: &'a [u8],
    /// The length of the whole text, by which positions are known.
    length: usize,
}

/// What a value is, by its first character.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

/// How far an array or object has been walked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing but the bracket was read.
    Opened,
    /// A value was handed out.
    Inside,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `text`, behind a byte order mark.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        let rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { rest, length: text.len() }
    }

    #[cold]
    pub(super) fn error(&self, message: &str) -> Status {
        let offset = self.length.saturating_sub(self.rest.len());
        Status::invalid_argument(format!(
            "failed to parse the request JSON buffer: {message} at {offset}"
        ))
    }

    #[cold]
    pub(super) fn invalid_value(&self) -> Status {
        self.error("Invalid value.")
    }

    /// How many bytes are left, which bounds how many values can follow.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next byte that isn't white space, without passing it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let [first, rest @ ..] = self.rest {
            if !matches!(first, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(*first);
            }
            self.rest = rest;
        }
        None
    }

    /// Passes one byte that [`Reader::peek`] has shown.
    #[inline]
    pub(super) fn pass(&mut self) {
        if let [_, rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Passes `byte` if it is next.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        match self.rest {
            [first, rest @ ..] if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// What the next value is.
    #[inline]
    pub(crate) fn kind(&mut self) -> Result<Kind, Status> {
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9' | b'N' | b'I') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            Some(_) => Err(self.invalid_value()),
            None if self.length == 0 => Err(self.error("The document is empty.")),
            None => Err(self.invalid_value()),
        }
    }

    /// Checks that nothing follows the root.
    pub(crate) fn end(&mut self) -> Result<(), Status> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error("The document root must not be followed by other values.")),
        }
    }

    /// Passes the bracket of an array or object that [`Reader::kind`] showed.
    pub(crate) fn open(&mut self) -> Progress {
        self.pass();
        Progress::Opened
    }

    /// Moves to the array's next element; false behind the last.
    #[inline]
    pub(crate) fn next_element(&mut self, progress: &mut Progress) -> Result<bool, Status> {
        if *progress == Progress::Inside {
            return self.following_element();
        }
        *progress = Progress::Inside;
        let empty = self.peek() == Some(b']');
        if empty {
            self.pass();
        }
        Ok(!empty)
    }

    /// Moves to the object's next member and gives its name as it stands in
    /// the text, if it needs no unescaping; `None` behind the last.
    pub(crate) fn next_member(
        &mut self,
        progress: &mut Progress,
    ) -> Result<Option<Cow<'a, [u8]>>, Status> {
        match self.compact_member(progress) {
            Some(name) => Ok(Some(Cow::Borrowed(name))),
            None => self.any_member(progress),
        }
    }

    /// The name of a next member that is written as nearly everybody writes it: without
    /// white space around it and without escapes in it.
    #[inline]
    fn compact_member(&mut self, progress: &mut Progress) -> Option<&'a [u8]> {
        let rest = match (*progress, self.rest) {
            (Progress::Opened, [b'"', rest @ ..]) => rest,
            (Progress::Inside, [b',', b'"', rest @ ..]) => rest,
            _ => return None,
        };
        let (name, rest) = rest.split_at_checked(plain_length(rest))?;
        let [b'"', b':', rest @ ..] = rest else { return None };
        self.rest = rest;
        *progress = Progress::Inside;
        Some(name)
    }

    fn any_member(&mut self, progress: &mut Progress) -> Result<Option<Cow<'a, [u8]>>, Status> {
        let next = self.peek();
        match (*progress, next) {
            (_, Some(b'}')) => {
                self.pass();
                return Ok(None);
            }
            (Progress::Opened, _) => *progress = Progress::Inside,
            (Progress::Inside, Some(b',')) => self.pass(),
            (Progress::Inside, _) => {
                return Err(self.error("Missing a comma or } after an object member."));
            }
        }
        if self.peek() != Some(b'"') {
            return Err(self.error("Missing a name for object member."));
        }
        let name = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.error("Missing a colon after a name of object member."));
        }
        self.pass();
        Ok(Some(name))
    }

    /// Opens an array that [`Reader::peek`] showed; true if it is empty, and
    /// then it is closed again.
    pub(crate) fn open_array(&mut self) -> bool {
        self.pass();
        let empty = self.peek() == Some(b']');
        if empty {
            self.pass();
        }
        empty
    }

    /// Moves behind the value just read; false if that closed its array.
    #[inline]
    pub(crate) fn following_element(&mut self) -> Result<bool, Status> {
        match self.peek() {
            Some(b',') => {
                self.pass();
                Ok(true)
            }
            Some(b']') => {
                self.pass();
                Ok(false)
            }
            _ => Err(self.error("Missing a comma or ] after an array element.")),
        }
    }

    /// Reads `true` or `false`.
    pub(crate) fn boolean(&mut self) -> Result<bool, Status> {
        let word: &[u8] = if self.peek() == Some(b't') { b"true" } else { b"false" };
        self.word(word)?;
        Ok(word.len() == 4)
    }

    pub(super) fn word(&mut self, word: &[u8]) -> Result<(), Status> {
        self.rest = self.rest.strip_prefix(word).ok_or_else(|| self.invalid_value())?;
        Ok(())
    }

    /// Reads a number.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<Number, Status> {
        super::number::read(self)
    }

    /// Passes over a value of any kind and checks its syntax.
    pub(crate) fn skip_value(&mut self) -> Result<(), Status> {
        let mut open: Vec<(Kind, Progress)> = Vec::new();
        loop {
            match self.kind()? {
                kind @ (Kind::Object | Kind::Array) => {
                    if open.len() >= Limits::JSON_DEPTH_MAX {
                        return Err(depth_exceeded());
                    }
                    let progress = self.open();
                    open.push((kind, progress));
                }
                Kind::String => self.skip_string()?,
                Kind::Number => drop(self.number()?),
                Kind::Bool => drop(self.boolean()?),
                Kind::Null => self.word(b"null")?,
            }
            if !self.advance(&mut open)? {
                return Ok(());
            }
        }
    }

    /// Closes what is finished; false when nothing is left open.
    fn advance(&mut self, open: &mut Vec<(Kind, Progress)>) -> Result<bool, Status> {
        while let Some((kind, progress)) = open.last_mut() {
            let more = if *kind == Kind::Array {
                self.next_element(progress)?
            } else {
                self.next_member(progress)?.is_some()
            };
            if more {
                return Ok(true);
            }
            open.pop();
        }
        Ok(false)
    }
}

/// The refusal of a text that is nested too deeply.
pub(crate) fn depth_exceeded() -> Status {
    Status::invalid_argument(format!(
        "JSON nesting depth exceeds maximum allowed limit ({})",
        Limits::JSON_DEPTH_MAX
    ))
}
