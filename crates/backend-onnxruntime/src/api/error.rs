//! Failures that the library reports.

use std::ffi::{CStr, CString};
use std::fmt;

use galatea_infer::Status;
use ort_sys::{OrtErrorCode, OrtStatus, OrtStatusPtr};

use super::library::Api;

/// A failure with the library's number and text for it.
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
    /// What is reported where the library promised a result and gave none.
    pub(super) fn missing(what: &str) -> Self {
        Self { code: OrtErrorCode::ORT_FAIL as i32, message: format!("no {what} was returned") }
    }

    /// A failure that this crate finds before it asks the library.
    pub(super) fn invalid(message: String) -> Self {
        Self { code: OrtErrorCode::ORT_INVALID_ARGUMENT as i32, message }
    }
}

impl Api {
    /// Turns a returned status into a result and frees it.
    ///
    /// # Safety
    ///
    /// `status` was returned by a function of this table and by nobody freed.
    pub(super) unsafe fn check(self, status: OrtStatusPtr) -> Result<(), OrtError> {
        type GetCode = unsafe extern "system" fn(*const OrtStatus) -> OrtErrorCode;
        type GetNumber = unsafe extern "system" fn(*const OrtStatus) -> i32;
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: the enumeration is represented as an i32, so that the
        // signatures agree, and any number may be returned as an i32.
        let get_error_code =
            unsafe { std::mem::transmute::<GetCode, GetNumber>(self.table().GetErrorCode) };
        // SAFETY: the status is alive until it is released below, and the
        // message belongs to it.
        unsafe {
            let code = get_error_code(status.0);
            let message = text((self.table().GetErrorMessage)(status.0));
            (self.table().ReleaseStatus)(status.0);
            Err(OrtError { code, message })
        }
    }
}

/// Copies a string of the library's; null is empty.
///
/// # Safety
///
/// `text` is null or NUL-terminated.
pub(super) unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as this function's own contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A string for the library; `what` names it in the error.
pub(crate) fn c_string(text: &str, what: &str) -> Result<CString, Status> {
    CString::new(text).map_err(|_| Status::invalid_argument(format!("{what} has a NUL byte")))
}
