//! Reads strings and their escapes.

use std::borrow::Cow;

use galatea_codec::json::unescaped_prefix_length;
use galatea_infer::Status;

use super::cursor::JsonReader;

impl<'a> JsonReader<'a> {
    /// Reads a string as bytes, borrowed from the text if it has no escapes.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, [u8]>, Status> {
        self.peek();
        self.consume();
        let plain = self.plain_run()?;
        if self.take(b'"') {
            return Ok(Cow::Borrowed(plain));
        }
        let mut bytes = plain.to_vec();
        while !self.take(b'"') {
            self.escape(&mut bytes)?;
            bytes.extend_from_slice(self.plain_run()?);
        }
        Ok(Cow::Owned(bytes))
    }

    /// Reads a string that must be UTF-8.
    pub(crate) fn text(&mut self) -> Result<Cow<'a, str>, Status> {
        let start = self.clone();
        let invalid = |_| start.error("Invalid encoding in string.");
        match self.string()? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(invalid),
            Cow::Owned(bytes) => String::from_utf8(bytes)
                .map(Cow::Owned)
                .map_err(|error| invalid(error.utf8_error())),
        }
    }

    pub(super) fn skip_string(&mut self) -> Result<(), Status> {
        self.string().map(drop)
    }

    /// Reads up to the next quotation mark or backslash.
    fn plain_run(&mut self) -> Result<&'a [u8], Status> {
        let length = unescaped_prefix_length(self.rest);
        let (run, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, &[]));
        self.rest = rest;
        match rest {
            [b'"' | b'\\', ..] => Ok(run),
            [] | [0, ..] => Err(self.error("Missing a closing quotation mark in string.")),
            // This is RapidJSON 1.1.0's message for a control character.
            [_, ..] => Err(self.error("Invalid escape character in string.")),
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), Status> {
        let start = self.clone();
        self.consume();
        let [kind, rest @ ..] = self.rest else {
            return Err(start.error("Invalid escape character in string."));
        };
        let byte = match kind {
            b'"' | b'\\' | b'/' => *kind,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.rest = rest;
                let character = self.unicode_escape(&start)?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(start.error("Invalid escape character in string.")),
        };
        self.rest = rest;
        bytes.push(byte);
        Ok(())
    }

    fn unicode_escape(&mut self, start: &Self) -> Result<char, Status> {
        let first = self.hex_digits(start)?;
        if !(0xd800..0xe000).contains(&first) {
            return char::from_u32(first).ok_or_else(|| surrogate_error(start));
        }
        if first >= 0xdc00 || !(self.take(b'\\') && self.take(b'u')) {
            return Err(surrogate_error(start));
        }
        let second = self.hex_digits(start)?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(surrogate_error(start));
        }
        let code = join_surrogates(first, second);
        char::from_u32(code).ok_or_else(|| surrogate_error(start))
    }

    fn hex_digits(&mut self, start: &Self) -> Result<u32, Status> {
        let mut value: u32 = 0;
        for _ in 0..4 {
            let digit = match self.rest {
                [byte, ..] => char::from(*byte).to_digit(16),
                [] => None,
            };
            let Some(digit) = digit else {
                return Err(start.error("Incorrect hex digit after \\u escape in string."));
            };
            value = (value << 4) | digit;
            self.consume();
        }
        Ok(value)
    }
}

fn surrogate_error(start: &JsonReader<'_>) -> Status {
    start.error("The surrogate pair in string is invalid.")
}

/// Returns the code point of a surrogate pair: ten bits from each half, plus 0x10000.
fn join_surrogates(first: u32, second: u32) -> u32 {
    let bits = ((first & 0x3ff) << 10) | (second & 0x3ff);
    bits.saturating_add(0x10000)
}
