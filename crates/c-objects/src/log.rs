//! The log that C code writes to, and that this crate's own warnings go to.
//!
//! The functions for it take no server, so there is one for the process. A program
//! installs its own; in a library of the server it is made when it is first needed, and
//! all servers of the process write to it. Without either, lines are dropped.

use core::any::Any;
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

/// How lines begin.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Level, month and day, time.
    Default,
    /// Date and time as in ISO 8601.
    Iso8601,
}

/// What can be set while a log is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Whether information, warnings or errors are written.
    Enabled(Level, bool),
    /// Verbose lines up to this level are written.
    VerboseLevel(u32),
    /// How lines begin.
    Format(Format),
    /// The file that lines are appended to; empty for the console.
    File(String),
}

/// Where lines go. `place` is a source file and a line in it.
pub trait Log: Any + Send + Sync {
    /// Whether lines of this level are written at all.
    fn is_enabled(&self, level: Level) -> bool;
    /// Writes a line.
    fn write(&self, level: Level, place: Option<(&str, u32)>, text: &str);
    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// `Internal` if a file can't be opened; then nothing changes.
    fn set(&self, setting: &Setting) -> Result<(), Status>;
}

static LOG: OnceLock<Box<dyn Log>> = OnceLock::new();
static MAKER: OnceLock<fn() -> Box<dyn Log>> = OnceLock::new();

/// Installs the process's log; the first one stays.
pub fn install(log: Box<dyn Log>) {
    let _ = LOG.set(log);
}

/// Says what makes the process's log when it is needed and none was installed.
pub fn install_maker(maker: fn() -> Box<dyn Log>) {
    let _ = MAKER.set(maker);
}

/// The process's log, if it has one.
pub fn current() -> Option<&'static dyn Log> {
    let made = || MAKER.get().map(|make| LOG.get_or_init(make));
    LOG.get().or_else(made).map(Box::as_ref)
}

/// Changes a setting of the process's log.
///
/// # Errors
///
/// As [`Log::set`]'s.
pub fn set(setting: &Setting) -> Result<(), Status> {
    current().map_or(Ok(()), |log| log.set(setting))
}

/// Writes a line about a misuse of the API.
pub fn error(text: &str) {
    write(Level::Error, None, text);
}

/// Writes a line.
pub fn write(level: Level, place: Option<(&str, u32)>, text: &str) {
    if let Some(log) = current() {
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
        current().is_some_and(|log| log.is_enabled(level))
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
