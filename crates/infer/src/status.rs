//! The one error type that crosses the server's inner borders.

use std::borrow::Cow;
use std::fmt;

/// What kind of failure a [`Status`] reports, as Triton's C API names them.
///
/// Each door maps these to its protocol in one function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A failure that fits no other code.
    Unknown,
    /// The server broke one of its own rules.
    Internal,
    /// What was asked for does not exist.
    NotFound,
    /// The request is wrong; sending it again won't help.
    InvalidArgument,
    /// Not now; sending it again later may help.
    Unavailable,
    /// The server, or this model, can't do that.
    Unsupported,
    /// What was to be created exists.
    AlreadyExists,
    /// The client gave up on the request.
    Cancelled,
}

impl Code {
    /// What it is called where it stands before a message.
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
        }
    }
}

/// A failure with its code and a message that a client may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
}

impl Status {
    /// A status with this code and message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The request is wrong.
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// A broken rule of the server's own.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// Something asked for does not exist.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// Not now.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unavailable, message)
    }

    /// Not here.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unsupported, message)
    }

    /// The client gave up.
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
        Self { code: self.code, message: format!("{prefix}{}", self.message).into() }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
