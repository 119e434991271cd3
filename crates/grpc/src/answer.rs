//! Writing the answer to a call.

use std::borrow::Cow;
use std::fmt::Write as _;

use galatea_codec::grpc::{GrpcCode, grpc_code};
use galatea_infer::Status;
use h2::SendStream;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::unwritten::Outgoing;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Longest message of a failure, encoded. Clients take eight kilobytes of
/// trailers, and without this limit a long name in a message would turn a
/// clear refusal into a protocol error.
const FAILURE_BYTES_MAX: usize = 4096;

/// Why a call fails, as gRPC says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: GrpcCode,
    message: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: GrpcCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    #[cfg(test)]
    pub(crate) fn into_parts(self) -> (GrpcCode, String) {
        (self.code, self.message.into_owned())
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::new(grpc_code(status.code()), status.message().to_owned())
    }
}

/// Why a call isn't even read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is no gRPC call.
    Http(StatusCode),
    /// It is one, and fails.
    Grpc(Failure),
    /// Its messages are compressed.
    Compressed(Failure),
}

/// A stream that an answer goes to. Failures to send are not looked at: the
/// client is gone, and the connection will tell.
pub(crate) type Responder = SendResponse<Outgoing>;

/// Begins an answer; `None` if the client is gone.
pub(crate) fn send_head(respond: &mut Responder) -> Option<SendStream<Outgoing>> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC);
    respond.send_response(response, false).ok()
}

/// Answers with a message.
pub(crate) fn send_message(respond: &mut Responder, message: Outgoing) {
    let Some(mut stream) = send_head(respond) else { return };
    // What the client's window has no room for stays in pieces that exist
    // anyway and that are counted, so nothing is gained by waiting for the
    // window here.
    if stream.send_data(message, false).is_ok() {
        let _ = stream.send_trailers(success_trailers());
    }
}

/// What follows the last message of a call that succeeds.
pub(crate) fn success_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// What follows the last message of a call that fails.
pub(crate) fn failure_trailers(failure: &Failure) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    put_failure(&mut trailers, failure);
    trailers
}

/// Answers with a failure.
pub(crate) fn send_failure(respond: &mut Responder, failure: &Failure) {
    let _ = respond.send_response(failure_response(failure), true);
}

/// Answers a call that was not read.
pub(crate) fn send_refusal(respond: &mut Responder, refusal: &Refusal) {
    let response = match refusal {
        Refusal::Http(status) => {
            let mut response = Response::new(());
            *response.status_mut() = *status;
            response
        }
        Refusal::Grpc(failure) => failure_response(failure),
        Refusal::Compressed(failure) => {
            let mut response = failure_response(failure);
            let identity = HeaderValue::from_static("identity");
            response.headers_mut().insert(GRPC_ACCEPT_ENCODING, identity);
            response
        }
    };
    let _ = respond.send_response(response, true);
}

fn failure_response(failure: &Failure) -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
    put_failure(headers, failure);
    response
}

fn put_failure(headers: &mut HeaderMap, failure: &Failure) {
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(failure.code.number())));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(&failure.message))
        && !message.is_empty()
    {
        headers.insert(GRPC_MESSAGE, message);
    }
}

/// A message as it travels in `grpc-message`: printable ASCII, and everything
/// else as `%` with two digits.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for character in message.chars() {
        if encoded.len() >= FAILURE_BYTES_MAX {
            encoded.push_str("...");
            break;
        }
        if matches!(character, ' '..='~') && character != '%' {
            encoded.push(character);
            continue;
        }
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            // Writing to a string can't fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &str, expected: &str) {
        assert_eq!(percent_encoded(message), expected);
    }

    #[test]
    fn messages_are_percent_encoded() {
        check("", "");
        check("model 'a' ~ isn't", "model 'a' ~ isn't");
        check("100%", "100%25");
        check("a\r\nb\0\x7f", "a%0D%0Ab%00%7F");
        check("größe", "gr%C3%B6%C3%9Fe");
    }

    #[test]
    fn long_messages_end_between_characters() {
        let encoded = percent_encoded(&"ö".repeat(10_000));
        assert_eq!(encoded.len(), 4098 + 3);
        assert!(encoded.ends_with("%C3%B6..."));
    }
}
