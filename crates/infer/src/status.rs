//! The one error type that crosses the server's inner borders.

use std::borrow::Cow;
use std::fmt;

use galatea_gate::ledger::Exhausted;
use galatea_gate::limits::Limits;
use galatea_gate::text::cut;
use galatea_tensor::ForeignError;

/// The kind of failure that a [`Status`] reports, named as in Triton's C API.
///
/// Each door maps these to its protocol in one function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A failure that fits no other code.
    Unknown,
    /// The server broke one of its own rules.
    Internal,
    /// The requested model, version or item does not exist.
    NotFound,
    /// The request is wrong; a retry does not help.
    InvalidArgument,
    /// The server can't do it now; a later retry may help.
    Unavailable,
    /// The server or the model does not support the operation.
    Unsupported,
    /// The item to be created exists already.
    AlreadyExists,
    /// The client cancelled the request.
    Cancelled,
    /// Requests and responses hold too much memory; a later retry may help. In C it is
    /// [`Unavailable`](Self::Unavailable).
    Exhausted,
}

impl Code {
    /// The text that precedes a message, as Triton prints it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Internal => "Internal",
            Self::NotFound => "Not found",
            Self::InvalidArgument => "Invalid argument",
            Self::Unavailable => "Unavailable",
            Self::Unsupported => "Unsupported",
            Self::AlreadyExists => "Already exists",
            Self::Cancelled => "Cancelled",
            Self::Exhausted => "Unavailable",
        }
    }
}

/// A failure with its code and a message that a client may see.
///
/// The message is cut at [`Limits::ERROR_BYTES_MAX`]: it may repeat what a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
}

impl Status {
    /// Makes a status with this code and message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(text) = &mut message {
            cut(text, Limits::ERROR_BYTES_MAX);
        }
        Self { code, message }
    }

    /// Makes an [`InvalidArgument`](Code::InvalidArgument) status.
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// Makes an [`Internal`](Code::Internal) status.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// Makes a [`NotFound`](Code::NotFound) status.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// Makes an [`Unavailable`](Code::Unavailable) status.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// Makes an [`Unsupported`](Code::Unsupported) status.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unsupported, message)
    }

    /// Makes a [`Cancelled`](Code::Cancelled) status.
    pub fn cancelled(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Cancelled, message)
    }

    /// The code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same status with `prefix` before its message.
    #[must_use]
    pub fn prefixed(self, prefix: impl fmt::Display) -> Self {
        Self::new(self.code, format!("{prefix}{}", self.message))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl From<Exhausted> for Status {
    fn from(exhausted: Exhausted) -> Self {
        Self::new(Code::Exhausted, exhausted.to_string())
    }
}

/// The client took its memory away, or there is none for a copy of it.
impl From<ForeignError> for Status {
    fn from(error: ForeignError) -> Self {
        let code = match error {
            ForeignError::Lost(_) => Code::InvalidArgument,
            ForeignError::NoMemory(_) => Code::Unavailable,
            ForeignError::NotReadable => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut() {
        let long = "x".repeat(1 << 20);
        let status = Status::internal(long.clone()).prefixed(&long);
        assert!(status.message().len() < Limits::ERROR_BYTES_MAX + 100);
        assert!(status.message().ends_with(" more bytes)"), "{status}");
        assert_eq!(Status::internal(String::from("short")).message(), "short");
    }
}
