//! Reads a request body into one piece, or drains it.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use galatea_door::{AwaitedClientStep, ClientTimedOut, ConnectionActivity};
use galatea_gate::ledger::{MemoryAccount, MemoryLimitExceeded};
use galatea_stdx::len64;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::charged_buffer::{ChargedBuffer, charged};

/// A request body that hyper or `plain` receives.
pub(crate) trait RequestBody: Send {
    /// Returns a lower bound on the length.
    fn length_min(&self) -> u64;

    /// Returns true if the whole body was received.
    fn is_whole(&self) -> bool;

    /// Returns the account of the connection.
    fn account(&self) -> &Arc<MemoryAccount>;

    /// Reads the body into one piece, which is charged to the account.
    fn collect(
        &mut self,
        limits: BodyLimits,
    ) -> impl Future<Output = Result<Bytes, BodyError>> + Send;

    /// Reads and discards the rest of the body, within limits. See `BodyDrain`.
    fn drain(&mut self, limits: DrainLimits) -> impl Future<Output = ()> + Send;
}

/// A body that hyper receives.
pub(crate) struct HyperBody<'a> {
    body: Incoming,
    activity: &'a ConnectionActivity,
    account: &'a Arc<MemoryAccount>,
    /// True if the end of the body was seen while the body was drained.
    is_drained: bool,
}

impl<'a> HyperBody<'a> {
    /// Creates a body that is charged to this account.
    pub(crate) const fn new(
        body: Incoming,
        activity: &'a ConnectionActivity,
        account: &'a Arc<MemoryAccount>,
    ) -> Self {
        Self { body, activity, account, is_drained: false }
    }
}

impl RequestBody for HyperBody<'_> {
    fn length_min(&self) -> u64 {
        self.body.size_hint().lower()
    }

    fn is_whole(&self) -> bool {
        self.is_drained || self.body.is_end_stream()
    }

    fn account(&self) -> &Arc<MemoryAccount> {
        self.account
    }

    async fn collect(&mut self, limits: BodyLimits) -> Result<Bytes, BodyError> {
        collect(&mut self.body, self.activity, self.account, limits).await
    }

    async fn drain(&mut self, limits: DrainLimits) {
        self.is_drained = drain(&mut self.body, limits).await;
    }
}

/// The reason why hyper could not read a body.
impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        let cause = std::error::Error::source(&error);
        let cause = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
        match cause.map(std::io::Error::kind) {
            Some(ErrorKind::InvalidInput | ErrorKind::InvalidData) => Self::Malformed,
            Some(_) | None => Self::Truncated,
        }
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
    /// The body is longer than allowed; `length` is a lower bound on its length.
    TooLarge { length: u64 },
    /// The body has more chunks than allowed.
    TooManyChunks,
    /// The body's chunks are malformed.
    Malformed,
    /// The client has sent none of the body for too long.
    Overdue,
    /// The connection ended before the body did.
    Truncated,
    /// There is not enough memory for the body.
    Exhausted(MemoryLimitExceeded),
}

impl From<MemoryLimitExceeded> for BodyError {
    fn from(exhausted: MemoryLimitExceeded) -> Self {
        Self::Exhausted(exhausted)
    }
}

/// The size below which data frames count as chunks, because hyper does not report where chunks
/// begin. Few chunked bodies go through hyper. Longer frames are parts of large chunks that were
/// split into network segments; they need no limit.
const CHUNK_BYTES: usize = 512;

/// The limits for draining a body.
#[derive(Copy, Clone, Debug)]
pub(crate) struct DrainLimits {
    pub(crate) bytes_max: u64,
    pub(crate) frames_max: u32,
    /// The silence after which the client is considered to have stopped sending, so it will see the
    /// response.
    pub(crate) silence_max: Duration,
    pub(crate) time_max: Duration,
}

/// Reads a body. A body that arrives in one piece isn't copied.
async fn collect<B>(
    body: &mut B,
    activity: &ConnectionActivity,
    account: &Arc<MemoryAccount>,
    limits: BodyLimits,
) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
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
    loop {
        let frame = activity.wait_for_client(AwaitedClientStep::Body, body.frame()).await;
        let Some(frame) = frame.map_err(|ClientTimedOut| BodyError::Overdue)? else { break };
        let frame = frame.map_err(Into::into)?;
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
        collected = collected.with(data, expected, account)?;
    }
    Ok(collected.into_bytes(account)?)
}

/// Drains a body. Returns true if its end was reached.
async fn drain<B>(body: &mut B, limits: DrainLimits) -> bool
where
    B: Body<Data = Bytes> + Unpin,
{
    let reading = async {
        let mut length: u64 = 0;
        for _ in 0..limits.frames_max {
            let frame = tokio::time::timeout(limits.silence_max, body.frame()).await;
            let frame = match frame {
                Ok(None) => return true,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(_))) | Err(_) => return false,
            };
            let size = frame.data_ref().map_or(0, Bytes::len);
            length = length.saturating_add(len64(size));
            if length > limits.bytes_max {
                return false;
            }
        }
        false
    };
    // The response is now sent, whether or not the body was drained.
    tokio::time::timeout(limits.time_max, reading).await.unwrap_or(false)
}

/// The part of a body that has been read.
enum Collected {
    Nothing,
    One(Bytes),
    Many(ChargedBuffer),
}

impl Collected {
    fn with(
        self,
        data: Bytes,
        expected: usize,
        account: &Arc<MemoryAccount>,
    ) -> Result<Self, MemoryLimitExceeded> {
        let mut buffer = match self {
            Self::Nothing => return Ok(Self::One(data)),
            Self::One(first) => {
                let mut buffer = ChargedBuffer::new();
                buffer.append(&first, expected, account)?;
                buffer
            }
            Self::Many(buffer) => buffer,
        };
        buffer.append(&data, expected, account)?;
        Ok(Self::Many(buffer))
    }

    fn into_bytes(self, account: &Arc<MemoryAccount>) -> Result<Bytes, MemoryLimitExceeded> {
        match self {
            Self::Nothing => Ok(Bytes::new()),
            Self::One(data) => charged(data, account),
            Self::Many(buffer) => Ok(buffer.into_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use http_body::{Frame, SizeHint};

    use super::*;

    impl From<Infallible> for BodyError {
        fn from(never: Infallible) -> Self {
            match never {}
        }
    }

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
        let account = &Arc::new(MemoryAccount::unlimited());
        let activity = ConnectionActivity::default();
        let future = std::pin::pin!(collect(&mut body, &activity, account, limits));
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

    /// A body that never ends. It is silent, or it yields pieces of this size with a wait before
    /// each one.
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

    /// Returns the number of pieces that are read from an [`Endless`] body.
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
}
