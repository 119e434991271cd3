//! The result of a call.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use galatea_infer::Status;

use super::functions::{Functions, RawStatus};

/// An object in which the library stores the result of a call.
pub(super) struct CallStatus<'a> {
    raw: NonNull<RawStatus>,
    functions: &'a Functions,
}

impl<'a> CallStatus<'a> {
    pub(super) fn new(functions: &'a Functions) -> Result<Self, Status> {
        // SAFETY: the constructor takes no arguments.
        let raw = NonNull::new(unsafe { (functions.TF_NewStatus)() });
        let raw = raw.ok_or_else(|| missing("status"))?;
        Ok(Self { raw, functions })
    }

    pub(super) const fn as_ptr(&self) -> *mut RawStatus {
        self.raw.as_ptr()
    }

    /// The result of the last call. The error has the library's message and, as in Triton, always
    /// has the same code.
    pub(super) fn check(&self) -> Result<(), Status> {
        // SAFETY: the status is alive, and owns the message.
        unsafe {
            if (self.functions.TF_GetCode)(self.as_ptr()) == 0 {
                return Ok(());
            }
            Err(Status::internal(text((self.functions.TF_Message)(self.as_ptr()))))
        }
    }
}

impl Drop for CallStatus<'_> {
    fn drop(&mut self) {
        // SAFETY: the status is alive, and only this deletes it.
        unsafe { (self.functions.TF_DeleteStatus)(self.as_ptr()) };
    }
}

/// The error for an unexpected null result from the library.
pub(super) fn missing(what: &str) -> Status {
    Status::internal(format!("TensorFlow returned no {what}"))
}

/// Copies a string from the library. Null becomes an empty string.
///
/// # Safety
///
/// `text` is null or NUL-terminated.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: required by this function's own contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
