//! The log: a handle whose levels can be switched while the server runs.

mod escape;
mod line;
mod losses;

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use galatea_control::{LogControl, LogFormat, LogSettingChange, LogSettings};
use galatea_gate::text::format_bounded;
use galatea_infer::{AccessPass, LogLevel, api};
use galatea_stdx::Lock;

use crate::TextTable;

pub(crate) use escape::escape_controls;
use line::Line;
use losses::Losses;

/// The maximum length of a log message before escaping, in bytes. A longer message is truncated.
const LOG_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The source position at which a line was logged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SourcePosition<'a> {
    /// The file; only the part after its last slash is printed.
    pub file: &'a str,
    /// The line.
    pub line: u32,
}

impl<'a> From<&'a Location<'_>> for SourcePosition<'a> {
    fn from(location: &'a Location<'_>) -> Self {
        Self { file: location.file(), line: location.line() }
    }
}

/// The initial settings of a [`Logger`].
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The format of log line headers.
    pub format: LogFormat,
    /// The file to which all lines are appended instead of the console.
    pub file: Option<PathBuf>,
    /// True if messages are quoted as JSON strings. Otherwise they are written verbatim, with line
    /// breaks and control characters, as in Triton.
    pub quote: bool,
    /// True if information is logged.
    pub info: bool,
    /// True if warnings are logged.
    pub warning: bool,
    /// True if errors are logged.
    pub error: bool,
    /// The maximum level of verbose lines that are logged; 0 means none.
    pub verbose_level: u32,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            format: LogFormat::Default,
            file: None,
            quote: true,
            info: true,
            warning: true,
            error: true,
            verbose_level: 0,
        }
    }
}

/// The streams that receive lines.
enum Sink {
    /// Information goes to one stream, warnings and errors to the other.
    Split { information: Box<dyn Write + Send>, problems: Box<dyn Write + Send> },
    /// All lines go to one stream.
    Joined(Box<dyn Write + Send>),
}

struct LoggerShared {
    info: AtomicBool,
    warning: AtomicBool,
    error: AtomicBool,
    verbose_level: AtomicU32,
    iso8601: AtomicBool,
    quote: bool,
    process: u32,
    output: Lock<LogOutput>,
}

/// The current receiver of log lines.
struct LogOutput {
    sink: Sink,
    /// The file that receives all lines instead of the sink.
    file: Option<(PathBuf, File)>,
    losses: Losses,
}

fn open(path: PathBuf) -> io::Result<(PathBuf, File)> {
    let file = File::options().append(true).create(true).open(&path)?;
    Ok((path, file))
}

/// A handle to the log. Clones write to the same destination.
#[derive(Clone)]
pub struct Logger {
    inner: Arc<LoggerShared>,
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logger").field("settings", &self.settings()).finish()
    }
}

impl Logger {
    /// Creates a log on the console, or in the file specified by the options.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be opened for appending.
    pub fn new(options: LogOptions) -> io::Result<Self> {
        let file = options.file.clone();
        let (information, problems) = (Box::new(io::stdout()), Box::new(io::stderr()));
        let logger = Self::with_sink(options, Sink::Split { information, problems });
        logger.set_file(file)?;
        Ok(logger)
    }

    /// Creates a log with two writers: information and verbose lines go to the first, warnings and
    /// errors to the second.
    pub fn to_writers(
        options: LogOptions,
        information: Box<dyn Write + Send>,
        problems: Box<dyn Write + Send>,
    ) -> Self {
        Self::with_sink(options, Sink::Split { information, problems })
    }

    /// Creates a log that discards its lines.
    #[must_use]
    pub fn discarding() -> Self {
        Self::with_sink(LogOptions::default(), Sink::Joined(Box::new(io::sink())))
    }

    fn with_sink(options: LogOptions, sink: Sink) -> Self {
        Self {
            inner: Arc::new(LoggerShared {
                info: AtomicBool::new(options.info),
                warning: AtomicBool::new(options.warning),
                error: AtomicBool::new(options.error),
                verbose_level: AtomicU32::new(options.verbose_level),
                iso8601: AtomicBool::new(options.format == LogFormat::Iso8601),
                quote: options.quote,
                process: std::process::id(),
                output: Lock::new(LogOutput { sink, file: None, losses: Losses::default() }),
            }),
        }
    }

    /// Logs an event.
    #[track_caller]
    pub fn info(&self, message: impl Display) {
        self.log(LogLevel::Info, Location::caller().into(), message);
    }

    /// Logs a possible problem.
    #[track_caller]
    pub fn warning(&self, message: impl Display) {
        self.log(LogLevel::Warning, Location::caller().into(), message);
    }

    /// Logs a failure.
    #[track_caller]
    pub fn error(&self, message: impl Display) {
        self.log(LogLevel::Error, Location::caller().into(), message);
    }

    /// Logs a detail at this level.
    #[track_caller]
    pub fn verbose(&self, level: u32, message: impl Display) {
        self.log(LogLevel::Verbose(level), Location::caller().into(), message);
    }

    /// Logs a table below a line header.
    #[track_caller]
    pub fn table(&self, table: &TextTable) {
        if self.enabled(LogLevel::Info) {
            let line = self.line(LogLevel::Info, Location::caller().into());
            self.write(LogLevel::Info, &line.followed_by(&table.render()));
        }
    }

    /// Logs a line on behalf of another source position. An overlong message is truncated, because
    /// it may repeat a client's input.
    pub fn log(&self, level: LogLevel, position: SourcePosition<'_>, message: impl Display) {
        if self.enabled(level) {
            let message = format_bounded(message, LOG_MESSAGE_BYTES_MAX);
            let line = self.line(level, position);
            self.write(level, &line.message(&message, self.inner.quote));
        }
    }

    /// Returns true if lines of this level are currently logged.
    #[must_use]
    pub fn enabled(&self, level: LogLevel) -> bool {
        let inner = &self.inner;
        match level {
            LogLevel::Error => inner.error.load(Ordering::Relaxed),
            LogLevel::Warning => inner.warning.load(Ordering::Relaxed),
            LogLevel::Info => inner.info.load(Ordering::Relaxed),
            LogLevel::Verbose(level) => inner.verbose_level.load(Ordering::Relaxed) >= level,
        }
    }

    /// Switches information on or off.
    pub fn set_info(&self, on: bool) {
        self.inner.info.store(on, Ordering::Relaxed);
    }

    /// Switches warnings on or off.
    pub fn set_warning(&self, on: bool) {
        self.inner.warning.store(on, Ordering::Relaxed);
    }

    /// Switches errors on or off.
    pub fn set_error(&self, on: bool) {
        self.inner.error.store(on, Ordering::Relaxed);
    }

    /// Sets the maximum level of verbose lines that are logged from now on.
    pub fn set_verbose_level(&self, level: u32) {
        self.inner.verbose_level.store(level, Ordering::Relaxed);
    }

    /// Changes the format of log line headers from now on.
    pub fn set_format(&self, format: LogFormat) {
        self.inner.iso8601.store(format == LogFormat::Iso8601, Ordering::Relaxed);
    }

    /// Appends all lines to a file from now on. `None` restores the streams that the log was
    /// created with.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be opened for appending; nothing changes in that case.
    pub fn set_file(&self, path: Option<PathBuf>) -> io::Result<()> {
        let file = path.map(open).transpose()?;
        self.inner.output.lock("change the file").file = file;
        Ok(())
    }

    fn format(&self) -> LogFormat {
        if self.inner.iso8601.load(Ordering::Relaxed) {
            LogFormat::Iso8601
        } else {
            LogFormat::Default
        }
    }

    /// The current settings of the log.
    #[must_use]
    pub fn settings(&self) -> LogSettings {
        let inner = &self.inner;
        let output = self.inner.output.lock("read the settings");
        let file = output.file.as_ref().map(|(path, _)| path.display().to_string());
        LogSettings {
            file: file.unwrap_or_default(),
            info: inner.info.load(Ordering::Relaxed),
            warning: inner.warning.load(Ordering::Relaxed),
            error: inner.error.load(Ordering::Relaxed),
            verbose_level: inner.verbose_level.load(Ordering::Relaxed),
            format: self.format(),
        }
    }

    fn line(&self, level: LogLevel, position: SourcePosition<'_>) -> Line {
        Line::head(self.format(), level, SystemTime::now(), self.inner.process, position)
    }

    /// Writes a whole record at once, so that records of different threads never mix.
    fn write(&self, level: LogLevel, record: &str) {
        let mut output = self.inner.output.lock("write a record");
        let LogOutput { sink, file, losses } = &mut *output;
        let writer: &mut dyn Write = match (file, sink, level) {
            (Some((_, file)), ..) => file,
            (None, Sink::Joined(writer), _) => writer,
            (None, Sink::Split { information, .. }, LogLevel::Info | LogLevel::Verbose(_)) => {
                information
            }
            (None, Sink::Split { problems, .. }, LogLevel::Error | LogLevel::Warning) => problems,
        };
        losses.write(writer, record, |told| {
            let line = self.line(LogLevel::Warning, Location::caller().into());
            line.message(told, self.inner.quote)
        });
    }
}

impl LogControl for Logger {
    fn settings(&self, _: AccessPass<api::Logging>) -> LogSettings {
        Self::settings(self)
    }

    fn change(&self, _: AccessPass<api::Logging>, change: LogSettingChange) {
        match change {
            LogSettingChange::Info(on) => self.set_info(on),
            LogSettingChange::Warning(on) => self.set_warning(on),
            LogSettingChange::Error(on) => self.set_error(on),
            LogSettingChange::VerboseLevel(level) => self.set_verbose_level(level),
            LogSettingChange::Format(format) => self.set_format(format),
        }
    }
}

#[cfg(test)]
mod tests;
