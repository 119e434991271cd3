//! What the endpoints look at in the head of a request.

use std::borrow::Cow;

use hyper::Method;
use hyper::header::{CONTENT_ENCODING, EXPECT};
use hyper::http::request::Parts;

use crate::respond::HEADER_LENGTH;

/// The head of a request, whoever read it.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: Method,
    /// Without the query.
    pub(crate) path: &'a str,
    /// Of headers that are there more than once, the first counts.
    pub(crate) header_length: Option<&'a [u8]>,
    pub(crate) encoding: Option<&'a [u8]>,
    /// The client may wait to be told that its body is wanted.
    pub(crate) expects: bool,
    /// Every header with its name in lower case, for an endpoint that asks for them.
    pub(crate) headers: Vec<(Cow<'a, str>, &'a [u8])>,
}

impl<'a> Head<'a> {
    /// The head that hyper read.
    pub(crate) fn of(parts: &'a Parts, with_headers: bool) -> Self {
        let value = |name| parts.headers.get(name).map(|value| value.as_bytes());
        let header = |(name, value)| {
            let (name, value): (&'a hyper::header::HeaderName, &'a hyper::header::HeaderValue) =
                (name, value);
            (Cow::Borrowed(name.as_str()), value.as_bytes())
        };
        let headers = with_headers.then(|| parts.headers.iter().map(header).collect());
        Self {
            method: parts.method.clone(),
            path: parts.uri.path(),
            header_length: value(HEADER_LENGTH),
            encoding: value(CONTENT_ENCODING),
            expects: parts.headers.contains_key(EXPECT),
            headers: headers.unwrap_or_default(),
        }
    }

    /// Whether the body comes compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        self.encoding.is_some_and(|encoding| !encoding.is_empty() && encoding != b"identity")
    }
}
