//! Reads binary files. Truncated files are refused.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::ReadError;

/// The unread part of a binary file.
#[derive(Debug, Clone)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
    length: usize,
    format: &'static str,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8], format: &'static str) -> Self {
        Self { rest: bytes, length: bytes.len(), format }
    }

    pub(crate) fn error(&self, what: &str) -> ReadError {
        let offset = self.length.saturating_sub(self.rest.len());
        ReadError::malformed(format!("invalid {} at byte {offset}: {what}", self.format))
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], ReadError> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.error("the file ends early")),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        match self.rest.split_first_chunk() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(self.error("the file ends early")),
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, ReadError> {
        let [byte] = self.array()?;
        Ok(byte)
    }
}
