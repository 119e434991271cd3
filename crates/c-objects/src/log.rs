//! The log that C code writes to, and that this crate's own warnings go to.
//!
//! The functions for it take no server, so there is one for the process: the
//! wiring installs it once. Before that, lines go to the log that a library of the
//! server has for this, and without either they are dropped.

use core::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, OnceLock, PoisonError};

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
pub trait Log: Send + Sync {
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
static EARLY: OnceLock<Box<dyn Log>> = OnceLock::new();
static EARLY_MAKER: OnceLock<fn() -> Box<dyn Log>> = OnceLock::new();
/// What was set before the process's log was there.
static SETTINGS: Mutex<Vec<Setting>> = Mutex::new(Vec::new());

/// Installs the process's log, as it was set to be; the first one stays.
pub fn install(log: Box<dyn Log>) {
    let early = std::mem::take(&mut *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner));
    if LOG.set(log).is_err() {
        return;
    }
    for setting in early {
        if let Err(status) = set(setting) {
            error(status.message());
        }
    }
}

/// Says what makes the log for lines that come before the process's is installed.
pub fn install_early(maker: fn() -> Box<dyn Log>) {
    let _ = EARLY_MAKER.set(maker);
}

fn current() -> Option<&'static dyn Log> {
    let early = || EARLY_MAKER.get().map(|make| EARLY.get_or_init(make));
    LOG.get().or_else(early).map(Box::as_ref)
}

/// Changes a setting of the process's log, or of the one to come.
///
/// # Errors
///
/// As [`Log::set`]'s.
pub fn set(setting: Setting) -> Result<(), Status> {
    if let Some(log) = current() {
        log.set(&setting)?;
    }
    if LOG.get().is_none() {
        SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).push(setting);
    }
    Ok(())
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
