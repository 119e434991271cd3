//! Making responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use galatea_codec::http::{EncodedResponse, encode_error};
use galatea_infer::{Code, Status};
use http_body::{Body, Frame, SizeHint};
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;

/// The header that says how long the JSON before binary tensors is.
pub(crate) const HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The parts of a body, sent one after the other without copying.
pub(crate) struct ResponseBody {
    chunks: smallvec::IntoIter<[Bytes; 2]>,
    remaining: u64,
}

impl ResponseBody {
    fn new(chunks: SmallVec<[Bytes; 2]>) -> Self {
        let length = |chunk: &Bytes| u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        let remaining = chunks.iter().map(length).fold(0_u64, u64::saturating_add);
        Self { chunks: chunks.into_iter(), remaining }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.chunks.find(|chunk| !chunk.is_empty());
        if let Some(chunk) = &chunk {
            let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            self.remaining = self.remaining.saturating_sub(length);
        }
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}

pub(crate) type Reply = Response<ResponseBody>;

fn reply(code: StatusCode, content_type: Option<HeaderValue>, body: Bytes) -> Reply {
    let mut chunks = SmallVec::new();
    chunks.push(body);
    let mut response = Response::new(ResponseBody::new(chunks));
    *response.status_mut() = code;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    response
}

/// A status without a body.
pub(crate) fn empty(code: StatusCode) -> Reply {
    reply(code, None, Bytes::new())
}

/// A JSON document.
pub(crate) fn json(document: impl Into<Bytes>) -> Reply {
    reply(StatusCode::OK, Some(JSON), document.into())
}

/// Text of another type.
pub(crate) fn text(content_type: &'static str, body: String) -> Reply {
    reply(StatusCode::OK, Some(HeaderValue::from_static(content_type)), body.into())
}

/// The error object with this code.
pub(crate) fn error(code: StatusCode, message: &str) -> Reply {
    reply(code, Some(JSON), encode_error(message).into())
}

/// The error object for a status.
pub(crate) fn failure(status: &Status) -> Reply {
    error(http_code(status.code()), status.message())
}

/// The same response, after which the connection is closed.
pub(crate) fn closing(mut response: Reply) -> Reply {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The refusal of a compressed body, which says what is accepted instead.
pub(crate) fn unsupported_encoding() -> Reply {
    let mut response = error(StatusCode::NOT_IMPLEMENTED, "Unsupported compression type");
    response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    response
}

/// An inference's response.
pub(crate) fn inference(encoded: EncodedResponse) -> Reply {
    let mut response = Response::new(ResponseBody::new(encoded.chunks));
    let headers: &mut HeaderMap = response.headers_mut();
    match encoded.header_length {
        None => {
            headers.insert(CONTENT_TYPE, JSON);
        }
        Some(length) => {
            headers.insert(CONTENT_TYPE, OCTETS);
            headers.insert(HEADER_LENGTH, HeaderValue::from(length));
        }
    }
    response
}

/// The one place where codes become HTTP statuses.
fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Code::Unknown | Code::InvalidArgument | Code::AlreadyExists | Code::Cancelled => {
            StatusCode::BAD_REQUEST
        }
    }
}
