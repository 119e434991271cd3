//! The position in a JSON text, and the operations on single bytes.

use galatea_infer::Status;

/// A position in a JSON text.
#[derive(Clone)]
pub(crate) struct JsonReader<'a> {
    pub(super) rest: &'a [u8],
    /// The length of the whole text, to compute offsets.
    length: usize,
}

impl<'a> JsonReader<'a> {
    /// Makes a reader at the start of `text`; skips a byte order mark.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        let rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { rest, length: text.len() }
    }

    /// Whether the whole text is empty.
    pub(super) const fn is_empty_document(&self) -> bool {
        self.length == 0
    }

    #[cold]
    pub(super) fn error(&self, message: &str) -> Status {
        let offset = self.length.saturating_sub(self.rest.len());
        Status::internal(format!("failed to parse the request JSON buffer: {message} at {offset}"))
    }

    #[cold]
    pub(super) fn invalid_value(&self) -> Status {
        self.error("Invalid value.")
    }

    /// The number of bytes left, which limits the number of values left.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Skips white space and returns the next byte without consuming it.
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

    /// Consumes the byte that [`JsonReader::peek`] returned.
    #[inline]
    pub(super) fn consume(&mut self) {
        if let [_, rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Consumes `byte` if it is next.
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

    pub(super) fn expect_word(&mut self, word: &[u8]) -> Result<(), Status> {
        self.rest = self.rest.strip_prefix(word).ok_or_else(|| self.invalid_value())?;
        Ok(())
    }
}
