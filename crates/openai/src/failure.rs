//! The ways in which a request can fail, in the form that Triton's frontend reports them.

use std::fmt;

use crate::json::push_string;
use crate::schema::ErrorList;

/// The reason why a request gets no completion.
#[derive(Debug)]
pub enum Failure {
    /// A mistake by the client: code 400, with this text.
    Client(String),
    /// A field whose value the client must change: code 400.
    Field {
        /// The path of the field.
        param: String,
        /// The text.
        text: String,
        /// The kind of the mistake, in the terms of OpenAI's API.
        code: Option<&'static str>,
    },
    /// Any other failure: code 500, with this text.
    Server(String),
    /// A body whose fields are invalid: code 422.
    Invalid(ErrorList),
}

impl Failure {
    /// Creates a failure that the client caused.
    pub(crate) fn client(text: impl Into<String>) -> Self {
        Self::Client(text.into())
    }

    /// Creates a failure that the client didn't cause.
    pub(crate) fn server(text: impl Into<String>) -> Self {
        Self::Server(text.into())
    }

    /// Returns the status code and the body of the response.
    #[must_use]
    pub fn into_document(self) -> (u16, Vec<u8>) {
        match self {
            Self::Client(text) | Self::Field { text, .. } => (400, detail_document(&text)),
            Self::Server(text) => (500, detail_document(&text)),
            Self::Invalid(errors) => (422, errors.into_document()),
        }
    }
}

impl Failure {
    /// Returns the status code and the body of the response in the form of OpenAI's API. It has
    /// one code, 400, for all mistakes of clients.
    #[must_use]
    pub fn into_error_document(self) -> (u16, Vec<u8>) {
        let (text, param, code) = match self {
            Self::Server(text) => return (500, error_document(&text, SERVER_ERROR, None)),
            Self::Client(text) => (text, None, None),
            Self::Field { param, text, code } => (text, Some(param), code),
            Self::Invalid(errors) => errors.into_first(),
        };
        (400, field_error_document(&text, INVALID_REQUEST, param.as_deref(), code))
    }
}

const SERVER_ERROR: &str = "server_error";
const INVALID_REQUEST: &str = "invalid_request_error";

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(text) | Self::Server(text) | Self::Field { text, .. } => f.write_str(text),
            Self::Invalid(_) => f.write_str("the request's fields are invalid"),
        }
    }
}

impl std::error::Error for Failure {}

/// Formats an error as FastAPI does.
#[must_use]
pub fn detail_document(text: &str) -> Vec<u8> {
    let mut document = b"{\"detail\":".to_vec();
    push_string(&mut document, text);
    document.push(b'}');
    document
}

/// Formats an error as OpenAI's API does, without the field that it is about.
#[must_use]
pub fn error_document(message: &str, kind: &str, code: Option<&str>) -> Vec<u8> {
    let mut document = b"{\"error\":{\"message\":".to_vec();
    push_string(&mut document, message);
    document.extend_from_slice(b",\"type\":");
    push_string(&mut document, kind);
    document.extend_from_slice(b",\"code\":");
    push_optional(&mut document, code);
    document.extend_from_slice(b"}}");
    document
}

/// Formats an error as OpenAI's API does.
fn field_error_document(
    message: &str,
    kind: &str,
    param: Option<&str>,
    code: Option<&str>,
) -> Vec<u8> {
    let mut document = b"{\"error\":{\"message\":".to_vec();
    push_string(&mut document, message);
    document.extend_from_slice(b",\"type\":");
    push_string(&mut document, kind);
    document.extend_from_slice(b",\"param\":");
    push_optional(&mut document, param);
    document.extend_from_slice(b",\"code\":");
    push_optional(&mut document, code);
    document.extend_from_slice(b"}}");
    document
}

fn push_optional(document: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => push_string(document, text),
        None => document.extend_from_slice(b"null"),
    }
}
