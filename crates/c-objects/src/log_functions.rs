//! Exported log functions.

use core::ffi::{CStr, c_char, c_int};

use galatea_abi::server::{TRITONSERVER_LogIsEnabled, TRITONSERVER_LogMessage};
use galatea_abi::{
    TRITONSERVER_Error, TRITONSERVER_LOG_ERROR, TRITONSERVER_LOG_INFO, TRITONSERVER_LOG_VERBOSE,
    TRITONSERVER_LOG_WARN, TRITONSERVER_LogLevel,
};
use galatea_infer::Status;

use crate::guard::{catch_panic, catch_panic_or};
use crate::log::{ApiLogLevel, current, write};

fn level_from_c(level: TRITONSERVER_LogLevel) -> Result<ApiLogLevel, Status> {
    match level {
        TRITONSERVER_LOG_INFO => Ok(ApiLogLevel::Info),
        TRITONSERVER_LOG_WARN => Ok(ApiLogLevel::Warning),
        TRITONSERVER_LOG_ERROR => Ok(ApiLogLevel::Error),
        TRITONSERVER_LOG_VERBOSE => Ok(ApiLogLevel::Verbose),
        TRITONSERVER_LogLevel(other) => {
            Err(Status::invalid_argument(format!("unknown logging level '{other}'")))
        }
    }
}

const _: TRITONSERVER_LogIsEnabled = TRITONSERVER_LogIsEnabled;
/// Returns true if lines at this level are written.
///
/// # Safety
///
/// None beyond the declaration: all C functions are declared unsafe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_LogIsEnabled(level_: TRITONSERVER_LogLevel) -> bool {
    catch_panic_or("TRITONSERVER_LogIsEnabled", false, || {
        let Ok(level) = level_from_c(level_) else { return false };
        current().is_some_and(|log| log.is_enabled(level))
    })
}

const _: TRITONSERVER_LogMessage = TRITONSERVER_LogMessage;
/// Writes a line. `filename` and `line` identify its source location.
///
/// # Safety
///
/// The strings must be null or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_LogMessage(
    level_: TRITONSERVER_LogLevel,
    filename: *const c_char,
    line: c_int,
    msg: *const c_char,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_LogMessage", || {
        let level = level_from_c(level_)?;
        if msg.is_null() {
            return Err(Status::invalid_argument("msg must not be null"));
        }
        // SAFETY: the caller guarantees a valid string.
        let text = unsafe { CStr::from_ptr(msg) }.to_string_lossy();
        let file = if filename.is_null() {
            None
        } else {
            // SAFETY: the caller guarantees a valid string.
            Some(unsafe { CStr::from_ptr(filename) }.to_string_lossy())
        };
        let line = u32::try_from(line).unwrap_or(0);
        write(level, file.as_deref().map(|file| (file, line)), &text);
        Ok(())
    })
}
