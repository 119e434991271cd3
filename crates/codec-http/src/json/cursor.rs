//! The position in a JSON text, and the operations on single bytes.

use galatea_infer::Status;

/// A position in a JSON text.
#[derive(Clone)]
pub(crate) struct JsonReader<'a> {
    pub(super) rest: &'a [u8],
    /// The whole text, from which offsets are computed.
    text: &'a [u8],
}

impl<'a> JsonReader<'a> {
    /// Creates a reader at the start of `text`, after any byte order mark.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        let rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { rest, text }
    }

    /// Returns true if the whole text is empty or blank.
    #[cold]
    pub(super) fn is_empty_document(&self) -> bool {
        self.text.iter().all(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'))
    }

    #[cold]
    pub(super) fn error(&self, message: &str) -> Status {
        let offset = self.text.len().saturating_sub(self.rest.len());
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

    /// Skips whitespace and returns the next byte without consuming it.
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
        if let Some(rest) = self.rest.strip_prefix(word) {
            self.rest = rest;
            return Ok(());
        }
        // As in Triton, the error is at the first byte that differs.
        let same = self.rest.iter().zip(word).take_while(|(a, b)| a == b).count();
        self.rest = self.rest.get(same..).unwrap_or_default();
        Err(self.invalid_value())
    }
}
