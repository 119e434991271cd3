//! Log lines written by C code.

use core::any::Any;

use galatea_c_objects::log::{Format, Level, Log, Setting, current, install};
use galatea_infer::{LogLevel, Status};
use galatea_telemetry::{LogFormat, LogOptions, Logger, SourcePosition};

use crate::environment::Environment;

/// Lets C code write to this log, unless another log is already installed.
pub(crate) fn use_for_c(logger: Logger) {
    install(Box::new(CLog(logger)));
}

/// The log that C code writes to, if there is one.
pub(crate) fn of_process() -> Option<Logger> {
    let log: &dyn Any = current()?;
    log.downcast_ref::<CLog>().map(|log| log.0.clone())
}

/// The initial log of a process that creates servers for C: it writes to the console.
#[must_use]
pub fn console_log() -> Box<dyn Log> {
    let quote = Environment::read().quote_log_messages;
    let streams = (Box::new(std::io::stdout()), Box::new(std::io::stderr()));
    let options = LogOptions { quote, ..LogOptions::default() };
    Box::new(CLog(Logger::to_writers(options, streams.0, streams.1)))
}

struct CLog(Logger);

impl Log for CLog {
    fn is_enabled(&self, level: Level) -> bool {
        self.0.enabled(log_level(level))
    }

    fn write(&self, level: Level, place: Option<(&str, u32)>, text: &str) {
        let (file, line) = place.unwrap_or((file!(), line!()));
        self.0.log(log_level(level), SourcePosition { file, line }, text);
    }

    fn set(&self, setting: &Setting) -> Result<(), Status> {
        match setting {
            Setting::Enabled(Level::Info, on) => self.0.set_info(*on),
            Setting::Enabled(Level::Warning, on) => self.0.set_warning(*on),
            Setting::Enabled(Level::Error, on) => self.0.set_error(*on),
            Setting::Enabled(Level::Verbose, on) => self.0.set_verbose_level(u32::from(*on)),
            Setting::VerboseLevel(level) => self.0.set_verbose_level(*level),
            Setting::Format(Format::Default) => self.0.set_format(LogFormat::Default),
            Setting::Format(Format::Iso8601) => self.0.set_format(LogFormat::Iso8601),
            Setting::File(path) => {
                let file = (!path.is_empty()).then(|| path.into());
                self.0.set_file(file).map_err(|error| {
                    Status::internal(format!("can't open log file '{path}': {error}"))
                })?;
            }
        }
        Ok(())
    }
}

const fn log_level(level: Level) -> LogLevel {
    match level {
        Level::Info => LogLevel::Info,
        Level::Warning => LogLevel::Warning,
        Level::Error => LogLevel::Error,
        Level::Verbose => LogLevel::Verbose(1),
    }
}
