//! Compressed bodies of inference requests and responses.
//!
//! Short bodies are processed on the I/O thread. Longer bodies go to dedicated threads, at most one
//! per processor, because an I/O thread serves many other connections.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::{
    CompressedStreamEnd, CompressionFormat, ContentCoding, DeflateLevel, InflateProgress, Inflater,
    accepted_coding, compress,
};
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{empty_compressed_body_error, inflated_body_too_large_error};
use galatea_door::{BlockingPermit, BlockingPermits};
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::Status;
use smallvec::smallvec;
use tokio::sync::oneshot;

use crate::guard::{exiting, guarded};
use crate::http_response::HttpResponse;
use crate::request_head::RequestHead;

/// The approximate maximum size that an I/O thread inflates itself, which takes less than a
/// millisecond.
const INLINE_INFLATED_BYTES: usize = 128 << 10;

/// The maximum size of a body that an I/O thread deflates itself, which also takes less than a
/// millisecond.
const INLINE_DEFLATED_BYTES: usize = 32 << 10;

/// The number of inflated bytes after which another thread checks whether the client is still
/// connected.
const SLICE_BYTES: usize = 4 << 20;

/// The coding of a request body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodyCoding {
    /// Not compressed.
    Identity,
    /// Compressed. As in Triton, each of the two names is accepted for either format.
    Compressed,
    /// Encoded in some other way.
    Unknown,
}

impl BodyCoding {
    pub(crate) fn of(head: &RequestHead<'_>) -> Self {
        match head.encoding {
            None | Some(b"identity") => Self::Identity,
            Some(name) if ContentCoding::named(name).is_some() => Self::Compressed,
            Some(_) => Self::Unknown,
        }
    }
}

/// An inflated body.
pub(crate) struct InflatedBody {
    pub(crate) bytes: Bytes,
    pub(crate) end: CompressedStreamEnd,
}

/// Inflates and deflates bodies.
pub(crate) struct Compression {
    permits: BlockingPermits,
}

impl Compression {
    pub(crate) fn new() -> Self {
        Self { permits: BlockingPermits::per_processor() }
    }

    /// Inflates a body. If the client disconnects first, the future is dropped, which stops the
    /// work.
    pub(crate) async fn inflate(
        &self,
        body: Bytes,
        limits: &MessageLimits,
        account: &Arc<MemoryAccount>,
    ) -> Result<InflatedBody, Status> {
        if body.is_empty() {
            return Err(empty_compressed_body_error());
        }
        let mut inflater =
            Inflater::new(body, CompressionFormat::Either, limits.input_bytes_max, account.clone());
        let mut progress = guarded(|| Ok(inflater.advance(INLINE_INFLATED_BYTES)))?;
        if progress == InflateProgress::Paused {
            let permit = self.permits.acquire().await;
            (inflater, progress) = inflate_elsewhere(inflater, permit).await?;
        }
        match progress {
            InflateProgress::Ended(end) => Ok(InflatedBody { bytes: inflater.into_output(), end }),
            InflateProgress::Exhausted(exhausted) => Err(exhausted.into()),
            InflateProgress::TooLong => Err(inflated_body_too_large_error(limits)),
            InflateProgress::Paused => Err(Status::internal("a body was not inflated to its end")),
        }
    }

    /// Compresses the response to an inference request in a way that the client accepts.
    pub(crate) async fn deflate(
        &self,
        head: &RequestHead<'_>,
        mut response: HttpResponse,
        account: &Arc<MemoryAccount>,
    ) -> Result<HttpResponse, Status> {
        let Some(coding) = head.accept_encoding.and_then(accepted_coding) else {
            return Ok(response);
        };
        let parts = mem::take(&mut response.chunks);
        let length = parts.iter().map(Bytes::len).fold(0, usize::saturating_add);
        let mut charge = (length > MemoryAccount::SMALL_BYTES_MAX)
            .then(|| MemoryCharge::new(account, deflated_bytes_max(length)))
            .transpose()?;
        let compressed = if length <= INLINE_DEFLATED_BYTES {
            guarded(|| Ok(compress(&parts, coding, DeflateLevel::DEFAULT)))?
        } else {
            let permit = self.permits.acquire().await;
            let work = move || {
                let _permit = permit;
                guarded(|| Ok(compress(&parts, coding, DeflateLevel::DEFAULT)))
            };
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(exiting()))?
        };
        let compressed = match charge.take() {
            None => Bytes::from(compressed),
            Some(mut charge) => {
                charge.shrink(compressed.capacity());
                Bytes::from_owner(charge.attach_to(compressed))
            }
        };
        response.content_encoding = Some(coding.name());
        response.chunks = smallvec![compressed];
        Ok(response)
    }
}

/// Returns an upper bound on the memory used by the deflated form of this many bytes.
/// Incompressible data grows slightly, and the memory grows in steps.
const fn deflated_bytes_max(length: usize) -> usize {
    length.saturating_add(length / 16).saturating_add(2 << 20)
}

/// Inflates to the end on a dedicated thread, unless the receiver is dropped.
async fn inflate_elsewhere(
    mut inflater: Inflater,
    permit: BlockingPermit,
) -> Result<(Inflater, InflateProgress), Status> {
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let result = guarded(|| {
            let mut progress = InflateProgress::Paused;
            while progress == InflateProgress::Paused && !sender.is_closed() {
                progress = inflater.advance(SLICE_BYTES);
            }
            Ok((inflater, progress))
        });
        // The receiver is gone if the client has disconnected.
        drop(sender.send(result));
    });
    receiver.await.unwrap_or_else(|_| Err(exiting()))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Returns true if the first poll inflates a body of this many zeros.
    fn is_inflated_at_once(length: usize) -> bool {
        let body =
            compress(&[Bytes::from(vec![0; length])], ContentCoding::Gzip, DeflateLevel::DEFAULT);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let compression = Compression::new();
        let limits = MessageLimits { input_bytes_max: u64::MAX };
        let account = Arc::new(MemoryAccount::unlimited());
        runtime.block_on(async {
            let mut inflating = pin!(compression.inflate(body.into(), &limits, &account));
            let polled = inflating.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let at_once = polled.is_ready();
            let inflated = match polled {
                std::task::Poll::Ready(inflated) => inflated,
                std::task::Poll::Pending => inflating.await,
            };
            assert_eq!(inflated.map(|body| body.bytes.len()), Ok(length));
            at_once
        })
    }

    #[test]
    fn io_threads_inflate_short_bodies_only() {
        assert!(is_inflated_at_once(1000));
        assert!(!is_inflated_at_once(10 << 20));
    }
}
