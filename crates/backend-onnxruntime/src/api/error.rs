//! Errors of the library.

use std::ffi::CStr;
use std::fmt;

use galatea_infer::Status;
use ort_sys::OrtErrorCode;

/// An error, with the library's code and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrtError {
    code: i32,
    message: String,
}

impl fmt::Display for OrtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "onnx runtime error {}: {}", self.code, self.message)
    }
}

impl From<OrtError> for Status {
    fn from(error: OrtError) -> Self {
        Self::internal(error.to_string())
    }
}

impl OrtError {
    pub(super) const fn new(code: i32, message: String) -> Self {
        Self { code, message }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error for an unexpected null result from the library.
    pub(super) fn missing(what: &str) -> Self {
        Self { code: OrtErrorCode::ORT_FAIL as i32, message: format!("no {what} was returned") }
    }

    /// An error that this crate detects before it calls the library.
    pub(super) fn invalid(message: String) -> Self {
        Self { code: OrtErrorCode::ORT_INVALID_ARGUMENT as i32, message }
    }
}

/// Copies a string from the library. Null becomes an empty string.
///
/// # Safety
///
/// `text` is null or NUL-terminated.
pub(super) unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: required by this function's own contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
