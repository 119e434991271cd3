//! The log that receives C code's lines and this crate's own warnings.
//!
//! The C log functions don't take a server, so there is one log per process. An executable installs
//! its own log. In the server library, the log is created when it is first needed, and all servers
//! in the process write to it. Lines are dropped if there is neither.

use core::any::Any;
use std::sync::OnceLock;

use galatea_infer::Status;

/// A log level.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ApiLogLevel {
    /// Information.
    Info,
    /// A warning.
    Warning,
    /// An error.
    Error,
    /// Details for debugging.
    Verbose,
}

/// The format of log line prefixes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ApiLogFormat {
    /// The level, the month and day, and the time.
    Default,
    /// The date and time in ISO 8601 format.
    Iso8601,
}

/// A setting that can change while a log is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiLogSetting {
    /// Enables or disables information, warnings or errors.
    Enabled(ApiLogLevel, bool),
    /// The maximum level of verbose lines that are written.
    VerboseLevel(u32),
    /// The format of log line prefixes.
    Format(ApiLogFormat),
    /// The file to append lines to; empty for the console.
    File(String),
}

/// A receiver of log lines. `source` is a source file and a line number.
pub trait ApiLog: Any + Send + Sync {
    /// Returns true if lines of this level are written.
    fn is_enabled(&self, level: ApiLogLevel) -> bool;
    /// Writes a line.
    fn write(&self, level: ApiLogLevel, source: Option<(&str, u32)>, text: &str);
    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// `Internal` if a file can't be opened. Nothing changes in that case.
    fn set(&self, setting: &ApiLogSetting) -> Result<(), Status>;
}

static LOG: OnceLock<Box<dyn ApiLog>> = OnceLock::new();
static FACTORY: OnceLock<fn() -> Box<dyn ApiLog>> = OnceLock::new();

/// Installs the process's log. Only the first call has an effect.
pub fn install(log: Box<dyn ApiLog>) {
    let _ = LOG.set(log);
}

/// Sets the function that creates the process's log if one is needed and none is installed.
pub fn install_factory(factory: fn() -> Box<dyn ApiLog>) {
    let _ = FACTORY.set(factory);
}

/// The process's log, if it has one.
pub fn current() -> Option<&'static dyn ApiLog> {
    let created = || FACTORY.get().map(|factory| LOG.get_or_init(factory));
    LOG.get().or_else(created).map(Box::as_ref)
}

/// Changes a setting in the process's log.
///
/// # Errors
///
/// Same as for [`ApiLog::set`].
pub fn set(setting: &ApiLogSetting) -> Result<(), Status> {
    current().map_or(Ok(()), |log| log.set(setting))
}

/// Logs an error about misuse of the API.
pub fn error(text: &str) {
    write(ApiLogLevel::Error, None, text);
}

/// Writes a log line.
pub fn write(level: ApiLogLevel, source: Option<(&str, u32)>, text: &str) {
    if let Some(log) = current() {
        log.write(level, source, text);
    }
}
