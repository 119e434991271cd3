//! A string in the last call's arguments that goes on with the next piece.
//!
//! Triton's parsers read the whole text again after each piece, so a long string takes a time that
//! grows with the square of its length. If a piece only extends the string at the end of the text,
//! the arguments change in one place, and the event follows from that change.

use super::python::{Charset, dumps, is_space};
use crate::json::JsonValue;

/// The character that is appended to find out whether the text ends inside a string.
pub(super) const PROBE: char = 'x';

/// The arguments so far, which end inside a string.
#[derive(Debug)]
pub(super) struct OpenString {
    charset: Charset,
    /// The arguments up to the end of the text.
    arguments: String,
    /// The quotation mark and the brackets that complete them.
    closers: String,
}

impl OpenString {
    /// Compares the arguments in a text with those in the same text followed by the probe. `None` if
    /// the probe doesn't extend a string at the end of the arguments.
    pub(super) fn new(arguments: &str, probed: &str, charset: Charset) -> Option<Self> {
        let (start, closers) = probed.rsplit_once(PROBE)?;
        let brackets = closers.strip_prefix('"')?;
        let is_end = brackets.bytes().all(|byte| matches!(byte, b'}' | b']'));
        if !is_end || arguments.strip_suffix(closers) != Some(start) {
            return None;
        }
        Some(Self { charset, arguments: start.to_owned(), closers: closers.to_owned() })
    }

    /// True if the string may go on after this text. The parsers drop space at the end of a text,
    /// and misread some text after a backslash.
    pub(super) fn may_follow(text: &str) -> bool {
        text.chars().next_back().is_some_and(|last| last != '\\' && !is_space(last))
    }

    /// True if a piece extends any open string and does nothing else. The marker of Mistral's calls
    /// ends with a bracket.
    pub(super) fn is_extended_by(piece: &str) -> bool {
        let is_plain = |byte: u8| byte >= b' ' && !matches!(byte, b'"' | b'\\' | b']');
        Self::may_follow(piece) && piece.bytes().all(is_plain)
    }

    /// The arguments up to the end of the text.
    pub(super) fn arguments(&self) -> &str {
        &self.arguments
    }

    /// Returns the piece in the form in which the arguments contain it.
    pub(super) fn escaped(&self, piece: &str) -> String {
        let quoted = dumps(&JsonValue::text(piece), self.charset);
        let inside = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inside.unwrap_or_default().to_owned()
    }

    /// Returns the ends of the arguments after and before a piece: their start is the same, and at
    /// most this many bytes of it are included.
    pub(super) fn ends(&self, escaped: &str, bytes_max: usize) -> OpenEnds {
        let mut start = self.arguments.len().saturating_sub(bytes_max);
        while !self.arguments.is_char_boundary(start) {
            start = start.saturating_sub(1);
        }
        let shared = self.arguments.get(start..).unwrap_or_default();
        OpenEnds {
            now: [shared, escaped, &self.closers].concat(),
            earlier: [shared, &self.closers].concat(),
            is_whole: start == 0,
        }
    }

    /// Appends a piece.
    pub(super) fn push(&mut self, escaped: &str) {
        self.arguments.push_str(escaped);
    }

    /// The memory for the arguments.
    pub(super) const fn held_bytes(&self) -> usize {
        self.arguments.capacity()
    }
}

/// The ends of the arguments.
pub(super) struct OpenEnds {
    pub(super) now: String,
    pub(super) earlier: String,
    /// True if the ends are all of the arguments.
    pub(super) is_whole: bool,
}
