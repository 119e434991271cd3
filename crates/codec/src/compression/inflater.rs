//! Decompression in slices, within a limit.

use std::sync::Arc;

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress};
use galatea_gate::ledger::{MemoryAccount, MemoryLimitExceeded};

use crate::charged_vec::ChargedVec;

/// The format that an [`Inflater`] expects.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CompressionFormat {
    /// A gzip member.
    Gzip,
    /// A zlib stream.
    Zlib,
    /// Either format, recognized by its first bytes.
    Either,
}

/// The way a stream ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CompressedStreamEnd {
    /// The stream is complete and its checksum is correct.
    Complete,
    /// The input ended before the stream did.
    Truncated,
    /// The stream is malformed or needs a preset dictionary. The output contains everything before
    /// that point.
    Damaged,
}

/// The state that [`Inflater::advance`] reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InflateProgress {
    /// The budget is used up, and there is more input.
    Paused,
    /// The stream has ended.
    Ended(CompressedStreamEnd),
    /// The output would exceed its limit.
    TooLong,
    /// The memory limit leaves no room for the output.
    Exhausted(MemoryLimitExceeded),
}

/// Inflates one stream. Input after the end of the stream is not read.
///
/// The output grows with the inflated bytes and never beyond its limit. No number in the input
/// determines its size.
pub struct Inflater {
    input: Bytes,
    read: usize,
    stream: Decompress,
    output: ChargedVec,
    account: Arc<MemoryAccount>,
    bytes_max: usize,
}

/// The size of zlib's largest window, in bits.
const WINDOW_BITS: u8 = 15;

/// The first bytes of the gzip format.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The number of input bytes processed at once. They inflate to at most a thousand times as many
/// bytes, which limits how far a budget can be exceeded.
const INPUT_BYTES: usize = 512;

/// The initial size of the output, in bytes.
const OUTPUT_BYTES: usize = 4 << 10;

impl Inflater {
    /// Creates an inflater for `input` with at most `bytes_max` bytes of output, which are charged
    /// to `account`.
    #[must_use]
    pub fn new(
        input: Bytes,
        format: CompressionFormat,
        bytes_max: u64,
        account: Arc<MemoryAccount>,
    ) -> Self {
        let is_gzip = match format {
            CompressionFormat::Gzip => true,
            CompressionFormat::Zlib => false,
            CompressionFormat::Either => input.starts_with(&GZIP_MAGIC),
        };
        let stream = if is_gzip {
            Decompress::new_gzip(WINDOW_BITS)
        } else {
            Decompress::new_with_window_bits(true, WINDOW_BITS)
        };
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Self { input, read: 0, stream, output: ChargedVec::default(), account, bytes_max }
    }

    /// Inflates until about `budget` more bytes have been read or written.
    pub fn advance(&mut self, budget: usize) -> InflateProgress {
        let done = |inflater: &Self| inflater.read.saturating_add(inflater.output.len());
        let end = done(self).saturating_add(budget);
        while done(self) < end {
            let (read, length) = (self.read, self.output.len());
            match self.step() {
                Ok(None) if read != self.read || length != self.output.len() => {}
                // Nothing moves although there is room, so the input is too short.
                Ok(None) if self.is_all_read() => {
                    return InflateProgress::Ended(CompressedStreamEnd::Truncated);
                }
                Ok(None) => return InflateProgress::Ended(CompressedStreamEnd::Damaged),
                Ok(Some(end)) => return InflateProgress::Ended(end),
                Err(InflateStop::TooLong) => return InflateProgress::TooLong,
                Err(InflateStop::Exhausted(exhausted)) => {
                    return InflateProgress::Exhausted(exhausted);
                }
            }
        }
        InflateProgress::Paused
    }

    /// The number of input bytes that have not been read.
    #[must_use]
    pub fn unread_len(&self) -> usize {
        self.input.len().saturating_sub(self.read)
    }

    /// The number of bytes inflated so far.
    #[must_use]
    pub const fn inflated_len(&self) -> usize {
        self.output.len()
    }

    /// Returns the inflated bytes.
    #[must_use]
    pub fn into_output(mut self) -> Bytes {
        // The unused part of a buffer that has just grown may be as large as its contents.
        if self.output.bytes_mut().capacity() / 4 > self.output.len() / 3 {
            self.output.shrink();
        }
        self.output.into_bytes()
    }

    fn is_all_read(&self) -> bool {
        self.read >= self.input.len()
    }

    /// Inflates a piece of the input, as far as the output has room.
    fn step(&mut self) -> Result<Option<CompressedStreamEnd>, InflateStop> {
        self.grow_if_full().map_err(InflateStop::Exhausted)?;
        let output = self.output.bytes_mut();
        let piece = self.input.get(self.read..).unwrap_or_default();
        let piece = piece.get(..INPUT_BYTES).unwrap_or(piece);
        let (read, written) = (self.stream.total_in(), self.stream.total_out());
        // The capacity may exceed the limit because an allocator may provide more than requested.
        let has_room = output.len() < output.capacity().min(self.bytes_max);
        let status = if has_room {
            self.stream.decompress_vec(piece, output, FlushDecompress::None)
        } else {
            self.stream.decompress(piece, &mut [0], FlushDecompress::None)
        };
        let written = self.stream.total_out() != written;
        if (written && !has_room) || self.output.len() > self.bytes_max {
            return Err(InflateStop::TooLong);
        }
        let read = self.stream.total_in().saturating_sub(read);
        self.read = self.read.saturating_add(usize::try_from(read).unwrap_or(usize::MAX));
        match status {
            Ok(flate2::Status::StreamEnd) => Ok(Some(CompressedStreamEnd::Complete)),
            Ok(flate2::Status::Ok | flate2::Status::BufError) => Ok(None),
            Err(_) => Ok(Some(CompressedStreamEnd::Damaged)),
        }
    }

    /// Doubles the output's memory, up to its limit, if the memory is full.
    fn grow_if_full(&mut self) -> Result<(), MemoryLimitExceeded> {
        if self.output.len() < self.output.bytes_mut().capacity() {
            return Ok(());
        }
        let capacity = self.output.len().saturating_mul(2).max(OUTPUT_BYTES).min(self.bytes_max);
        self.output.reserve_exact(capacity, &self.account)
    }
}

/// The reason why inflating stops before the end of the stream.
enum InflateStop {
    TooLong,
    Exhausted(MemoryLimitExceeded),
}

#[cfg(test)]
mod tests {
    use super::super::{ContentCoding, DeflateLevel, compress};
    use galatea_gate::ledger::MemoryLedger;

    use super::*;

    fn zeros(length: usize, coding: ContentCoding) -> Vec<u8> {
        compress(&[Bytes::from(vec![0; length])], coding, DeflateLevel::DEFAULT)
    }

    fn inflater(input: Bytes, format: CompressionFormat, bytes_max: u64) -> Inflater {
        Inflater::new(input, format, bytes_max, Arc::new(MemoryAccount::unlimited()))
    }

    /// Inflates everything. Returns the final state and the inflated bytes.
    fn inflate(input: &[u8], bytes_max: u64) -> (InflateProgress, Bytes) {
        let mut inflater =
            inflater(Bytes::copy_from_slice(input), CompressionFormat::Either, bytes_max);
        let progress = inflater.advance(usize::MAX);
        assert_eq!(inflater.advance(0), InflateProgress::Paused);
        (progress, inflater.into_output())
    }

    #[test]
    fn the_limit_is_exact_and_bounds_the_memory() {
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            for length in [1, OUTPUT_BYTES - 1, OUTPUT_BYTES, OUTPUT_BYTES + 1, 100_000] {
                let input = zeros(length, coding);
                let limit = length as u64;
                let (progress, output) = inflate(&input, limit);
                assert_eq!(
                    progress,
                    InflateProgress::Ended(CompressedStreamEnd::Complete),
                    "{length}"
                );
                assert_eq!(output, vec![0; length]);
                assert_eq!(inflate(&input, limit - 1).0, InflateProgress::TooLong, "{length}");
            }
            let bomb = Bytes::from(zeros(64 << 20, coding));
            assert!(bomb.len() < 70_000);
            let mut inflater = inflater(bomb, CompressionFormat::Either, 1 << 20);
            assert_eq!(inflater.advance(usize::MAX), InflateProgress::TooLong);
            assert!(inflater.output.bytes_mut().capacity() <= 1 << 20);
        }
    }

    #[test]
    fn output_is_charged_before_it_is_written() {
        let ledger = Arc::new(MemoryLedger::new(Some(1 << 20)));
        let account = Arc::new(MemoryAccount::without_base(ledger.clone()));
        let inflate = |length| {
            let input = Bytes::from(zeros(length, ContentCoding::Gzip));
            let mut inflater =
                Inflater::new(input, CompressionFormat::Gzip, u64::MAX, account.clone());
            (inflater.advance(usize::MAX), inflater.into_output())
        };
        let (progress, output) = inflate(700_000);
        assert_eq!(progress, InflateProgress::Ended(CompressedStreamEnd::Complete));
        assert!((700_000..1_000_000).contains(&ledger.held()), "{}", ledger.held());
        assert!(matches!(inflate(700_000).0, InflateProgress::Exhausted(_)));
        drop(output);
        assert_eq!(ledger.held(), 0);
        assert!(matches!(inflate(64 << 20).0, InflateProgress::Exhausted(_)));
    }

    #[test]
    fn nothing_may_be_inflated_to_nothing() {
        let (progress, output) = inflate(&zeros(0, ContentCoding::Gzip), 0);
        assert_eq!(
            (progress, output),
            (InflateProgress::Ended(CompressedStreamEnd::Complete), Bytes::new())
        );
        assert_eq!(inflate(&zeros(1, ContentCoding::Gzip), 0).0, InflateProgress::TooLong);
    }

    #[test]
    fn slices_lead_to_the_same_end() {
        let input = Bytes::from(zeros(10 << 20, ContentCoding::Gzip));
        let mut inflater = inflater(input, CompressionFormat::Gzip, u64::MAX);
        let mut slices = 0;
        while inflater.advance(1 << 20) == InflateProgress::Paused {
            slices += 1;
        }
        assert!((5..=10).contains(&slices), "{slices}");
        assert_eq!(inflater.into_output().len(), 10 << 20);
    }

    /// Many empty blocks inflate to nothing but still use up budgets.
    #[test]
    fn input_without_output_is_work_too() {
        let empty_block = [0, 0, 0, 0xff, 0xff];
        let input = [b"\x78\x9c", empty_block.repeat(1 << 18).as_slice()].concat();
        let mut inflater = inflater(Bytes::from(input), CompressionFormat::Zlib, 1);
        assert_eq!(inflater.advance(1000), InflateProgress::Paused);
        assert!(inflater.read < 2000, "{}", inflater.read);
        assert_eq!(
            inflater.advance(usize::MAX),
            InflateProgress::Ended(CompressedStreamEnd::Truncated)
        );
    }

    #[test]
    fn damage_ends_the_output() {
        let text = b"some text, some text, some text";
        let sound =
            compress(&[Bytes::from_static(text)], ContentCoding::Gzip, DeflateLevel::DEFAULT);
        let is = |input: &[u8], end, output: &[u8]| {
            assert_eq!(
                inflate(input, 1000),
                (InflateProgress::Ended(end), Bytes::copy_from_slice(output))
            );
        };
        is(&sound, CompressedStreamEnd::Complete, text);
        for length in 0..sound.len() {
            let (progress, output) = inflate(&sound[..length], 1000);
            assert_eq!(
                progress,
                InflateProgress::Ended(CompressedStreamEnd::Truncated),
                "{length}"
            );
            assert!(text.starts_with(&output));
        }
        let mut wrong = sound.clone();
        *wrong.iter_mut().rev().nth(5).unwrap() ^= 1;
        is(&wrong, CompressedStreamEnd::Damaged, text);
        is(b"{\"inputs\": []}", CompressedStreamEnd::Damaged, b"");
        is(b"\x78\xbb\x00\x00\x00\x01", CompressedStreamEnd::Damaged, b"");
        is(b"", CompressedStreamEnd::Truncated, b"");
    }

    #[test]
    fn what_follows_the_stream_is_not_read() {
        let first =
            compress(&[Bytes::from_static(b"a")], ContentCoding::Gzip, DeflateLevel::DEFAULT);
        let input = [first.as_slice(), &first, b"rest"].concat();
        let mut inflater = inflater(Bytes::from(input), CompressionFormat::Gzip, 100);
        assert_eq!(
            inflater.advance(usize::MAX),
            InflateProgress::Ended(CompressedStreamEnd::Complete)
        );
        assert_eq!(inflater.unread_len(), first.len() + 4);
        assert_eq!(inflater.into_output(), b"a"[..]);
    }
}
