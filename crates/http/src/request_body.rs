//! Reading the body of a request into one piece, or draining it.

use std::time::Duration;

use bytes::Bytes;
use galatea_stdx::len64;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// The body of a request, received by hyper or by `plain`.
pub(crate) trait RequestBody: Send {
    /// A lower bound of its length.
    fn length_min(&self) -> u64;

    /// A lower bound of what is still to be received.
    fn missing_min(&self) -> u64;

    /// Reads it into one piece.
    fn collect(
        &mut self,
        limits: BodyLimits,
    ) -> impl Future<Output = Result<Bytes, BodyError>> + Send;

    /// Reads and forgets what is left of it, within limits. See
    /// `BodyDrain`.
    fn drain(&mut self, limits: DrainLimits) -> impl Future<Output = ()> + Send;
}

impl RequestBody for Incoming {
    fn length_min(&self) -> u64 {
        self.size_hint().lower()
    }

    fn missing_min(&self) -> u64 {
        self.size_hint().lower()
    }

    async fn collect(&mut self, limits: BodyLimits) -> Result<Bytes, BodyError> {
        collect(self, limits).await
    }

    async fn drain(&mut self, limits: DrainLimits) {
        drain(self, limits).await;
    }
}

/// The limits of a body.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: u64,
    pub(crate) chunks_max: u32,
}

/// The reason why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is longer than allowed; `length` is the known part of its length.
    TooLarge { length: u64 },
    /// It has more chunks than allowed.
    TooManyChunks,
    /// The connection ended before the body did.
    Truncated,
    /// The door stops and reads no more of it.
    Stopping,
}

/// A buffer grows by at least this much, and by at most this much if only a header
/// announces more.
const GROWTH_BYTES: usize = 1 << 20;

/// Data frames shorter than this count as chunks. Longer ones are parts of large chunks,
/// cut by the segments of the network, and need no limit of their own.
const CHUNK_BYTES: usize = 512;

/// The limits of draining a body.
#[derive(Copy, Clone, Debug)]
pub(crate) struct DrainLimits {
    pub(crate) bytes_max: u64,
    pub(crate) frames_max: u32,
    /// A client that is silent for longer is not sending any more, and sees the response.
    pub(crate) silence_max: Duration,
    pub(crate) time_max: Duration,
}

/// Reads a body. A body that arrives in one piece isn't copied.
async fn collect<B>(body: &mut B, limits: BodyLimits) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let hint = body.size_hint();
    if hint.lower() > limits.bytes_max {
        return Err(BodyError::TooLarge { length: hint.lower() });
    }
    let chunked = hint.exact().is_none();
    let expected = usize::try_from(hint.lower()).unwrap_or(usize::MAX);
    let mut collected = Collected::Nothing;
    let mut length: u64 = 0;
    let mut chunks: u32 = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyError::Truncated)?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(len64(data.len()));
        if length > limits.bytes_max {
            return Err(BodyError::TooLarge { length });
        }
        if chunked && data.len() < CHUNK_BYTES {
            chunks = chunks.saturating_add(1);
            if chunks > limits.chunks_max {
                return Err(BodyError::TooManyChunks);
            }
        }
        collected = collected.with(data, expected);
    }
    Ok(collected.into_bytes())
}

async fn drain<B>(body: &mut B, limits: DrainLimits)
where
    B: Body<Data = Bytes> + Unpin,
{
    let reading = async {
        let mut length: u64 = 0;
        for _ in 0..limits.frames_max {
            let frame = tokio::time::timeout(limits.silence_max, body.frame()).await;
            let Ok(Some(Ok(frame))) = frame else { return };
            let size = frame.data_ref().map_or(0, Bytes::len);
            length = length.saturating_add(len64(size));
            if length > limits.bytes_max {
                return;
            }
        }
    };
    // The response is sent now, drained or not.
    let _ = tokio::time::timeout(limits.time_max, reading).await;
}

/// What has been read of a body.
enum Collected {
    Nothing,
    One(Bytes),
    Many(Vec<u8>),
}

impl Collected {
    fn with(self, data: Bytes, expected: usize) -> Self {
        match self {
            Self::Nothing => Self::One(data),
            Self::One(first) => {
                let mut buffer = Vec::new();
                append(&mut buffer, &first, expected);
                append(&mut buffer, &data, expected);
                Self::Many(buffer)
            }
            Self::Many(mut buffer) => {
                append(&mut buffer, &data, expected);
                Self::Many(buffer)
            }
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(data) => data,
            Self::Many(buffer) => Bytes::from(buffer),
        }
    }
}

/// Appends `data`, growing the buffer towards `expected` bytes.
fn append(buffer: &mut Vec<u8>, data: &[u8], expected: usize) {
    let needed = buffer.len().saturating_add(data.len());
    reserve(buffer, needed, expected);
    buffer.extend_from_slice(data);
}

/// Makes room for `needed` bytes in total. The buffer grows towards `expected` bytes in
/// steps that double what has arrived.
pub(crate) fn reserve(buffer: &mut Vec<u8>, needed: usize, expected: usize) {
    if needed > buffer.capacity() {
        let step = buffer.len().saturating_mul(2).max(GROWTH_BYTES);
        let target = if expected == 0 { step } else { step.min(expected) };
        let additional = target.max(needed).saturating_sub(buffer.len());
        buffer.reserve_exact(additional);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use http_body::{Frame, SizeHint};

    use super::*;

    struct Pieces {
        pieces: Vec<&'static [u8]>,
        declared: Option<u64>,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let next = if self.pieces.is_empty() { None } else { Some(self.pieces.remove(0)) };
            Poll::Ready(next.map(|piece| Ok(Frame::data(Bytes::from_static(piece)))))
        }

        fn size_hint(&self) -> SizeHint {
            self.declared.map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    fn read(pieces: &[&'static [u8]], declared: Option<u64>) -> Result<Bytes, BodyError> {
        let mut body = Pieces { pieces: pieces.to_vec(), declared };
        let limits = BodyLimits { bytes_max: 8, chunks_max: 3 };
        let future = std::pin::pin!(collect(&mut body, limits));
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    #[test]
    fn pieces_become_one() {
        assert_eq!(read(&[], None), Ok(Bytes::new()));
        assert_eq!(read(&[b"ab"], Some(2)), Ok(Bytes::from_static(b"ab")));
        assert_eq!(read(&[b"ab", b"", b"cd"], Some(4)), Ok(Bytes::from_static(b"abcd")));
        assert_eq!(read(&[b"ab", b"c", b"d"], None), Ok(Bytes::from_static(b"abcd")));
    }

    #[test]
    fn a_single_piece_is_not_copied() {
        let piece: &'static [u8] = b"abcd";
        assert_eq!(read(&[piece], None).unwrap().as_ptr(), piece.as_ptr());
    }

    #[test]
    fn a_body_that_is_too_long_or_has_too_many_chunks_is_refused() {
        assert_eq!(read(&[], Some(9)), Err(BodyError::TooLarge { length: 9 }));
        assert_eq!(read(&[b"12345678", b"9"], None), Err(BodyError::TooLarge { length: 9 }));
        assert_eq!(read(&[b"1", b"2", b"3"], None), Ok(Bytes::from_static(b"123")));
        assert_eq!(read(&[b"1", b"2", b"3", b"4"], None), Err(BodyError::TooManyChunks));
        let declared = read(&[b"1", b"2", b"3", b"4"], Some(4));
        assert_eq!(declared, Ok(Bytes::from_static(b"1234")));
    }

    /// A body that never ends: silent, or with pieces of this size, each of which is
    /// preceded by a wait.
    struct Endless {
        size: Option<usize>,
        due: bool,
        read: u64,
    }

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let Some(size) = self.size else { return Poll::Pending };
            self.due = !self.due;
            if self.due {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.read = self.read.saturating_add(1);
            Poll::Ready(Some(Ok(Frame::data(vec![0; size].into()))))
        }
    }

    /// The number of pieces that are read of such a body.
    fn drained(size: Option<usize>, limits: DrainLimits) -> u64 {
        let mut body = Endless { size, due: false, read: 0 };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let patience = Duration::from_secs(20);
        let draining = async { tokio::time::timeout(patience, drain(&mut body, limits)).await };
        runtime.block_on(draining).expect("draining does not end");
        body.read
    }

    #[test]
    fn draining_ends_though_the_client_does_not() {
        let for_ever = Duration::from_secs(1 << 30);
        let limits = DrainLimits {
            bytes_max: u64::MAX,
            frames_max: u32::MAX,
            silence_max: for_ever,
            time_max: for_ever,
        };
        let moment = Duration::from_millis(1);
        assert_eq!(drained(None, DrainLimits { silence_max: moment, ..limits }), 0);
        assert_eq!(drained(None, DrainLimits { time_max: moment, ..limits }), 0);
        drained(Some(0), DrainLimits { time_max: moment, ..limits });
        assert_eq!(drained(Some(0), DrainLimits { frames_max: 5, ..limits }), 5);
        assert_eq!(drained(Some(3), DrainLimits { bytes_max: 9, ..limits }), 4);
    }

    #[test]
    fn a_buffer_does_not_grow_on_a_declared_length_alone() {
        let mut buffer = Vec::new();
        append(&mut buffer, b"ab", 1 << 30);
        assert!(buffer.capacity() <= 2 * GROWTH_BYTES, "{}", buffer.capacity());
        let mut exact = Vec::new();
        append(&mut exact, b"ab", 100);
        assert_eq!(exact.capacity(), 100);
    }
}
