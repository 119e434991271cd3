//! Parses the head of a plain request.

use std::mem::MaybeUninit;

use galatea_control::TraceHeaders;
use galatea_explain::LatencyExplanation;
use galatea_infer::TimeoutHeaders;
use httparse::{Header, Request, Status};
use hyper::Method;

use crate::request_head::{RequestHead, sent_headers};

/// The head of a plain request, and its consequences for the connection.
#[derive(Debug)]
pub(super) struct PlainHead<'a> {
    pub(super) head: RequestHead<'a>,
    /// The length of the head in bytes.
    pub(super) length: usize,
    pub(super) framing: Framing,
    /// True if the client waits for the interim response 100 before it sends the body.
    pub(super) waits_for_continue: bool,
    pub(super) keeps_alive: bool,
}

/// The position at which a body ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// The body ends after this many bytes.
    Length(u64),
    /// The body ends after its last chunk.
    Chunks,
}

/// The kind of data at the front of the received bytes.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made, and not kept")]
pub(super) enum Parsed<'a> {
    Plain(PlainHead<'a>),
    /// The beginning of a head; more bytes must arrive.
    Incomplete,
    /// A head that is left to hyper, for example because it is ambiguous.
    NotPlain,
}

/// The maximum number of headers; heads with more are left to hyper.
const HEADERS_MAX: usize = 32;

/// Parses the head at the front of `bytes`.
pub(super) fn parse(bytes: &[u8], wants_headers: impl Fn(&str) -> bool) -> Parsed<'_> {
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(Status::Complete(length)) => {
            let wants_headers = request.path.is_some_and(wants_headers);
            let with_headers = wants_headers.then_some(bytes);
            plain(&request, length, with_headers).map_or(Parsed::NotPlain, Parsed::Plain)
        }
        Ok(Status::Partial) => Parsed::Incomplete,
        Err(_) => Parsed::NotPlain,
    }
}

/// Returns true if there is an empty line, which ends a head, after the first `seen` bytes. A head
/// that arrives byte by byte is thus parsed only once it is complete.
pub(super) fn has_end(bytes: &[u8], seen: usize) -> bool {
    let unseen = bytes.get(seen.saturating_sub(3)..).unwrap_or_default();
    unseen.windows(2).any(|two| two == b"\n\n") || unseen.windows(3).any(|three| three == b"\n\r\n")
}

/// Returns the head of a complete request, if the request is plain.
fn plain<'a>(
    request: &Request<'_, 'a>,
    length: usize,
    with_headers: Option<&'a [u8]>,
) -> Option<PlainHead<'a>> {
    if request.version != Some(1) {
        return None;
    }
    let method = match request.method? {
        "POST" => Method::POST,
        "GET" => Method::GET,
        _ => return None,
    };
    let path = request.path.filter(|path| is_plain_path(path))?;
    let head = RequestHead {
        method,
        path,
        header_length: None,
        second_header_length: None,
        encoding: None,
        accept_encoding: None,
        load_report: None,
        trace: TraceHeaders::default(),
        timeouts: TimeoutHeaders::default(),
        wants_explanation: false,
        expects_continue: false,
        headers: Vec::new(),
    };
    let mut plain = PlainHead {
        head,
        length,
        framing: Framing::Length(0),
        waits_for_continue: false,
        keeps_alive: true,
    };
    let mut has_framing = false;
    for header in &*request.headers {
        plain.apply(header, &mut has_framing)?;
    }
    if let Some(bytes) = with_headers {
        let head = bytes.get(..length).unwrap_or_default();
        plain.head.headers = sent_headers(head).collect();
    }
    Some(plain)
}

/// Returns true if a request target consists of a path only and all its characters are unambiguous.
fn is_plain_path(path: &str) -> bool {
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-' | b'.' | b'~' | b'%')
    };
    path.starts_with('/') && path.bytes().all(plain)
}

impl<'a> PlainHead<'a> {
    /// Applies a header. Returns `None` if a request with this header isn't plain.
    fn apply(&mut self, header: &Header<'a>, has_framing: &mut bool) -> Option<()> {
        let Header { name, value } = *header;
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            2 if is("te") => return None,
            6 if is("expect") => {
                self.waits_for_continue = value.eq_ignore_ascii_case(b"100-continue");
                self.head.expects_continue = true;
                return self.waits_for_continue.then_some(());
            }
            7 if is("upgrade") => return None,
            7 if is("trailer") => return None,
            10 if is("connection") => {
                let closes = value.eq_ignore_ascii_case(b"close");
                self.keeps_alive &= !closes;
                return (closes || value.eq_ignore_ascii_case(b"keep-alive")).then_some(());
            }
            10 if is("tracestate") => {
                self.head.trace.state.get_or_insert(value);
            }
            11 if is("traceparent") => {
                self.head.trace.parent.get_or_insert(value);
            }
            14 if is("content-length") => {
                self.framing = Framing::Length(content_length(value)?);
                return (!std::mem::replace(has_framing, true)).then_some(());
            }
            14 if is(LatencyExplanation::HEADER) => {
                self.head.wants_explanation |= LatencyExplanation::is_asked(value);
            }
            15 if is("accept-encoding") => {
                self.head.accept_encoding.get_or_insert(value);
            }
            15 if is(TimeoutHeaders::REQUEST) => {
                self.head.timeouts.request.get_or_insert(value);
            }
            16 if is("content-encoding") => {
                self.head.encoding.get_or_insert(value);
            }
            17 if is("transfer-encoding") => {
                self.framing = Framing::Chunks;
                let is_first = !std::mem::replace(has_framing, true);
                return (is_first && value.eq_ignore_ascii_case(b"chunked")).then_some(());
            }
            28 if is("endpoint-load-metrics-format") => {
                self.head.load_report.get_or_insert(value);
            }
            30 if is(TimeoutHeaders::ENVOY) => {
                self.head.timeouts.envoy.get_or_insert(value);
            }
            31 if is("inference-header-content-length") => {
                let first = *self.head.header_length.get_or_insert(value);
                if first != value {
                    self.head.second_header_length = Some(value);
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// Parses a decimal number that fits into both a signed and an unsigned 64-bit integer.
fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let length = value.iter().try_fold(0_i64, |length, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        length.checked_mul(10)?.checked_add(i64::from(digit))
    })?;
    u64::try_from(length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_head::SentHeader;

    /// Returns the parsed parts of a request with these headers.
    fn parsed_with(headers: &str) -> Option<String> {
        let text = format!("POST /v2/models/m/infer HTTP/1.1\r\n{headers}\r\nbody");
        let Parsed::Plain(plain) = parse(text.as_bytes(), |_| true) else { return None };
        let shown = |value: Option<&[u8]>| {
            value.map_or(String::from("-"), |value| String::from_utf8(value.to_vec()).unwrap())
        };
        assert_eq!(Some(plain.length), text.len().checked_sub(4));
        assert_eq!((&plain.head.method, plain.head.path), (&Method::POST, "/v2/models/m/infer"));
        let framing = match plain.framing {
            Framing::Length(length) => length.to_string(),
            Framing::Chunks => String::from("chunks"),
        };
        Some(format!(
            "{framing} {} {} {}{}{}",
            shown(plain.head.header_length),
            shown(plain.head.encoding),
            if plain.waits_for_continue { "w" } else { "" },
            if plain.head.expects_continue { "e" } else { "" },
            if plain.keeps_alive { "k" } else { "" },
        ))
    }

    #[track_caller]
    fn check(headers: &str, expected: &str) {
        assert_eq!(parsed_with(headers).as_deref(), Some(expected), "{headers}");
    }

    #[track_caller]
    fn check_not_plain(headers: &str) {
        assert_eq!(parsed_with(headers), None, "{headers}");
    }

    #[test]
    fn explanations_are_asked_for() {
        for (header, asks) in [("Triton-Explain: 1", true), ("triton-explain: yes", false)] {
            let text = format!("GET / HTTP/1.1\r\nContent-Length: 1\r\n{header}\r\n\r\n");
            let Parsed::Plain(plain) = parse(text.as_bytes(), |_| false) else { panic!("{text}") };
            assert_eq!(plain.head.wants_explanation, asks, "{header}");
        }
    }

    #[test]
    fn plain_heads_are_parsed() {
        check("", "0 - - k");
        check("Content-Length: 12\r\nHost: x\r\n", "12 - - k");
        check("content-length:00012 \r\n", "12 - - k");
        check("Content-Length: 9223372036854775807\r\n", "9223372036854775807 - - k");
        check("INFERENCE-HEADER-CONTENT-LENGTH: -7\r\n", "0 -7 - k");
        check("Transfer-Encoding: Chunked\r\n", "chunks - - k");
        check("Content-Encoding: gzip\r\ncontent-encoding: identity\r\n", "0 - gzip k");
        check("Expect: 100-Continue\r\n", "0 - - wek");
        check("Connection: Keep-Alive\r\n", "0 - - k");
        check("Connection: close\r\nConnection: keep-alive\r\n", "0 - - ");
    }

    #[test]
    fn the_first_trace_context_counts() {
        let text =
            b"GET /a HTTP/1.1\r\nTraceParent: 1\r\ntraceparent: 2\r\nTRACESTATE: a=b\r\n\r\n";
        let Parsed::Plain(plain) = parse(text, |_| false) else { panic!("it is plain") };
        let TraceHeaders { parent, state } = plain.head.trace;
        assert_eq!((parent, state), (Some(&b"1"[..]), Some(&b"a=b"[..])));
    }

    #[test]
    fn the_first_timeout_counts() {
        let text =
            b"GET /a HTTP/1.1\r\nX-Envoy-Expected-Rq-Timeout-Ms: 5\r\nRequest-Timeout: 1\r\n\
                     request-timeout: 2\r\n\r\n";
        let Parsed::Plain(plain) = parse(text, |_| false) else { panic!("it is plain") };
        let expected = TimeoutHeaders { envoy: Some(b"5"), request: Some(b"1") };
        assert_eq!(plain.head.timeouts, expected);
    }

    #[test]
    fn ambiguous_heads_are_not_plain() {
        check_not_plain("Content-Length: 1\r\nContent-Length: 1\r\n");
        check_not_plain("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n");
        check_not_plain("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n");
        check_not_plain("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n");
        for encoding in ["identity", "gzip, chunked", "chunked, chunked", "chunked,", ""] {
            check_not_plain(&format!("Transfer-Encoding: {encoding}\r\n"));
        }
        for length in ["", "+1", "-1", "1,1", "1 1", "0x1", "9223372036854775808", "\u{663}"] {
            check_not_plain(&format!("Content-Length: {length}\r\n"));
        }
        for other in ["Upgrade: h2c", "Connection: upgrade", "Connection: keep-alive, close"] {
            check_not_plain(&format!("{other}\r\n"));
        }
        check_not_plain("Expect: a miracle\r\n");
        check_not_plain("TE: trailers\r\n");
        check_not_plain("Trailer: x\r\n");
        check_not_plain("Content-Length : 1\r\n");
        check_not_plain("A: b\r\n c\r\n");
        check_not_plain(&"a: b\r\n".repeat(HEADERS_MAX + 1));
    }

    #[test]
    fn requests_of_other_kinds_are_not_plain() {
        let is_plain = |line: &str| {
            let text = format!("{line}\r\n\r\n");
            matches!(parse(text.as_bytes(), |_| false), Parsed::Plain(_))
        };
        assert!(is_plain("GET /v2/a_b-c.d~e%2F/1 HTTP/1.1"));
        for line in [
            "GET /v2 HTTP/1.0",
            "HEAD /v2 HTTP/1.1",
            "PUT /v2 HTTP/1.1",
            "get /v2 HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "GET http://x/v2 HTTP/1.1",
            "GET /v2?a HTTP/1.1",
            "GET /v2#a HTTP/1.1",
            "GET v2 HTTP/1.1",
            "GET /v\u{e9} HTTP/1.1",
            "GET /v2 HTTP/1.1\r\nHost",
            "PRI * HTTP/2.0",
            "",
        ] {
            assert!(!is_plain(line), "{line}");
        }
    }

    #[test]
    fn half_a_head_is_incomplete() {
        let head = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n";
        for (end, _) in head.iter().enumerate() {
            let half = &head[..end];
            assert!(matches!(parse(half, |_| false), Parsed::Incomplete), "{end}");
            assert!(!has_end(half, 0));
        }
        for (seen, _) in head.iter().enumerate() {
            assert!(has_end(head, seen));
        }
        assert!(has_end(b"GET / HTTP/1.1\n\n", 15));
        assert!(!has_end(b"GET / HTTP/1.1\n\nHost", 20));
    }

    #[test]
    fn headers_are_kept_on_request() {
        let text = b"POST /a HTTP/1.1\r\nMy-Header:\tA:b \r\nEmpty:\r\nother: x\r\n\r\nbody: y\r\n";
        let headers = |with_headers| match parse(text, |_| with_headers) {
            Parsed::Plain(plain) => plain.head.headers,
            Parsed::Incomplete | Parsed::NotPlain => panic!("not plain"),
        };
        let header = |name, value: &'static str| SentHeader { name, value: value.as_bytes() };
        let expected = [header("My-Header", "\tA:b "), header("Empty", ""), header("other", " x")];
        assert_eq!(headers(true), expected);
        assert!(headers(false).is_empty());
    }
}
