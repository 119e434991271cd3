//! Reads protobuf messages from a file.
//!
//! All functions return `None` if the file doesn't contain such a message.

use std::fs::File;
use std::io::{BufReader, Read};

/// Reads a message field by field. Unneeded fields are skipped, because a model consists mostly of
/// weights.
pub(super) struct FieldReader {
    file: BufReader<File>,
    /// The number of bytes that have not been read yet.
    remaining: u64,
}

impl FieldReader {
    pub(super) const fn new(file: BufReader<File>, byte_size: u64) -> Self {
        Self { file, remaining: byte_size }
    }

    /// The number of bytes that have not been read yet.
    pub(super) const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The number of the next field, and the length of its value if the value is a string, bytes or
    /// a message. Other values are skipped.
    pub(super) fn next(&mut self) -> Option<(u64, Option<u64>)> {
        let key = self.varint()?;
        let length = match key & 7 {
            0 => self.varint().map(|_| None)?,
            1 => self.skip(8).map(|()| None)?,
            2 => Some(self.varint().filter(|length| *length <= self.remaining)?),
            5 => self.skip(4).map(|()| None)?,
            _ => return None,
        };
        Some((key >> 3, length))
    }

    /// Reads a message of `length` bytes and returns its string field `number`.
    pub(super) fn string_field(&mut self, number: u64, length: u64) -> Option<Option<String>> {
        let end = self.remaining.checked_sub(length)?;
        let mut value = None;
        while self.remaining > end {
            match self.next()? {
                (field, Some(length)) if field == number => {
                    value = Some(String::from_utf8(self.bytes(length)?).ok()?);
                }
                (_, length) => self.skip(length.unwrap_or(0))?,
            }
        }
        (self.remaining == end).then_some(value)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.read(&mut byte)?;
            let [byte] = byte;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn bytes(&mut self, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read(&mut bytes)?;
        Some(bytes)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        self.remaining = self.remaining.checked_sub(u64::try_from(bytes.len()).ok()?)?;
        self.file.read_exact(bytes).ok()
    }

    pub(super) fn skip(&mut self, length: u64) -> Option<()> {
        self.remaining = self.remaining.checked_sub(length)?;
        self.file.seek_relative(i64::try_from(length).ok()?).ok()
    }
}
