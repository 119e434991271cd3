//! Tracks a connection's frames in both directions.
//!
//! `h2` answers a client's pings by itself and does not report them. The bytes that pass between
//! the socket and `h2` show whether a client pings too often, and whether anything was read at all.
//! Only the header of each frame is examined.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

const HEAD_BYTES: usize = 9;
/// The bytes that a client sends before its first frame.
const PREFACE_BYTES: usize = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;

/// The counts of frames since they were last taken. They are changed only by the connection's task,
/// and by `h2` on its behalf.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameCounts(Arc<ConnectionFrames>);

#[derive(Debug, Default)]
struct ConnectionFrames {
    has_read: AtomicBool,
    has_sent_data: AtomicBool,
    pings: AtomicU32,
    last_stream: AtomicU32,
    /// The size of the longest frame from the client, including its header, in bytes.
    longest: AtomicUsize,
}

impl FrameCounts {
    /// Returns true if anything was read.
    pub(crate) fn take_read(&self) -> bool {
        self.0.has_read.swap(false, Ordering::Relaxed)
    }

    /// Returns true if the client was sent headers, data or a larger window.
    pub(crate) fn take_sent_data(&self) -> bool {
        self.0.has_sent_data.swap(false, Ordering::Relaxed)
    }

    /// Returns the number of the client's pings that were read.
    pub(crate) fn take_pings(&self) -> u32 {
        // This runs in each round, but pings are rare.
        if self.0.pings.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.0.pings.swap(0, Ordering::Relaxed)
    }

    /// The size of the longest frame so far, which may still be arriving. `h2` keeps a buffer of
    /// that size for as long as the connection is open.
    pub(crate) fn longest_received(&self) -> usize {
        self.0.longest.load(Ordering::Relaxed)
    }

    /// The stream that the client opened last.
    fn last_stream(&self) -> u32 {
        self.0.last_stream.load(Ordering::Relaxed)
    }

    fn received(&self, head: FrameHead) {
        let bytes = head.length.saturating_add(HEAD_BYTES);
        if self.longest_received() < bytes {
            self.0.longest.store(bytes, Ordering::Relaxed);
        }
        match head.kind {
            PING if head.flags & ACK == 0 => {
                self.0.pings.store(
                    self.0.pings.load(Ordering::Relaxed).saturating_add(1),
                    Ordering::Relaxed,
                );
            }
            HEADERS => {
                let last = self.last_stream().max(head.stream);
                self.0.last_stream.store(last, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn sent(&self, head: FrameHead) {
        if matches!(head.kind, DATA | HEADERS | WINDOW_UPDATE) {
            self.0.has_sent_data.store(true, Ordering::Relaxed);
        }
    }
}

/// A frame header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct FrameHead {
    /// The number of bytes after the header.
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Finds the frames in received bytes.
#[derive(Debug)]
pub(super) struct ReceivedFrames {
    scanner: FrameScanner,
    counts: FrameCounts,
}

impl ReceivedFrames {
    pub(super) const fn new(counts: FrameCounts) -> Self {
        Self { scanner: FrameScanner::behind(PREFACE_BYTES), counts }
    }

    pub(super) fn scan(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.counts.0.has_read.store(true, Ordering::Relaxed);
        }
        self.scanner.scan(bytes, |head| self.counts.received(head));
    }
}

/// Finds the frames in sent bytes.
#[derive(Debug)]
pub(super) struct SentFrames {
    scanner: FrameScanner,
    counts: FrameCounts,
}

impl SentFrames {
    pub(super) const fn new(counts: FrameCounts) -> Self {
        Self { scanner: FrameScanner::behind(0), counts }
    }

    pub(super) fn scan(&mut self, bytes: &[u8]) {
        self.scanner.scan(bytes, |head| self.counts.sent(head));
    }

    /// Creates a frame that ends the connection with this reason and text. Returns `None` in the
    /// middle of another frame.
    pub(super) fn goaway(&self, reason: h2::Reason, text: &[u8]) -> Option<Vec<u8>> {
        if !self.scanner.is_between_frames() {
            return None;
        }
        let length = u32::try_from(text.len().saturating_add(8)).ok()?;
        let [_, length @ ..] = length.to_be_bytes();
        let mut frame = length.to_vec();
        frame.extend([GOAWAY, 0, 0, 0, 0, 0]);
        frame.extend(self.counts.last_stream().to_be_bytes());
        frame.extend(u32::from(reason).to_be_bytes());
        frame.extend(text);
        Some(frame)
    }
}

/// Finds frame headers in bytes that arrive piecemeal.
#[derive(Debug)]
struct FrameScanner {
    head: [u8; HEAD_BYTES],
    filled: usize,
    /// The number of bytes before the next header.
    skip: usize,
}

impl FrameScanner {
    /// Creates a scanner that begins after the first `skip` bytes.
    const fn behind(skip: usize) -> Self {
        Self { head: [0; HEAD_BYTES], filled: 0, skip }
    }

    const fn is_between_frames(&self) -> bool {
        self.filled == 0 && self.skip == 0
    }

    fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(FrameHead)) {
        loop {
            let Some(next) = bytes.get(self.skip..).filter(|next| !next.is_empty()) else {
                self.skip = self.skip.saturating_sub(bytes.len());
                return;
            };
            bytes = next;
            self.skip = 0;
            let head = match bytes.split_first_chunk() {
                // Nearly every header arrives in one piece.
                Some((head, rest)) if self.filled == 0 => {
                    bytes = rest;
                    *head
                }
                _ => {
                    let missing = self.head.iter_mut().skip(self.filled);
                    let copied = missing.zip(bytes).map(|(to, from)| *to = *from).count();
                    self.filled = self.filled.saturating_add(copied);
                    if self.filled < HEAD_BYTES {
                        return;
                    }
                    self.filled = 0;
                    bytes = bytes.get(copied..).unwrap_or_default();
                    self.head
                }
            };
            let [a, b, c, kind, flags, stream @ ..] = head;
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
            self.skip = length;
            // The first bit of a stream number has no meaning.
            let stream = u32::from_be_bytes(stream) & !(1 << 31);
            found(FrameHead { length, kind, flags, stream });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags];
        frame.extend(stream.to_be_bytes());
        // The payload looks like ping headers.
        frame.extend([0, 0, 0, PING].iter().cycle().take(length.into()));
        frame
    }

    fn received() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for (kind, flags, stream, length) in [
            (4, 0, 0, 0),
            (PING, 0, 0, 8),
            (HEADERS, 5, 0x8000_0007, 200),
            (DATA, 1, 7, 255),
            (PING, ACK, 0, 8),
            (HEADERS, 5, 5, 1),
            (PING, 0, 0, 8),
        ] {
            bytes.extend(frame(kind, flags, stream, length));
        }
        bytes
    }

    #[test]
    fn frames_are_found_however_they_are_split() {
        for size in 1..600 {
            let counts = FrameCounts::default();
            let mut frames = ReceivedFrames::new(counts.clone());
            frames.scan(&[]);
            assert!(!counts.take_read());
            for piece in received().chunks(size) {
                frames.scan(piece);
            }
            assert_eq!((counts.take_pings(), counts.last_stream()), (2, 7), "{size}");
            assert_eq!(counts.longest_received(), 255 + HEAD_BYTES, "{size}");
            assert!(counts.take_read() && !counts.take_read());
            assert_eq!(counts.take_pings(), 0);
        }
    }

    #[test]
    fn data_headers_and_windows_count_as_sent_data() {
        for (kind, expected) in
            [(0, true), (1, true), (3, false), (4, false), (6, false), (7, false), (8, true)]
        {
            let counts = FrameCounts::default();
            SentFrames::new(counts.clone()).scan(&frame(kind, 0, 1, 4));
            assert_eq!(counts.take_sent_data(), expected, "{kind}");
        }
    }

    #[test]
    fn a_connection_ends_between_frames() {
        let counts = FrameCounts::default();
        ReceivedFrames::new(counts.clone()).scan(&received());
        let mut sent = SentFrames::new(counts);
        let frame = frame(DATA, 0, 7, 100);
        let goaway = |sent: &SentFrames| sent.goaway(h2::Reason::ENHANCE_YOUR_CALM, b"text");
        for end in 1..frame.len() {
            sent.scan(&frame[end - 1..end]);
            assert_eq!(goaway(&sent), None, "{end}");
        }
        sent.scan(&frame[frame.len() - 1..]);
        let expected = b"\0\0\x0c\x07\0\0\0\0\0\0\0\0\x07\0\0\0\x0btext";
        assert_eq!(goaway(&sent).as_deref(), Some(&expected[..]));
    }
}
