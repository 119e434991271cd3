//! Making responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use galatea_codec::http::{EncodedResponse, encode_error};
use galatea_infer::{Code, Status};
use http_body::{Body, Frame, SizeHint};
use hyper::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;

/// The header that says how long the JSON before binary tensors is.
pub(crate) const HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");

const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";

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

/// A response on its way to whoever writes it.
pub(crate) struct Reply {
    pub(crate) code: StatusCode,
    pub(crate) content_type: Option<&'static str>,
    /// The header [`HEADER_LENGTH`].
    pub(crate) header_length: Option<usize>,
    /// The header that says which compressions are accepted.
    pub(crate) accept_encoding: Option<&'static str>,
    /// The connection is closed after this response.
    pub(crate) closes: bool,
    /// The body's parts in order.
    pub(crate) chunks: SmallVec<[Bytes; 2]>,
}

impl Reply {
    fn new(code: StatusCode, content_type: Option<&'static str>, body: Bytes) -> Self {
        let mut chunks = SmallVec::new();
        chunks.push(body);
        Self {
            code,
            content_type,
            header_length: None,
            accept_encoding: None,
            closes: false,
            chunks,
        }
    }

    /// The response as hyper takes it.
    pub(crate) fn into_response(self) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::new(self.chunks));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        if let Some(content_type) = self.content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(length) = self.header_length {
            headers.insert(HEADER_LENGTH, HeaderValue::from(length));
        }
        if let Some(accepted) = self.accept_encoding {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A status without a body.
pub(crate) fn empty(code: StatusCode) -> Reply {
    Reply::new(code, None, Bytes::new())
}

/// A JSON document.
pub(crate) fn json(document: impl Into<Bytes>) -> Reply {
    Reply::new(StatusCode::OK, Some(JSON), document.into())
}

/// Text of another type.
pub(crate) fn text(content_type: &'static str, body: String) -> Reply {
    Reply::new(StatusCode::OK, Some(content_type), body.into())
}

/// The error object with this code.
pub(crate) fn error(code: StatusCode, message: &str) -> Reply {
    Reply::new(code, Some(JSON), encode_error(message).into())
}

/// The error object for a status.
pub(crate) fn failure(status: &Status) -> Reply {
    error(http_code(status.code()), status.message())
}

/// The same response, after which the connection is closed.
pub(crate) fn closing(response: Reply) -> Reply {
    Reply { closes: true, ..response }
}

/// The refusal of a compressed body, which says what is accepted instead.
pub(crate) fn unsupported_encoding() -> Reply {
    let response = error(StatusCode::NOT_IMPLEMENTED, "Unsupported compression type");
    Reply { accept_encoding: Some("identity"), ..response }
}

/// An inference's response.
pub(crate) fn inference(encoded: EncodedResponse) -> Reply {
    Reply {
        code: StatusCode::OK,
        content_type: Some(if encoded.header_length.is_some() { OCTETS } else { JSON }),
        header_length: encoded.header_length,
        accept_encoding: None,
        closes: false,
        chunks: encoded.chunks,
    }
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
