//! Errors as C sees them.

use core::ffi::{CStr, c_char};
use std::ffi::CString;

use galatea_abi::server::{
    TRITONSERVER_ErrorCode, TRITONSERVER_ErrorCodeString, TRITONSERVER_ErrorDelete,
    TRITONSERVER_ErrorMessage, TRITONSERVER_ErrorNew,
};
use galatea_abi::{
    TRITONSERVER_ERROR_ALREADY_EXISTS, TRITONSERVER_ERROR_CANCELLED, TRITONSERVER_ERROR_INTERNAL,
    TRITONSERVER_ERROR_INVALID_ARG, TRITONSERVER_ERROR_NOT_FOUND, TRITONSERVER_ERROR_UNAVAILABLE,
    TRITONSERVER_ERROR_UNKNOWN, TRITONSERVER_ERROR_UNSUPPORTED, TRITONSERVER_Error,
    TRITONSERVER_Error_Code,
};
use galatea_infer::{Code, Status};

use crate::guard::guard_value;
use crate::handle;

/// A code and a message.
pub struct ErrorObject {
    code: TRITONSERVER_Error_Code,
    message: CString,
}
crate::object!(ErrorObject as TRITONSERVER_Error, kind 1);

/// A status as an error object, which whoever gets it deletes.
pub fn into_c(status: Status) -> *mut TRITONSERVER_Error {
    handle::into_raw(ErrorObject {
        code: code_of(status.code()),
        message: c_text(status.message()),
    })
}

/// Takes an error that C returned; null is success.
///
/// # Errors
///
/// What the error says.
///
/// # Safety
///
/// The pointer must be null or an error that its maker gave away.
pub unsafe fn take_c(error: *mut TRITONSERVER_Error) -> Result<(), Status> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller promises an error that is now ours.
    let error = unsafe { handle::take::<ErrorObject>(error, "the returned error")? };
    Err(Status::new(status_code(error.code), error.message.to_string_lossy().into_owned()))
}

/// A text without zero bytes inside, which would end it for C.
#[must_use]
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// The number that stands for a code in C.
#[must_use]
pub const fn code_of(code: Code) -> TRITONSERVER_Error_Code {
    match code {
        Code::Unknown => TRITONSERVER_ERROR_UNKNOWN,
        Code::Internal => TRITONSERVER_ERROR_INTERNAL,
        Code::NotFound => TRITONSERVER_ERROR_NOT_FOUND,
        Code::InvalidArgument => TRITONSERVER_ERROR_INVALID_ARG,
        Code::Unavailable => TRITONSERVER_ERROR_UNAVAILABLE,
        Code::Unsupported => TRITONSERVER_ERROR_UNSUPPORTED,
        Code::AlreadyExists => TRITONSERVER_ERROR_ALREADY_EXISTS,
        Code::Cancelled => TRITONSERVER_ERROR_CANCELLED,
    }
}

fn status_code(code: TRITONSERVER_Error_Code) -> Code {
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

const fn code_name(code: TRITONSERVER_Error_Code) -> &'static CStr {
    match code {
        TRITONSERVER_ERROR_UNKNOWN => c"Unknown",
        TRITONSERVER_ERROR_INTERNAL => c"Internal",
        TRITONSERVER_ERROR_NOT_FOUND => c"Not found",
        TRITONSERVER_ERROR_INVALID_ARG => c"Invalid argument",
        TRITONSERVER_ERROR_UNAVAILABLE => c"Unavailable",
        TRITONSERVER_ERROR_UNSUPPORTED => c"Unsupported",
        TRITONSERVER_ERROR_ALREADY_EXISTS => c"Already exists",
        TRITONSERVER_ERROR_CANCELLED => c"Cancelled",
        _ => c"<invalid code>",
    }
}

const _: TRITONSERVER_ErrorNew = TRITONSERVER_ErrorNew;
/// Makes an error; null text is an empty one.
///
/// # Safety
///
/// `msg` must be null or end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorNew(
    code: TRITONSERVER_Error_Code,
    msg: *const c_char,
) -> *mut TRITONSERVER_Error {
    guard_value("TRITONSERVER_ErrorNew", core::ptr::null_mut(), || {
        let message = if msg.is_null() {
            CString::default()
        } else {
            // SAFETY: the caller promises a text.
            unsafe { CStr::from_ptr(msg) }.to_owned()
        };
        handle::into_raw(ErrorObject { code, message })
    })
}

const _: TRITONSERVER_ErrorDelete = TRITONSERVER_ErrorDelete;
/// Deletes an error; null is nothing to delete.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorDelete(error: *mut TRITONSERVER_Error) {
    guard_value("TRITONSERVER_ErrorDelete", (), || {
        if !error.is_null() {
            // SAFETY: the caller promises an error.
            drop(unsafe { handle::take::<ErrorObject>(error, "error") });
        }
    });
}

const _: TRITONSERVER_ErrorCode = TRITONSERVER_ErrorCode;
/// An error's code.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCode(
    error: *mut TRITONSERVER_Error,
) -> TRITONSERVER_Error_Code {
    guard_value("TRITONSERVER_ErrorCode", TRITONSERVER_ERROR_UNKNOWN, || {
        // SAFETY: the caller promises an error.
        let error = unsafe { handle::borrow::<ErrorObject>(error, "error") };
        error.map_or(TRITONSERVER_ERROR_UNKNOWN, |error| error.code)
    })
}

const _: TRITONSERVER_ErrorCodeString = TRITONSERVER_ErrorCodeString;
/// The name of an error's code.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCodeString(
    error: *mut TRITONSERVER_Error,
) -> *const c_char {
    guard_value("TRITONSERVER_ErrorCodeString", core::ptr::null(), || {
        // SAFETY: the caller promises an error.
        let error = unsafe { handle::borrow::<ErrorObject>(error, "error") };
        error.map_or(core::ptr::null(), |error| code_name(error.code).as_ptr())
    })
}

const _: TRITONSERVER_ErrorMessage = TRITONSERVER_ErrorMessage;
/// An error's text, which lives as long as the error.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorMessage(
    error: *mut TRITONSERVER_Error,
) -> *const c_char {
    guard_value("TRITONSERVER_ErrorMessage", core::ptr::null(), || {
        // SAFETY: the caller promises an error.
        let error = unsafe { handle::borrow::<ErrorObject>(error, "error") };
        error.map_or(core::ptr::null(), |error| error.message.as_ptr())
    })
}

/// Whether a pointer that C returned names an error, without taking it.
///
/// # Errors
///
/// As [`take_c`], but the error stays with its owner.
///
/// # Safety
///
/// As [`take_c`].
pub unsafe fn look_at(error: *mut TRITONSERVER_Error) -> Result<(), Status> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller promises an error.
    let error = unsafe { handle::borrow::<ErrorObject>(error, "the error")? };
    Err(Status::new(status_code(error.code), error.message.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    #[test]
    fn a_status_goes_to_c_and_back() {
        let error = into_c(Status::not_found("no 'x'\0 here"));
        // SAFETY: the error was just made and is deleted once.
        unsafe {
            assert_eq!(TRITONSERVER_ErrorCode(error), TRITONSERVER_ERROR_NOT_FOUND);
            let name = CStr::from_ptr(TRITONSERVER_ErrorCodeString(error));
            assert_eq!(name, c"Not found");
            let message = text::required(TRITONSERVER_ErrorMessage(error), "message");
            assert_eq!(message.unwrap(), "no 'x'  here");
            assert!(look_at(error).is_err());
            let status = take_c(error).unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::NotFound, "no 'x'  here"));
            assert!(TRITONSERVER_ErrorMessage(error).is_null(), "it was released");
            TRITONSERVER_ErrorDelete(error);
            TRITONSERVER_ErrorDelete(core::ptr::null_mut());
            assert!(take_c(core::ptr::null_mut()).is_ok());
        }
    }

    #[test]
    fn codes_that_nobody_knows_are_kept_and_have_no_name() {
        // SAFETY: the text ends in a zero byte; the error is deleted once.
        unsafe {
            let error = TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code(77), c"x".as_ptr());
            assert_eq!(TRITONSERVER_ErrorCode(error), TRITONSERVER_Error_Code(77));
            let name = CStr::from_ptr(TRITONSERVER_ErrorCodeString(error));
            assert_eq!(name, c"<invalid code>");
            assert_eq!(take_c(error).unwrap_err().code(), Code::Unknown);
        }
    }
}
