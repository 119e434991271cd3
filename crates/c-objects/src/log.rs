//! The log that C code writes to, and that this crate's own warnings go to.
//!
//! The functions for it take no server, so there is one for the process: the
//! wiring installs it once. Before that, and without it, lines are dropped.

use core::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use galatea_abi::server::{TRITONSERVER_LogIsEnabled, TRITONSERVER_LogMessage};
use galatea_abi::{
    TRITONSERVER_Error, TRITONSERVER_LOG_ERROR, TRITONSERVER_LOG_INFO, TRITONSERVER_LOG_VERBOSE,
    TRITONSERVER_LOG_WARN, TRITONSERVER_LogLevel,
};
use galatea_infer::Status;

use crate::guard::{guard, guard_value};

/// A level of the log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something happened.
    Info,
    /// Something is doubtful.
    Warning,
    /// Something failed.
    Error,
    /// Something for whoever looks closely.
    Verbose,
}

/// Where lines go. `place` is a source file and a line in it.
pub trait Log: Send + Sync {
    /// Whether lines of this level are written at all.
    fn is_enabled(&self, level: Level) -> bool;
    /// Writes a line.
    fn write(&self, level: Level, place: Option<(&str, u32)>, text: &str);
}

static LOG: OnceLock<Box<dyn Log>> = OnceLock::new();

/// Installs the process's log; the first one stays.
pub fn install(log: Box<dyn Log>) {
    let _ = LOG.set(log);
}

/// Writes a line about a misuse of the API.
pub fn error(text: &str) {
    write(Level::Error, None, text);
}

/// Writes a line.
pub fn write(level: Level, place: Option<(&str, u32)>, text: &str) {
    if let Some(log) = LOG.get() {
        log.write(level, place, text);
    }
}

fn level(level: TRITONSERVER_LogLevel) -> Result<Level, Status> {
    match level {
        TRITONSERVER_LOG_INFO => Ok(Level::Info),
        TRITONSERVER_LOG_WARN => Ok(Level::Warning),
        TRITONSERVER_LOG_ERROR => Ok(Level::Error),
        TRITONSERVER_LOG_VERBOSE => Ok(Level::Verbose),
        TRITONSERVER_LogLevel(other) => {
            Err(Status::invalid_argument(format!("unknown logging level '{other}'")))
        }
    }
}

const _: TRITONSERVER_LogIsEnabled = TRITONSERVER_LogIsEnabled;
/// Whether lines of a level are written at all.
///
/// # Safety
///
/// None of its own; C functions are declared unsafe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_LogIsEnabled(level_: TRITONSERVER_LogLevel) -> bool {
    guard_value("TRITONSERVER_LogIsEnabled", false, || {
        let Ok(level) = level(level_) else { return false };
        LOG.get().is_some_and(|log| log.is_enabled(level))
    })
}

const _: TRITONSERVER_LogMessage = TRITONSERVER_LogMessage;
/// Writes a line; `filename` and `line` say where in the source it comes from.
///
/// # Safety
///
/// The texts must be null or end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_LogMessage(
    level_: TRITONSERVER_LogLevel,
    filename: *const c_char,
    line: c_int,
    msg: *const c_char,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_LogMessage", || {
        let level = level(level_)?;
        if msg.is_null() {
            return Err(Status::invalid_argument("msg must not be null"));
        }
        // SAFETY: the caller promises a text.
        let text = unsafe { CStr::from_ptr(msg) }.to_string_lossy();
        let file = if filename.is_null() {
            None
        } else {
            // SAFETY: the caller promises a text.
            Some(unsafe { CStr::from_ptr(filename) }.to_string_lossy())
        };
        let line = u32::try_from(line).unwrap_or(0);
        write(level, file.as_deref().map(|file| (file, line)), &text);
        Ok(())
    })
}
