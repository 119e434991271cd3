//! The one error type that crosses the server's internal boundaries.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use galatea_gate::ledger::MemoryLimitExceeded;
use galatea_gate::text::truncate_text;
use galatea_tensor::ForeignMemoryError;

/// The maximum length of an error message, in bytes. A longer message is truncated.
///
/// Messages may repeat a client's input. The gRPC door truncates a status further.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// The kind of failure that a [`Status`] reports, named as in Triton's C API.
///
/// Each door maps the codes to its protocol in one function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A failure that fits no other code.
    Unknown,
    /// The server violated one of its own invariants.
    Internal,
    /// The requested model, version or item does not exist.
    NotFound,
    /// The request is invalid; retrying does not help.
    InvalidArgument,
    /// The server can't serve the request now; a later retry may help.
    Unavailable,
    /// The server or the model does not support the operation.
    Unsupported,
    /// The item to be created exists already.
    AlreadyExists,
    /// The client cancelled the request.
    Cancelled,
    /// Requests and responses take up too much memory; a later retry may help. In the C API this is
    /// [`Unavailable`](Self::Unavailable).
    Exhausted,
    /// The request's deadline has passed. In the C API this is [`Unavailable`](Self::Unavailable).
    DeadlineExceeded,
}

impl Code {
    /// The text that Triton prints before a message.
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
            Self::Exhausted | Self::DeadlineExceeded => "Unavailable",
        }
    }
}

/// A failure with its code and a message that a client may see.
///
/// The message is truncated at `ERROR_BYTES_MAX` bytes, because it may repeat a client's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    code: Code,
    /// The time to wait before retrying, in milliseconds; 0 means unknown.
    retry_after_ms: u32,
    message: Cow<'static, str>,
}

impl Status {
    /// Makes a status with this code and message.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(text) = &mut message {
            truncate_text(text, ERROR_BYTES_MAX);
        }
        Self { code, retry_after_ms: 0, message }
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

    /// Tells the client not to retry before this time has passed.
    #[must_use]
    pub fn with_retry_after(self, time: Duration) -> Self {
        // Rounded up so that it is not too early, and never 0.
        let ms = time.as_nanos().div_ceil(1_000_000).max(1);
        Self { retry_after_ms: u32::try_from(ms).unwrap_or(u32::MAX), ..self }
    }

    /// The number of milliseconds after which the client may retry, if known.
    #[must_use]
    pub const fn retry_after_ms(&self) -> Option<u32> {
        if self.retry_after_ms == 0 { None } else { Some(self.retry_after_ms) }
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

    /// Replaces the message.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        Self { retry_after_ms: self.retry_after_ms, ..Self::new(self.code, message) }
    }

    /// Puts `prefix` in front of the message.
    #[must_use]
    pub fn prefixed(self, prefix: impl fmt::Display) -> Self {
        let retry_after_ms = self.retry_after_ms;
        Self { retry_after_ms, ..Self::new(self.code, format!("{prefix}{}", self.message)) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl From<MemoryLimitExceeded> for Status {
    fn from(exhausted: MemoryLimitExceeded) -> Self {
        Self::new(Code::Exhausted, exhausted.to_string())
    }
}

/// Covers memory that the client has removed, and copies that the memory limit does not allow.
impl From<ForeignMemoryError> for Status {
    fn from(error: ForeignMemoryError) -> Self {
        let code = match error {
            ForeignMemoryError::Lost(_) => Code::InvalidArgument,
            ForeignMemoryError::NoMemory(_) => Code::Unavailable,
            ForeignMemoryError::Device(_) | ForeignMemoryError::NotReadable => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_until_a_retry_is_rounded_up() {
        let after = |time| Status::internal("x").with_retry_after(time).prefixed("y");
        assert_eq!(Status::internal("x").retry_after_ms(), None);
        assert_eq!(after(Duration::ZERO).retry_after_ms(), Some(1));
        assert_eq!(after(Duration::from_nanos(1_000_001)).retry_after_ms(), Some(2));
        assert_eq!(after(Duration::MAX).retry_after_ms(), Some(u32::MAX));
    }

    #[test]
    fn a_long_message_is_cut() {
        let long = "x".repeat(1 << 20);
        let status = Status::internal(long.clone()).prefixed(&long);
        assert!(status.message().len() < ERROR_BYTES_MAX + 100);
        assert!(status.message().ends_with(" more bytes)"), "{status}");
        assert_eq!(Status::internal(String::from("short")).message(), "short");
    }
}
