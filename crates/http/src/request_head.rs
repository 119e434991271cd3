//! The parts of a request head that the endpoints read.

use galatea_control::TraceHeaders;
use galatea_explain::LatencyExplanation;
use galatea_infer::TimeoutHeaders;
use hyper::Method;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, EXPECT, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use crate::http_response::{HEADER_LENGTH, LOAD_REPORT_FORMAT};

const ENVOY_TIMEOUT: HeaderName = HeaderName::from_static(TimeoutHeaders::ENVOY);
const EXPLAIN: HeaderName = HeaderName::from_static(LatencyExplanation::HEADER);
const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static(TimeoutHeaders::REQUEST);

/// A request head, read by hyper or by `plain`.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: Method,
    /// The path, without the query.
    pub(crate) path: &'a str,
    /// The length of the JSON. If a header is repeated, the first one counts, but different lengths
    /// are refused.
    pub(crate) header_length: Option<&'a [u8]>,
    /// A second JSON length that differs from the first.
    pub(crate) second_header_length: Option<&'a [u8]>,
    pub(crate) encoding: Option<&'a [u8]>,
    pub(crate) accept_encoding: Option<&'a [u8]>,
    /// The form in which the server's load is reported with the response, if the client requests
    /// it.
    pub(crate) load_report: Option<&'a [u8]>,
    pub(crate) trace: TraceHeaders<'a>,
    pub(crate) timeouts: TimeoutHeaders<'a>,
    /// True if the client requests an explanation.
    pub(crate) wants_explanation: bool,
    /// True if the client may wait for an interim response before it sends the body.
    pub(crate) expects_continue: bool,
    /// All headers, for an endpoint that wants them.
    pub(crate) headers: Vec<SentHeader<'a>>,
}

/// A header as the client sent it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentHeader<'a> {
    pub(crate) name: &'a str,
    /// The value, including surrounding whitespace.
    pub(crate) value: &'a [u8],
}

/// Returns the headers from the lines of a head that was already parsed.
pub(crate) fn sent_headers(head: &[u8]) -> impl Iterator<Item = SentHeader<'_>> {
    let lines = head.split(|byte| *byte == b'\n');
    lines.filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        // The first line has spaces before any colon.
        let name = std::str::from_utf8(name).ok().filter(|name| !name.contains(' '))?;
        Some(SentHeader { name, value: value.get(1..)? })
    })
}

impl<'a> RequestHead<'a> {
    /// Creates the head from the parts that hyper read. `sent` contains the received bytes of the
    /// head, or is empty.
    pub(crate) fn of(parts: &'a Parts, with_headers: bool, sent: &'a [u8]) -> Self {
        let value = |name| parts.headers.get(name).map(|value| value.as_bytes());
        let named = |name| parts.headers.get(name).map(HeaderValue::as_bytes);
        let mut lengths = parts.headers.get_all(HEADER_LENGTH).iter().map(HeaderValue::as_bytes);
        let first_length = lengths.next();
        let second_length = lengths.find(|value| Some(*value) != first_length);
        let headers = with_headers.then(|| headers_of(parts, sent));
        Self {
            method: parts.method.clone(),
            path: parts.uri.path(),
            header_length: first_length,
            second_header_length: second_length,
            encoding: value(CONTENT_ENCODING),
            accept_encoding: value(ACCEPT_ENCODING),
            load_report: value(LOAD_REPORT_FORMAT),
            trace: TraceHeaders { parent: named("traceparent"), state: named("tracestate") },
            timeouts: TimeoutHeaders {
                envoy: value(ENVOY_TIMEOUT),
                request: value(REQUEST_TIMEOUT),
            },
            wants_explanation: value(EXPLAIN).is_some_and(LatencyExplanation::is_asked),
            expects_continue: parts.headers.contains_key(EXPECT),
            headers: headers.unwrap_or_default(),
        }
    }

    /// Returns the first value of a header that [`RequestHead`] doesn't name, if the headers are
    /// available.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        let header = self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| header.value.trim_ascii())
    }
}

/// Returns the headers that hyper read. hyper lowercases names and trims values, so the headers are
/// taken from the received bytes if they match the head that hyper read.
fn headers_of<'a>(parts: &'a Parts, sent: &'a [u8]) -> Vec<SentHeader<'a>> {
    let sent: Vec<SentHeader<'_>> = sent_headers(sent).take(parts.headers.len()).collect();
    let read = |sent: &SentHeader<'_>| {
        let mut values = parts.headers.get_all(sent.name).iter();
        values.any(|value| value.as_bytes().trim_ascii() == sent.value.trim_ascii())
    };
    if sent.len() == parts.headers.len() && sent.iter().all(read) {
        return sent;
    }
    let header = |(name, value): (&'a HeaderName, &'a HeaderValue)| SentHeader {
        name: name.as_str(),
        value: value.as_bytes(),
    };
    parts.headers.iter().map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the headers that an endpoint sees after hyper has read these received bytes.
    fn seen(received: &str) -> Vec<String> {
        let request = hyper::Request::builder().header("my-a", "1").header("my-b", "2 3");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let shown = |header: &SentHeader<'_>| {
            format!("{}:{}", header.name, String::from_utf8_lossy(header.value))
        };
        RequestHead::of(&parts, true, received.as_bytes()).headers.iter().map(shown).collect()
    }

    #[test]
    fn headers_are_seen_as_they_were_sent() {
        let body = "\r\n\r\nbody: x\r\n";
        let received = format!("GET /a:b HTTP/1.0\r\nMy-A: 1 \r\nMY-b:\t2 3{body}");
        assert_eq!(seen(&received), ["My-A: 1 ", "MY-b:\t2 3"]);
    }

    #[test]
    fn headers_that_were_not_received_together_are_seen_as_hyper_read_them() {
        for received in ["", "My-A: 1\r\n", "My-A: 1\r\nMy-B: 9\r\n\r\n", "a: 1\nb: 2\n\n"] {
            assert_eq!(seen(received), ["my-a:1", "my-b:2 3"], "{received}");
        }
    }
}
