//! Writes the response to a call.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use galatea_codec::compression::ContentCoding;
use galatea_explain::{LatencyExplanation, Milestone};
use h2::SendStream;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response};

use crate::budget::Outgoing;
use crate::compression::ACCEPTED;
use crate::failure::{Failure, Refusal};

/// The maximum length of a gRPC status message as sent, in bytes.
///
/// The message is sent as a header. Clients accept eight kilobytes of headers; beyond that, they
/// report a protocol error instead of the status.
const GRPC_STATUS_BYTES_MAX: usize = 4 << 10;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// The header that tells clients with a retry policy how long to wait before they repeat the call.
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// The header with the same delay, for clients that read it themselves.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// The header that explains the call's duration.
const EXPLAIN: HeaderName = HeaderName::from_static(LatencyExplanation::HEADER);
const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Sends the response to a call. Send errors are ignored: they mean that the client has
/// disconnected, which the connection notices by itself.
pub(crate) type CallResponder = SendResponse<Outgoing>;

/// Begins a response whose messages may be compressed. Returns `None` if the client has
/// disconnected.
pub(crate) fn send_head(
    responder: &mut CallResponder,
    coding: Option<ContentCoding>,
) -> Option<SendStream<Outgoing>> {
    let mut response = Response::new(());
    *response.headers_mut() = match coding {
        None => HEAD.clone(),
        Some(coding) => head(Some(HeaderValue::from_static(coding.name()))),
    };
    responder.send_response(response, false).ok()
}

/// Responds with a message.
pub(crate) fn send_message(
    responder: &mut CallResponder,
    message: Outgoing,
    coding: Option<ContentCoding>,
    explanation: Option<&Arc<LatencyExplanation>>,
) {
    let Some(mut stream) = send_head(responder, coding) else { return };
    // A message that doesn't fit into the client's window stays in counted memory, so waiting for
    // the window would save nothing.
    if stream.send_data(message, false).is_ok() {
        let mut trailers = success_trailers();
        put_explanation(&mut trailers, explanation);
        let _ = stream.send_trailers(trailers);
    }
}

/// Creates the headers of a response.
fn head(encoding: Option<HeaderValue>) -> HeaderMap {
    let encoding = encoding.map(|encoding| (GRPC_ENCODING, encoding));
    let first = std::iter::once((CONTENT_TYPE, APPLICATION_GRPC));
    first.chain(encoding).chain([(GRPC_ACCEPT_ENCODING, ACCEPTED)]).collect()
}

/// The headers of an uncompressed response. Copying them costs half as much as inserting them.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| head(None));

/// The trailers of a successful call, prebuilt for the same reason.
static SUCCESS: LazyLock<HeaderMap> =
    LazyLock::new(|| HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]));

/// Returns the trailers of a successful call.
pub(crate) fn success_trailers() -> HeaderMap {
    SUCCESS.clone()
}

/// Creates the trailers of a failed call.
pub(crate) fn failure_trailers(failure: &Failure) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    put_failure(&mut trailers, failure);
    trailers
}

/// Responds with a failure.
pub(crate) fn send_failure(
    responder: &mut CallResponder,
    failure: &Failure,
    explanation: Option<&Arc<LatencyExplanation>>,
) {
    let mut response = failure_response(failure);
    put_explanation(response.headers_mut(), explanation);
    let _ = responder.send_response(response, true);
}

/// Adds the explanation of a request. Called just before the connection's thread sends it.
fn put_explanation(headers: &mut HeaderMap, explanation: Option<&Arc<LatencyExplanation>>) {
    let Some(explanation) = explanation else { return };
    explanation.set_milestone(Milestone::TakenUp, Instant::now());
    let value = explanation.text().and_then(|text| HeaderValue::try_from(text.json).ok());
    if let Some(value) = value {
        headers.insert(EXPLAIN, value);
    }
}

/// Refuses a call based on its head.
pub(crate) fn send_refusal(responder: &mut CallResponder, refusal: &Refusal) {
    let response = match refusal {
        Refusal::Http(status) => {
            let mut response = Response::new(());
            *response.status_mut() = *status;
            response
        }
        Refusal::Grpc(failure) => failure_response(failure),
        Refusal::Stream(failure) => {
            if let Some(mut stream) = send_head(responder, None) {
                let _ = stream.send_trailers(failure_trailers(failure));
            }
            return;
        }
        Refusal::Compressed(failure) => {
            let mut response = failure_response(failure);
            response.headers_mut().insert(GRPC_ACCEPT_ENCODING, ACCEPTED);
            response
        }
    };
    let _ = responder.send_response(response, true);
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
    if let Some(milliseconds) = failure.retry_after_ms {
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(milliseconds));
    }
    if let Some(seconds) = failure.retry_after_secs {
        let milliseconds = u64::from(seconds).saturating_mul(1000);
        let milliseconds = failure.retry_after_ms.map_or(milliseconds, u64::from);
        headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from(milliseconds));
    }
}

/// Encodes a message as a `grpc-message` value: printable ASCII stays, and every other byte becomes
/// `%` and two digits.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for character in message.chars() {
        if encoded.len() >= GRPC_STATUS_BYTES_MAX {
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
