//! Frames between the server and a worker: encoding and decoding, without I/O.
//!
//! A frame consists of the length of its body and the body. The body consists of a kind and fields
//! in little-endian order. Strings and bytes are preceded by their length. The worker is not
//! trusted: everything that it sends is checked here. An error turns the frame into a
//! [`MalformedFrame`], after which the worker is killed.
//!
//! Both ends share one table of kinds, places and bounds (`numbers.rs`). The order of the fields is
//! implemented twice, because each end reads them into its own structures. The worker's code is
//! designed to execute few Python instructions.

mod from_worker;
mod numbers;
mod to_worker;

use std::fmt;

pub(crate) use from_worker::{
    BatchResult, Call, ExecutionFrame, PreferredMemory, SecondSocketFrame, WirePlace, WireResponse,
    WireResult, WireTensor,
};
pub(crate) use numbers::bounds::INLINE_BYTES_MAX;
pub(crate) use numbers::{to_a, to_b};
pub(crate) use to_worker::{CallReply, ContentPlace, EncodedInput, Frame};

/// The maximum length of a frame's body. Long tensors aren't sent in frames.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 20;

/// A frame that no Galatea worker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedFrame(pub(crate) &'static str);

impl fmt::Display for MalformedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

/// Reads the fields of a body.
pub(crate) struct FrameReader<'a> {
    rest: &'a [u8],
}

impl<'a> FrameReader<'a> {
    pub(crate) const fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedFrame> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(MalformedFrame("a field leads over the end"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedFrame> {
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(MalformedFrame("a number leads over the end"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, MalformedFrame> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, MalformedFrame> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedFrame> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, MalformedFrame> {
        self.array().map(i64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], MalformedFrame> {
        let length = self.u32()?;
        self.take(usize::try_from(length).map_err(|_| MalformedFrame("a length"))?)
    }

    fn text(&mut self) -> Result<&'a str, MalformedFrame> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MalformedFrame("a text that is not UTF-8"))
    }

    fn owned_text(&mut self) -> Result<String, MalformedFrame> {
        self.text().map(str::to_owned)
    }

    /// Reads a list. `bytes_min` is the minimum encoded size of an element.
    fn list<T>(
        &mut self,
        bytes_min: usize,
        element: impl Fn(&mut Self) -> Result<T, MalformedFrame>,
    ) -> Result<Vec<T>, MalformedFrame> {
        let count = usize::try_from(self.u32()?).map_err(|_| MalformedFrame("a count"))?;
        let fits = count.checked_mul(bytes_min).is_some_and(|bytes| bytes <= self.rest.len());
        if !fits {
            return Err(MalformedFrame("a list that is longer than its frame"));
        }
        (0..count).map(|_| element(self)).collect()
    }

    fn end(&self) -> Result<(), MalformedFrame> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(MalformedFrame("bytes behind the last field"))
        }
    }
}

/// Splits the bytes from a socket into frames.
#[derive(Default)]
pub(crate) struct FrameSplitter {
    buffer: Vec<u8>,
    /// The length of the buffer's part that has already been returned as frames.
    used: usize,
}

impl FrameSplitter {
    /// The space for the next bytes from the socket.
    pub(crate) fn space(&mut self) -> &mut Vec<u8> {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        let wanted = self.missing().unwrap_or_default().max(READ_BYTES);
        self.buffer.reserve(wanted);
        &mut self.buffer
    }

    /// The number of bytes that the next frame still lacks, if its length is known.
    fn missing(&self) -> Option<usize> {
        let rest = self.buffer.get(self.used..)?;
        let length = rest.first_chunk().map(|length| u32::from_le_bytes(*length))?;
        let whole = usize::try_from(length).ok()?.checked_add(4)?;
        Some(whole.min(FRAME_BYTES_MAX).saturating_sub(rest.len()))
    }

    /// The body of the next frame; `None` if it is incomplete.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, MalformedFrame> {
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        let Some((length, behind)) = rest.split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > FRAME_BYTES_MAX {
            return Err(MalformedFrame("a frame that is too long"));
        }
        let Some(body) = behind.get(..length) else { return Ok(None) };
        self.used = self.used.saturating_add(length).saturating_add(4);
        Ok(Some(body))
    }
}

/// The maximum number of bytes to read from a socket at once.
const READ_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_wherever_the_socket_cuts_them() {
        let stream = [&[3, 0, 0, 0][..], b"abc", &[0, 0, 0, 0], &[1, 0, 0, 0], b"d"].concat();
        for cut in 0..=stream.len() {
            let mut splitter = FrameSplitter::default();
            let mut found = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                splitter.space().extend_from_slice(part);
                while let Some(body) = splitter.next().unwrap() {
                    found.push(body.to_vec());
                }
            }
            assert_eq!(found, [b"abc".to_vec(), Vec::new(), b"d".to_vec()], "{cut}");
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused() {
        let mut splitter = FrameSplitter::default();
        splitter.space().extend_from_slice(&[0xff; 4]);
        assert_eq!(splitter.next(), Err(MalformedFrame("a frame that is too long")));
    }

    #[test]
    fn no_field_leads_over_the_end() {
        let mut fields = FrameReader::new(&[4, 0, 0, 0, b'a', b'b']);
        assert!(fields.bytes().is_err());
        assert!(FrameReader::new(&[1, 2]).u32().is_err());
        assert!(FrameReader::new(&[0xff; 8]).list(1, FrameReader::u8).is_err());
        let mut fields = FrameReader::new(&[2, 0, 0, 0, 7, 8]);
        assert_eq!(fields.list(1, FrameReader::u8), Ok(vec![7, 8]));
        assert_eq!(fields.end(), Ok(()));
    }
}
