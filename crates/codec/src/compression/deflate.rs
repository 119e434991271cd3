//! Compression.

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};

use super::ContentCoding;

/// The compression level.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeflateLevel(u32);

impl DeflateLevel {
    /// zlib's default level.
    pub const DEFAULT: Self = Self(6);

    /// Creates one of zlib's levels, from 0, which only stores, to 9.
    #[must_use]
    pub const fn new(level: u32) -> Self {
        Self(if level > 9 { 9 } else { level })
    }
}

/// The size of zlib's largest window, in bits.
const WINDOW_BITS: u8 = 15;

/// The minimum and maximum steps by which the output grows, in bytes.
const GROWTH_BYTES: [usize; 2] = [512, 1 << 20];

/// Compresses the parts of one body.
#[must_use]
pub fn compress(parts: &[Bytes], coding: ContentCoding, level: DeflateLevel) -> Vec<u8> {
    let level = Compression::new(level.0);
    let mut stream = match coding {
        ContentCoding::Gzip => Compress::new_gzip(level, WINDOW_BITS),
        ContentCoding::Deflate => Compress::new_with_window_bits(level, true, WINDOW_BITS),
    };
    let length = parts.iter().map(Bytes::len).fold(0, usize::saturating_add);
    let [step_min, step_max] = GROWTH_BYTES;
    let mut output = Vec::with_capacity((length / 2).clamp(step_min, step_max));
    for part in parts {
        run(&mut stream, part, FlushCompress::None, &mut output);
    }
    run(&mut stream, &[], FlushCompress::Finish, &mut output);
    output
}

/// Compresses all of `input`. [`FlushCompress::Finish`] also ends the stream.
fn run(stream: &mut Compress, mut input: &[u8], flush: FlushCompress, output: &mut Vec<u8>) {
    let [step_min, step_max] = GROWTH_BYTES;
    loop {
        if output.capacity() == output.len() {
            output.reserve(output.len().clamp(step_min, step_max));
        }
        let read = stream.total_in();
        let status = stream.compress_vec(input, output, flush);
        let read = stream.total_in().saturating_sub(read);
        input = usize::try_from(read).ok().and_then(|read| input.get(read..)).unwrap_or_default();
        // More output is pending only if there was no room for it. An error would mean that a
        // stream was used after its end, which `deflate` never does.
        let is_full = output.capacity() == output.len();
        if status.is_err() || (input.is_empty() && !is_full) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use galatea_gate::ledger::MemoryAccount;

    use super::super::{CompressedStreamEnd, CompressionFormat, InflateProgress, Inflater};
    use super::*;

    #[track_caller]
    fn check(parts: &[Bytes], coding: ContentCoding, level: DeflateLevel) -> usize {
        let whole = parts.concat();
        let compressed = Bytes::from(compress(parts, coding, level));
        let length = compressed.len();
        let account = Arc::new(MemoryAccount::unlimited());
        let mut inflater = Inflater::new(compressed, CompressionFormat::Either, u64::MAX, account);
        assert_eq!(
            inflater.advance(usize::MAX),
            InflateProgress::Ended(CompressedStreamEnd::Complete)
        );
        assert_eq!(inflater.unread_len(), 0);
        assert_eq!(inflater.into_output(), whole);
        length
    }

    /// Returns bytes that cannot be compressed.
    fn noise(length: usize) -> Bytes {
        let mut state: u32 = 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn what_is_deflated_can_be_inflated() {
        let zeros = Bytes::from(vec![0; 3 << 20]);
        let text = Bytes::from_static(b"{\"outputs\":[]}");
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            for level in [
                DeflateLevel::new(0),
                DeflateLevel::new(1),
                DeflateLevel::DEFAULT,
                DeflateLevel::new(99),
            ] {
                check(&[], coding, level);
                check(&[Bytes::new(), text.clone(), Bytes::new()], coding, level);
                check(&[text.clone(), noise(3 << 20), zeros.clone()], coding, level);
            }
        }
        assert!(check(&[zeros], ContentCoding::Gzip, DeflateLevel::DEFAULT) < 5000);
    }

    #[test]
    fn the_formats_are_those_of_the_protocols() {
        let text = [Bytes::from_static(b"x")];
        assert_eq!(
            compress(&text, ContentCoding::Gzip, DeflateLevel::DEFAULT).get(..2),
            Some(&b"\x1f\x8b"[..])
        );
        assert_eq!(
            compress(&text, ContentCoding::Deflate, DeflateLevel::DEFAULT).first(),
            Some(&0x78)
        );
    }
}
