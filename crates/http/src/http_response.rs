//! HTTP responses.

use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use galatea_codec::documents::encode_error_json;
use galatea_codec_http::EncodedResponse;
use galatea_control::{DoorTracePoint, DoorTraceSink};
use galatea_gate::access::{AccessRefusal, TenantRefusal};
use galatea_gate::ledger::RETRY_AFTER_SECS;
use galatea_infer::{Code, Status};
use galatea_stdx::len64;
use http_body::{Body, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue,
    RETRY_AFTER,
};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;

use crate::event_stream::EventsLost;
use crate::events::Events;

/// The header that states the length of the JSON before binary tensors.
pub(crate) const HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");

/// The header that states the format in which a client requests the server's load.
pub(crate) const LOAD_REPORT_FORMAT: HeaderName =
    HeaderName::from_static("endpoint-load-metrics-format");

/// The header that reports the server's load.
const LOAD_REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// The header with the same delay as `Retry-After`, in milliseconds.
const RETRY_AFTER_MS: &str = "Retry-After-Ms";

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain";
const OCTETS: &str = "application/octet-stream";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The chunks of a body, which are sent in order without being copied, followed by its events.
pub(crate) struct ResponseBody {
    chunks: smallvec::IntoIter<[Bytes; 2]>,
    remaining: u64,
    events: Option<Events>,
    /// Called when hyper has taken the whole body or drops it.
    taken: Option<Box<dyn FnOnce() + Send>>,
    /// Records that the body was taken.
    trace: Option<SendTrace>,
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        drop(self.trace.take());
        if let Some(taken) = self.taken.take() {
            taken();
        }
    }
}

impl ResponseBody {
    fn new(
        chunks: SmallVec<[Bytes; 2]>,
        events: Option<Events>,
        taken: impl FnOnce() + Send + 'static,
    ) -> Self {
        let lengths = chunks.iter().map(|chunk| len64(chunk.len()));
        let remaining = lengths.fold(0, u64::saturating_add);
        let taken: Box<dyn FnOnce() + Send> = Box::new(taken);
        Self { chunks: chunks.into_iter(), remaining, events, taken: Some(taken), trace: None }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = EventsLost;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EventsLost>>> {
        let chunk = self.chunks.find(|chunk| !chunk.is_empty());
        if let Some(chunk) = &chunk {
            self.remaining = self.remaining.saturating_sub(len64(chunk.len()));
        }
        match (chunk, &mut self.events) {
            (None, Some(events)) => {
                let event = ready!(events.poll_next(context));
                Poll::Ready(event.map(|event| event.map(Frame::data)))
            }
            (chunk, _) => Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0 && self.events.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.events {
            None => SizeHint::with_exact(self.remaining),
            Some(_) => SizeHint::default(),
        }
    }
}

/// A response before hyper or `plain` writes it. It is boxed because it passes through many
/// futures: each move copies a pointer instead of hundreds of bytes.
pub(crate) struct HttpResponse(Box<ResponseParts>);

/// The parts of a response.
pub(crate) struct ResponseParts {
    pub(crate) code: StatusCode,
    pub(crate) content_type: Option<&'static str>,
    /// The length of the JSON before binary tensors, for the header [`HEADER_LENGTH`].
    pub(crate) header_length: Option<usize>,
    /// True if that length is appended to the content type instead of sent in a separate header.
    pub(crate) has_length_in_type: bool,
    /// The content coding of the body.
    pub(crate) content_encoding: Option<&'static str>,
    /// The value of the `Accept-Encoding` header, which lists the accepted codings.
    pub(crate) accept_encoding: Option<&'static str>,
    /// The header [`LOAD_REPORT`].
    pub(crate) load_report: Option<HeaderValue>,
    /// Additional headers, which few responses have.
    pub(crate) headers: Option<Box<[(&'static str, HeaderValue)]>>,
    /// The number of seconds after which the client may retry, for the `Retry-After` header.
    pub(crate) retry_after_secs: Option<u32>,
    /// True if the connection is closed after this response.
    pub(crate) closes: bool,
    /// The chunks of the body, in order.
    pub(crate) chunks: SmallVec<[Bytes; 2]>,
    /// The events that follow the chunks and have no known length.
    pub(crate) events: Option<Events>,
    /// The trace of the request.
    pub(crate) trace: Option<Arc<dyn DoorTraceSink>>,
}

/// Records the sending of a response until this value is dropped.
pub(crate) struct SendTrace(Arc<dyn DoorTraceSink>);

impl SendTrace {
    /// Begins to record the sending of the response with this trace.
    pub(crate) fn begin(trace: Option<Arc<dyn DoorTraceSink>>) -> Option<Self> {
        let trace = trace?;
        trace.record(DoorTracePoint::HttpSendStart, Instant::now());
        Some(Self(trace))
    }
}

impl Drop for SendTrace {
    fn drop(&mut self) {
        self.0.record(DoorTracePoint::HttpSendEnd, Instant::now());
    }
}

impl Deref for HttpResponse {
    type Target = ResponseParts;

    fn deref(&self) -> &ResponseParts {
        &self.0
    }
}

impl DerefMut for HttpResponse {
    fn deref_mut(&mut self) -> &mut ResponseParts {
        &mut self.0
    }
}

impl HttpResponse {
    fn new(code: StatusCode, content_type: Option<&'static str>, body: Bytes) -> Self {
        Self::of_chunks(code, content_type, SmallVec::from_iter([body]))
    }

    fn of_chunks(
        code: StatusCode,
        content_type: Option<&'static str>,
        chunks: SmallVec<[Bytes; 2]>,
    ) -> Self {
        Self(Box::new(ResponseParts {
            code,
            content_type,
            header_length: None,
            has_length_in_type: false,
            content_encoding: None,
            accept_encoding: None,
            load_report: None,
            headers: None,
            retry_after_secs: None,
            closes: false,
            chunks,
            events: None,
            trace: None,
        }))
    }

    /// Converts the response into the form that hyper writes. `taken` is called when hyper has all
    /// of it.
    pub(crate) fn into_hyper(
        self,
        taken: impl FnOnce() + Send + 'static,
    ) -> Response<ResponseBody> {
        let parts = *self.0;
        let mut body = ResponseBody::new(parts.chunks, parts.events, taken);
        body.trace = SendTrace::begin(parts.trace);
        let mut response = Response::new(body);
        *response.status_mut() = parts.code;
        let reason = reason(parts.code);
        if parts.code.canonical_reason() != Some(reason) {
            response.extensions_mut().insert(ReasonPhrase::from_static(reason.as_bytes()));
        }
        let headers = response.headers_mut();
        match (parts.content_type, parts.header_length) {
            (Some(content_type), Some(length)) if parts.has_length_in_type => {
                let value = HeaderValue::try_from(format!("{content_type}{length}"));
                headers.extend(value.ok().map(|value| (CONTENT_TYPE, value)));
            }
            (content_type, length) => {
                let content_type = content_type.map(HeaderValue::from_static);
                headers.extend(content_type.map(|value| (CONTENT_TYPE, value)));
                headers.extend(length.map(|length| (HEADER_LENGTH, HeaderValue::from(length))));
            }
        }
        if let Some(coding) = parts.content_encoding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        if let Some(accepted) = parts.accept_encoding {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
        }
        if let Some(report) = parts.load_report {
            headers.insert(LOAD_REPORT, report);
        }
        for (name, value) in parts.headers.into_iter().flatten() {
            headers.extend(HeaderName::try_from(name).ok().map(|name| (name, value)));
        }
        if let Some(seconds) = parts.retry_after_secs {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if parts.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Creates a response without a body, such as the response to a health check.
pub(crate) fn bare(code: StatusCode) -> HttpResponse {
    HttpResponse::new(code, Some(PLAIN), Bytes::new())
}

/// Creates the response to a command, which has no body.
pub(crate) fn done() -> HttpResponse {
    HttpResponse::new(StatusCode::OK, Some(JSON), Bytes::new())
}

/// Creates a response with a JSON document.
pub(crate) fn json(document: impl Into<Bytes>) -> HttpResponse {
    HttpResponse::new(StatusCode::OK, Some(JSON), document.into())
}

/// Creates a response with a JSON document and this code.
pub(crate) fn document(code: StatusCode, document: Bytes) -> HttpResponse {
    HttpResponse::new(code, Some(JSON), document)
}

/// Creates a response with server-sent events.
pub(crate) fn events(code: StatusCode, events: Events) -> HttpResponse {
    let mut response = HttpResponse::new(code, Some(EVENTS), Bytes::new());
    response.events = Some(events);
    response
}

/// Creates a response with text of another type.
pub(crate) fn text(content_type: &'static str, body: Bytes) -> HttpResponse {
    HttpResponse::new(StatusCode::OK, Some(content_type), body)
}

/// Creates an error object with this code.
pub(crate) fn error(code: StatusCode, message: &str) -> HttpResponse {
    HttpResponse::new(code, Some(JSON), encode_error_json(message).into())
}

/// Converts a response to plain text. Triton sends plain text for errors that it finds before it
/// knows that the response is JSON.
pub(crate) fn plain(mut response: HttpResponse) -> HttpResponse {
    response.content_type = Some(PLAIN);
    response
}

/// Creates the error object for a restricted API.
pub(crate) fn restricted(refusal: AccessRefusal<'_>) -> HttpResponse {
    match refusal {
        AccessRefusal::Header { required } => {
            let text = format!("This API is restricted, expecting header '{required}'");
            plain(error(StatusCode::FORBIDDEN, &text))
        }
        AccessRefusal::Tenant(refusal) => {
            with_tenant_headers(refusal, error(tenant_code(refusal), &refusal.to_string()))
        }
    }
}

/// Returns the code for a key that doesn't allow a request.
pub(crate) const fn tenant_code(refusal: TenantRefusal) -> StatusCode {
    match refusal {
        TenantRefusal::MissingKey | TenantRefusal::UnknownKey => StatusCode::UNAUTHORIZED,
        TenantRefusal::ForbiddenApi(_) => StatusCode::FORBIDDEN,
        TenantRefusal::TooManyRequests { .. } => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Adds the headers that belong to the code: the form of a key (RFC 6750), or the time after which
/// the client may retry.
pub(crate) fn with_tenant_headers(
    refusal: TenantRefusal,
    mut response: HttpResponse,
) -> HttpResponse {
    match refusal {
        TenantRefusal::MissingKey | TenantRefusal::UnknownKey => {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers = Some(Box::from([(AUTHENTICATE, bearer)]));
        }
        TenantRefusal::ForbiddenApi(_) => {}
        TenantRefusal::TooManyRequests { retry_after_ms } => {
            set_retry_after(&mut response, retry_after_ms);
        }
    }
    response
}

const AUTHENTICATE: &str = "WWW-Authenticate";

fn set_retry_after(response: &mut HttpResponse, milliseconds: u32) {
    response.headers = Some(Box::from([(RETRY_AFTER_MS, HeaderValue::from(milliseconds))]));
    response.retry_after_secs = Some(milliseconds.div_ceil(1_000));
}

/// Returns the text that follows a status code. Triton's library has its own text for one of the
/// codes.
pub(crate) fn reason(code: StatusCode) -> &'static str {
    match code {
        StatusCode::METHOD_NOT_ALLOWED => "Not Allowed",
        _ => code.canonical_reason().unwrap_or("<none>"),
    }
}

/// Creates the error object for a status.
pub(crate) fn failure(status: &Status) -> HttpResponse {
    let mut response = error(http_code(status.code()), status.message());
    if let Some(milliseconds) = status.retry_after_ms() {
        set_retry_after(&mut response, milliseconds);
    } else if status.code() == Code::Exhausted {
        response.retry_after_secs = Some(RETRY_AFTER_SECS);
    }
    response
}

/// Creates the response to a client that took too long for a part of its request.
pub(crate) fn overdue(part: &str) -> HttpResponse {
    let message = format!("The {part} of the request did not arrive in time");
    closing(error(StatusCode::REQUEST_TIMEOUT, &message))
}

/// Marks a response after which the connection is closed.
pub(crate) fn closing(mut response: HttpResponse) -> HttpResponse {
    response.closes = true;
    response
}

/// Creates the refusal of a body in an unknown coding, which lists the accepted codings.
pub(crate) fn unsupported_encoding() -> HttpResponse {
    let mut response = plain(error(StatusCode::NOT_IMPLEMENTED, "Unsupported compression type"));
    response.accept_encoding = Some("gzip, deflate");
    response
}

/// Creates the response to an inference request.
pub(crate) fn inference(encoded: EncodedResponse) -> HttpResponse {
    let content_type = if encoded.header_length.is_some() { OCTETS } else { JSON };
    let mut response = HttpResponse::of_chunks(StatusCode::OK, Some(content_type), encoded.chunks);
    response.header_length = encoded.header_length;
    response
}

/// Maps a code to its HTTP status. No other function does this.
fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unavailable | Code::Exhausted | Code::DeadlineExceeded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Code::Unknown | Code::InvalidArgument | Code::AlreadyExists | Code::Cancelled => {
            StatusCode::BAD_REQUEST
        }
    }
}
