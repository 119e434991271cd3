//! Exported functions for errors.

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

use crate::error::ErrorObject;
use crate::guard::catch_panic_or;
use crate::handle;

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
/// Creates an error. A null message means an empty message.
///
/// # Safety
///
/// `msg` must be null or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorNew(
    code: TRITONSERVER_Error_Code,
    msg: *const c_char,
) -> *mut TRITONSERVER_Error {
    catch_panic_or("TRITONSERVER_ErrorNew", core::ptr::null_mut(), || {
        let message = if msg.is_null() {
            CString::default()
        } else {
            // SAFETY: the caller guarantees a valid string.
            unsafe { CStr::from_ptr(msg) }.to_owned()
        };
        handle::into_raw(ErrorObject { code, message })
    })
}

const _: TRITONSERVER_ErrorDelete = TRITONSERVER_ErrorDelete;
/// Deletes an error. Null is ignored.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorDelete(error: *mut TRITONSERVER_Error) {
    catch_panic_or("TRITONSERVER_ErrorDelete", (), || {
        if !error.is_null() {
            // SAFETY: the caller guarantees a valid error.
            drop(unsafe { handle::take::<ErrorObject>(error, "error") });
        }
    });
}

const _: TRITONSERVER_ErrorCode = TRITONSERVER_ErrorCode;
/// Returns an error's code.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCode(
    error: *mut TRITONSERVER_Error,
) -> TRITONSERVER_Error_Code {
    catch_panic_or("TRITONSERVER_ErrorCode", TRITONSERVER_ERROR_UNKNOWN, || {
        // SAFETY: the caller guarantees a valid error.
        let error = unsafe { handle::borrow::<ErrorObject>(error, "error") };
        error.map_or(TRITONSERVER_ERROR_UNKNOWN, |error| error.code)
    })
}

const _: TRITONSERVER_ErrorCodeString = TRITONSERVER_ErrorCodeString;
/// Returns the name of an error's code.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorCodeString(
    error: *mut TRITONSERVER_Error,
) -> *const c_char {
    catch_panic_or("TRITONSERVER_ErrorCodeString", core::ptr::null(), || {
        // SAFETY: the caller guarantees a valid error.
        let error = unsafe { handle::borrow::<ErrorObject>(error, "error") };
        error.map_or(core::ptr::null(), |error| code_name(error.code).as_ptr())
    })
}

const _: TRITONSERVER_ErrorMessage = TRITONSERVER_ErrorMessage;
/// Returns an error's message, which lives as long as the error.
///
/// # Safety
///
/// `error` must be null or an error of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ErrorMessage(
    error: *mut TRITONSERVER_Error,
) -> *const c_char {
    catch_panic_or("TRITONSERVER_ErrorMessage", core::ptr::null(), || {
        // SAFETY: the caller guarantees a valid error.
        let error = unsafe { handle::borrow::<ErrorObject>(error, "error") };
        error.map_or(core::ptr::null(), |error| error.message.as_ptr())
    })
}

#[cfg(test)]
mod tests {
    use galatea_infer::{Code, Status};

    use super::*;
    use crate::error::{borrow_c_error, into_c, take_c_error};
    use crate::pointer;

    #[test]
    fn a_status_is_converted_to_c_and_back() {
        let error = into_c(Status::not_found("no 'x'\0 here"));
        // SAFETY: the error was just created and is deleted once.
        unsafe {
            assert_eq!(TRITONSERVER_ErrorCode(error), TRITONSERVER_ERROR_NOT_FOUND);
            let name = CStr::from_ptr(TRITONSERVER_ErrorCodeString(error));
            assert_eq!(name, c"Not found");
            let message = pointer::required_c_str(TRITONSERVER_ErrorMessage(error), "message");
            assert_eq!(message.unwrap(), "no 'x'  here");
            assert!(borrow_c_error(error).is_err());
            let status = take_c_error(error).unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::NotFound, "no 'x'  here"));
            assert!(TRITONSERVER_ErrorMessage(error).is_null(), "it was released");
            TRITONSERVER_ErrorDelete(error);
            TRITONSERVER_ErrorDelete(core::ptr::null_mut());
            assert!(take_c_error(core::ptr::null_mut()).is_ok());
        }
    }

    #[test]
    fn unknown_codes_are_kept_and_have_no_name() {
        // SAFETY: the string is NUL-terminated, and the error is deleted once.
        unsafe {
            let error = TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code(77), c"x".as_ptr());
            assert_eq!(TRITONSERVER_ErrorCode(error), TRITONSERVER_Error_Code(77));
            let name = CStr::from_ptr(TRITONSERVER_ErrorCodeString(error));
            assert_eq!(name, c"<invalid code>");
            assert_eq!(take_c_error(error).unwrap_err().code(), Code::Unknown);
        }
    }
}
