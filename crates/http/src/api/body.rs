//! Reads request bodies, or refuses them.

use bytes::Bytes;
use galatea_codec_http::{body_too_large_error, inflated_body_too_large_error};
use galatea_gate::ledger::{MemoryAccount, MemoryLimitExceeded};
use galatea_infer::Status;
use galatea_stdx::len64;
use hyper::StatusCode;

use super::Api;
use crate::compression::BodyCoding;
use crate::dialect::Dialect;
use crate::endpoint::Disconnected;
use crate::http_response::{self, HttpResponse};
use crate::openai::too_large;
use crate::request_body::{BodyError, BodyLimits, RequestBody};
use crate::request_head::RequestHead;

impl Api {
    /// Reads a body of at most `bytes_max` bytes. Returns a response if the body is refused.
    pub(crate) async fn read_body<B: RequestBody>(
        &self,
        head: &RequestHead<'_>,
        body: &mut B,
        bytes_max: u64,
    ) -> Result<Result<Bytes, HttpResponse>, Disconnected> {
        if let Err(exhausted) = check_memory(body, bytes_max) {
            // A client that waits has not sent anything.
            let refusal = self.out_of_memory(body, exhausted, head.expects_continue);
            return Ok(Err(Box::pin(refusal).await));
        }
        let limits = BodyLimits { bytes_max, chunks_max: self.chunks_max };
        // Such a client has not sent anything and will see the response.
        let waits_for_continue = head.expects_continue && body.length_min() > bytes_max;
        let error = match body.collect(limits).await {
            Ok(bytes) => return Ok(Ok(bytes)),
            Err(BodyError::Exhausted(exhausted)) => {
                return Ok(Err(Box::pin(self.out_of_memory(body, exhausted, false)).await));
            }
            Err(error) => error,
        };
        // Such a client is not expected to send anything else that could be understood.
        let is_at_end = matches!(error, BodyError::Overdue | BodyError::Malformed);
        let refusal = self.refusal(head, error)?;
        if !waits_for_continue && !is_at_end {
            Box::pin(self.body_drain.drain(body)).await;
        }
        Ok(Err(http_response::closing(refusal)))
    }

    /// Refuses a body that doesn't fit in memory. The rest of the body is read and discarded, so
    /// the connection can continue.
    async fn out_of_memory<B: RequestBody>(
        &self,
        body: &mut B,
        exhausted: MemoryLimitExceeded,
        waits_for_continue: bool,
    ) -> HttpResponse {
        let refusal = http_response::failure(&exhausted.into());
        if !waits_for_continue {
            self.body_drain.drain(body).await;
        }
        if body.is_whole() { refusal } else { http_response::closing(refusal) }
    }

    fn refusal(
        &self,
        head: &RequestHead<'_>,
        error: BodyError,
    ) -> Result<HttpResponse, Disconnected> {
        match error {
            BodyError::Truncated => Err(Disconnected),
            BodyError::Overdue => Ok(http_response::overdue("body")),
            BodyError::Malformed => Ok(http_response::error(
                StatusCode::BAD_REQUEST,
                "the chunks of the request's body are malformed",
            )),
            BodyError::Exhausted(exhausted) => Ok(http_response::failure(&exhausted.into())),
            // Compressed data of this length inflates to more than the limit.
            BodyError::TooLarge { .. } if self.dialect.coding(head) == BodyCoding::Compressed => {
                Ok(http_response::failure(&inflated_body_too_large_error(&self.limits)))
            }
            BodyError::TooLarge { length } if self.dialect == Dialect::OpenAi => {
                Ok(too_large(length, self.limits.input_bytes_max))
            }
            BodyError::TooLarge { length } => {
                Ok(http_response::failure(&self.too_large(head, length)))
            }
            BodyError::TooManyChunks => Ok(http_response::error(
                StatusCode::BAD_REQUEST,
                &format!(
                    "Chunked request body exceeds maximum of {} non-empty chunks. Send fewer or \
                     larger HTTP chunks.",
                    self.chunks_max
                ),
            )),
        }
    }

    /// Returns the error for a request whose body, of at least `length` bytes, is too long to read.
    fn too_large(&self, head: &RequestHead<'_>, length: u64) -> Status {
        let length_max = usize::try_from(length).unwrap_or(usize::MAX);
        match self.dialect.json_length(head, length_max) {
            Ok(0) => body_too_large_error(length, true, &self.limits),
            Ok(json_length) => body_too_large_error(len64(json_length), false, &self.limits),
            Err(status) => status,
        }
    }
}

/// Checks, before any of the body is received, whether there is memory for its announced length.
/// Bodies longer than `bytes_max` are refused for their length instead.
fn check_memory<B: RequestBody>(body: &B, bytes_max: u64) -> Result<(), MemoryLimitExceeded> {
    let length = body.length_min();
    if length <= len64(MemoryAccount::SMALL_BYTES_MAX) || length > bytes_max {
        return Ok(());
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    body.account().ledger().check(length)
}
