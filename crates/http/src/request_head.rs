//! What the endpoints read in the head of a request.

use std::borrow::Cow;

use hyper::Method;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, EXPECT, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use crate::http_response::HEADER_LENGTH;

/// The head of a request, read by hyper or by `plain`.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: Method,
    /// Without the query.
    pub(crate) path: &'a str,
    /// Of repeated headers, the first counts. Different lengths of the JSON are refused.
    pub(crate) header_length: Option<&'a [u8]>,
    /// A second length of the JSON that differs from the first.
    pub(crate) second_header_length: Option<&'a [u8]>,
    pub(crate) encoding: Option<&'a [u8]>,
    pub(crate) accept_encoding: Option<&'a [u8]>,
    /// The client may wait for an interim response before it sends the body.
    pub(crate) expects_continue: bool,
    /// Every header with its name in lower case, for an endpoint that wants them.
    pub(crate) headers: Vec<(Cow<'a, str>, &'a [u8])>,
}

impl<'a> RequestHead<'a> {
    /// The head that hyper read.
    pub(crate) fn of(parts: &'a Parts, with_headers: bool) -> Self {
        let value = |name| parts.headers.get(name).map(|value| value.as_bytes());
        let header = |(name, value)| {
            let (name, value): (&'a HeaderName, &'a HeaderValue) = (name, value);
            (Cow::Borrowed(name.as_str()), value.as_bytes())
        };
        let mut lengths = parts.headers.get_all(HEADER_LENGTH).iter().map(HeaderValue::as_bytes);
        let first_length = lengths.next();
        let second_length = lengths.find(|value| Some(*value) != first_length);
        let headers = with_headers.then(|| parts.headers.iter().map(header).collect());
        Self {
            method: parts.method.clone(),
            path: parts.uri.path(),
            header_length: first_length,
            second_header_length: second_length,
            encoding: value(CONTENT_ENCODING),
            accept_encoding: value(ACCEPT_ENCODING),
            expects_continue: parts.headers.contains_key(EXPECT),
            headers: headers.unwrap_or_default(),
        }
    }

    /// The first value of a header that [`RequestHead`] doesn't name, if the headers are there.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        let header = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        header.map(|(_, value)| *value)
    }
}
