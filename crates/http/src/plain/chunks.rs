//! The framing of a chunked body.
//!
//! The grammar is applied strictly, because a proxy in front of the server may parse the body too:
//! each size consists of hexadecimal digits, and each line ends with CR LF. Chunk extensions and
//! trailers have no meaning here and are skipped, within limits.

use std::ops::Range;

/// The maximum length of a chunk-size line, including extensions.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The maximum total length of the trailers.
const TRAILER_BYTES_MAX: usize = 16 << 10;

/// Splits a body into its chunks, regardless of the pieces in which it arrives.
#[derive(Debug)]
pub(super) struct ChunkDecoder {
    state: ChunkState,
    /// The number of bytes in the current line or in the trailers.
    line_bytes: usize,
    /// The number of non-empty chunks that have begun.
    chunks: u32,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Within the digits of a size. The size is `None` before the first digit.
    Size { size: Option<u64> },
    /// After the digits, up to the CR.
    Extension { size: u64 },
    /// After the CR of a size.
    SizeEnd { size: u64 },
    /// Within a chunk's content.
    Content { missing: u64 },
    /// After the content, where CR must follow.
    ContentCr,
    /// After the content, where LF must follow.
    ContentLf,
    /// At the beginning of a trailer or of the empty line that ends the body.
    Trailers,
    /// Within a trailer.
    Trailer,
    /// After the CR of the empty line.
    End,
    /// The body is complete.
    Done,
}

/// The error for bytes that are not a chunked body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The decoded part of a piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decoded {
    /// The content, as a range of the piece. It may be empty.
    pub(super) content: Range<usize>,
    /// The number of bytes of the piece that were decoded.
    pub(super) used: usize,
}

impl ChunkDecoder {
    pub(super) const fn new() -> Self {
        Self { state: ChunkState::Size { size: None }, line_bytes: 0, chunks: 0 }
    }

    /// Returns true if the body is complete.
    pub(super) fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// The number of non-empty chunks that have begun.
    pub(super) const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Decodes the front of `piece`, up to the end of some content, of the piece or of the body.
    /// Unused bytes belong to the next call or, after the body, to the next request.
    pub(super) fn decode(&mut self, piece: &[u8]) -> Result<Decoded, Malformed> {
        for (index, byte) in piece.iter().enumerate() {
            match self.state {
                ChunkState::Done => return Ok(Decoded { content: index..index, used: index }),
                ChunkState::Content { missing } => {
                    let rest = piece.len().saturating_sub(index);
                    let length = usize::try_from(missing).unwrap_or(usize::MAX).min(rest);
                    let end = index.saturating_add(length);
                    self.took_content(missing, length);
                    return Ok(Decoded { content: index..end, used: end });
                }
                ChunkState::Size { .. }
                | ChunkState::Extension { .. }
                | ChunkState::SizeEnd { .. }
                | ChunkState::ContentCr
                | ChunkState::ContentLf
                | ChunkState::Trailers
                | ChunkState::Trailer
                | ChunkState::End => self.step(*byte)?,
            }
        }
        Ok(Decoded { content: 0..0, used: piece.len() })
    }

    fn took_content(&mut self, missing: u64, length: usize) {
        let missing = missing.saturating_sub(galatea_stdx::len64(length));
        self.state =
            if missing == 0 { ChunkState::ContentCr } else { ChunkState::Content { missing } };
    }

    /// Parses a framing byte.
    fn step(&mut self, byte: u8) -> Result<(), Malformed> {
        self.state = match (self.state, byte) {
            (ChunkState::Size { size: Some(size) }, b'\r') => ChunkState::SizeEnd { size },
            (ChunkState::Size { size: Some(size) }, b';' | b' ' | b'\t') => {
                ChunkState::Extension { size }
            }
            (ChunkState::Size { size }, _) => {
                let digit = char::from(byte).to_digit(16).ok_or(Malformed)?;
                let size = size.unwrap_or(0).checked_mul(16).ok_or(Malformed)?;
                ChunkState::Size { size: Some(size.saturating_add(u64::from(digit))) }
            }
            (ChunkState::Extension { size }, b'\r') => ChunkState::SizeEnd { size },
            (ChunkState::Extension { .. }, b'\n') => return Err(Malformed),
            (ChunkState::Extension { size }, _) => ChunkState::Extension { size },
            (ChunkState::SizeEnd { size: 0 }, b'\n') => self.at_line(ChunkState::Trailers),
            (ChunkState::SizeEnd { size }, b'\n') => {
                self.chunks = self.chunks.saturating_add(1);
                self.at_line(ChunkState::Content { missing: size })
            }
            (ChunkState::ContentCr, b'\r') => ChunkState::ContentLf,
            (ChunkState::ContentLf, b'\n') => ChunkState::Size { size: None },
            (ChunkState::Trailers, b'\r') => ChunkState::End,
            (ChunkState::Trailers | ChunkState::Trailer, b'\n') => match self.state {
                ChunkState::Trailer => ChunkState::Trailers,
                _ => return Err(Malformed),
            },
            (ChunkState::Trailers | ChunkState::Trailer, _) => ChunkState::Trailer,
            (ChunkState::End, b'\n') => ChunkState::Done,
            (_, _) => return Err(Malformed),
        };
        self.count_line()
    }

    fn at_line(&mut self, state: ChunkState) -> ChunkState {
        self.line_bytes = 0;
        state
    }

    /// Limits the bytes that are not content.
    fn count_line(&mut self) -> Result<(), Malformed> {
        let bytes_max = match self.state {
            ChunkState::Trailers | ChunkState::Trailer | ChunkState::End | ChunkState::Done => {
                TRAILER_BYTES_MAX
            }
            _ => LINE_BYTES_MAX,
        };
        self.line_bytes = self.line_bytes.saturating_add(1);
        if self.line_bytes > bytes_max { Err(Malformed) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the content, the number of chunks and the bytes after the body, if the body arrives
    /// in pieces of this size. Returns `None` if the body is incomplete.
    fn decode_in(text: &[u8], size: usize) -> Result<Option<(Vec<u8>, u32, usize)>, Malformed> {
        let (mut decoder, mut content, mut used) = (ChunkDecoder::new(), Vec::new(), 0_usize);
        while !decoder.is_done() {
            let end = used.saturating_add(size).min(text.len());
            let piece = &text[used..end];
            if piece.is_empty() {
                return Ok(None);
            }
            let decoded = decoder.decode(piece)?;
            content.extend_from_slice(&piece[decoded.content]);
            used = used.saturating_add(decoded.used);
        }
        Ok(Some((content, decoder.chunks(), text.len().saturating_sub(used))))
    }

    #[track_caller]
    fn check(text: &str, expected: Result<Option<(&str, u32, usize)>, Malformed>) {
        for size in 1..=text.len() {
            let decoded = decode_in(text.as_bytes(), size);
            let decoded = decoded.map(|found| {
                found.map(|(content, chunks, behind)| {
                    (String::from_utf8(content).unwrap(), chunks, behind)
                })
            });
            let expected = expected.map(|found| {
                found.map(|(content, chunks, behind)| (content.to_owned(), chunks, behind))
            });
            assert_eq!(decoded, expected, "{text:?} in pieces of {size}");
        }
    }

    #[test]
    fn bodies_are_decoded_wherever_they_are_cut() {
        check("0\r\n\r\n", Ok(Some(("", 0, 0))));
        check("3\r\nabc\r\n00\r\n\r\nGET", Ok(Some(("abc", 1, 3))));
        check("3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", Ok(Some(("abc0123456789", 2, 0))));
        check("1;name=\"value\"\r\na\r\n1 ; b\r\nb\r\n0;c\r\n\r\n", Ok(Some(("ab", 2, 0))));
        check("1\r\na\r\n0\r\nName: value\r\nOther: x\r\n\r\n", Ok(Some(("a", 1, 0))));
        check("2\r\n\r\n\r\n0\r\n\r\n", Ok(Some(("\r\n", 1, 0))));
    }

    #[test]
    fn incomplete_bodies_are_not_done() {
        for text in ["0", "0\r\n", "0\r\n\r", "5\r\nabc", "5\r\nabcde\r\n", "0\r\na: b\r\n"] {
            check(text, Ok(None));
        }
    }

    #[test]
    fn malformed_bodies_are_refused() {
        for text in [
            "x",
            "\r\n",
            ";a\r\n",
            "-3\r\n",
            "+3\r\n",
            " 3\r\n",
            "0x3\r\n",
            "3\nabc",
            "3;a\nabc",
            "3\rabc",
            "3\r\nabcd",
            "3\r\nabc\n",
            "3\r\nabc\rx",
            "10000000000000000\r\n",
            "0\r\n\n",
            "0\r\n\rx",
        ] {
            check(text, Err(Malformed));
        }
    }

    #[test]
    fn lines_and_trailers_are_bounded() {
        let long = |length: usize| "e".repeat(length);
        check_bound(&format!("1;{}\r\na\r\n0\r\n\r\n", long(LINE_BYTES_MAX - 10)), true);
        check_bound(&format!("1;{}\r\na\r\n0\r\n\r\n", long(LINE_BYTES_MAX)), false);
        check_bound(&format!("{}1\r\na\r\n0\r\n\r\n", "0".repeat(LINE_BYTES_MAX)), false);
        let trailer = format!("a: {}\r\n", long(1000));
        check_bound(&format!("0\r\n{}\r\n", trailer.repeat(10)), true);
        check_bound(&format!("0\r\n{}\r\n", trailer.repeat(20)), false);
    }

    #[track_caller]
    fn check_bound(text: &str, is_accepted: bool) {
        let decoded = decode_in(text.as_bytes(), text.len());
        assert_eq!(matches!(decoded, Ok(Some(_))), is_accepted);
    }
}
