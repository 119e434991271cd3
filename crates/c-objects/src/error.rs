//! Errors as C sees them.

use std::ffi::CString;

use galatea_abi::{
    TRITONSERVER_ERROR_ALREADY_EXISTS, TRITONSERVER_ERROR_CANCELLED, TRITONSERVER_ERROR_INTERNAL,
    TRITONSERVER_ERROR_INVALID_ARG, TRITONSERVER_ERROR_NOT_FOUND, TRITONSERVER_ERROR_UNAVAILABLE,
    TRITONSERVER_ERROR_UNKNOWN, TRITONSERVER_ERROR_UNSUPPORTED, TRITONSERVER_Error,
    TRITONSERVER_Error_Code,
};
use galatea_infer::{Code, Status};

use crate::handle;

/// An error code with a message.
pub struct ErrorObject {
    pub(crate) code: TRITONSERVER_Error_Code,
    pub(crate) message: CString,
}
crate::object!(ErrorObject as TRITONSERVER_Error, kind 1);

/// Converts a status to an error object, which the receiver deletes.
pub fn into_c(status: Status) -> *mut TRITONSERVER_Error {
    handle::into_raw(ErrorObject {
        code: error_code_to_c(status.code()),
        message: to_c_string(status.message()),
    })
}

/// Takes an error that C returned. Null means success.
///
/// # Errors
///
/// The error's code and message.
///
/// # Safety
///
/// The pointer must be null or an error whose owner gives up ownership.
pub unsafe fn take_c_error(error: *mut TRITONSERVER_Error) -> Result<(), Status> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller guarantees a valid error and gives up ownership.
    let error = unsafe { handle::take::<ErrorObject>(error, "the returned error")? };
    Err(Status::new(code_from_c(error.code), error.message.to_string_lossy().into_owned()))
}

/// Converts a string to a C string. Zero bytes, which would terminate the string, become spaces.
#[must_use]
pub fn to_c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Returns a code's number in C.
#[must_use]
pub const fn error_code_to_c(code: Code) -> TRITONSERVER_Error_Code {
    match code {
        Code::Unknown => TRITONSERVER_ERROR_UNKNOWN,
        Code::Internal => TRITONSERVER_ERROR_INTERNAL,
        Code::NotFound => TRITONSERVER_ERROR_NOT_FOUND,
        Code::InvalidArgument => TRITONSERVER_ERROR_INVALID_ARG,
        Code::Unavailable | Code::Exhausted | Code::DeadlineExceeded => {
            TRITONSERVER_ERROR_UNAVAILABLE
        }
        Code::Unsupported => TRITONSERVER_ERROR_UNSUPPORTED,
        Code::AlreadyExists => TRITONSERVER_ERROR_ALREADY_EXISTS,
        Code::Cancelled => TRITONSERVER_ERROR_CANCELLED,
    }
}

fn code_from_c(code: TRITONSERVER_Error_Code) -> Code {
    match code {
        TRITONSERVER_ERROR_INTERNAL => Code::Internal,
        TRITONSERVER_ERROR_NOT_FOUND => Code::NotFound,
        TRITONSERVER_ERROR_INVALID_ARG => Code::InvalidArgument,
        TRITONSERVER_ERROR_UNAVAILABLE => Code::Unavailable,
        TRITONSERVER_ERROR_UNSUPPORTED => Code::Unsupported,
        TRITONSERVER_ERROR_ALREADY_EXISTS => Code::AlreadyExists,
        TRITONSERVER_ERROR_CANCELLED => Code::Cancelled,
        _ => Code::Unknown,
    }
}

/// Reads the status of an error that C keeps. Null means success.
///
/// # Errors
///
/// Same as for [`take_c_error`], but the owner keeps the error.
///
/// # Safety
///
/// Same requirements as for [`take_c_error`], but the owner keeps the error.
pub unsafe fn borrow_c_error(error: *mut TRITONSERVER_Error) -> Result<(), Status> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller guarantees a valid error.
    let error = unsafe { handle::borrow::<ErrorObject>(error, "the error")? };
    Err(Status::new(code_from_c(error.code), error.message.to_string_lossy().into_owned()))
}
