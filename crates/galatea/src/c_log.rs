//! Log lines written by C code.

use core::any::Any;

use galatea_c_objects::log::{ApiLog, ApiLogFormat, ApiLogLevel, ApiLogSetting, current, install};
use galatea_infer::{LogLevel, Status};
use galatea_telemetry::{LogFormat, LogOptions, Logger, SourcePosition};

use crate::environment::Environment;

/// Lets C code write to this log, unless another log is already installed.
pub(crate) fn use_for_c(logger: Logger) {
    install(Box::new(CLog(logger)));
}

/// The log that C code writes to, if one is installed.
pub(crate) fn of_process() -> Option<Logger> {
    let log: &dyn Any = current()?;
    log.downcast_ref::<CLog>().map(|log| log.0.clone())
}

/// The initial log of a process that creates servers for C: it writes to the console.
#[must_use]
pub fn console_logger() -> Box<dyn ApiLog> {
    let quote = Environment::read().quote_log_messages;
    let streams = (Box::new(std::io::stdout()), Box::new(std::io::stderr()));
    let options = LogOptions { quote, ..LogOptions::default() };
    Box::new(CLog(Logger::to_writers(options, streams.0, streams.1)))
}

struct CLog(Logger);

impl ApiLog for CLog {
    fn is_enabled(&self, level: ApiLogLevel) -> bool {
        self.0.enabled(log_level(level))
    }

    fn write(&self, level: ApiLogLevel, place: Option<(&str, u32)>, text: &str) {
        let (file, line) = place.unwrap_or((file!(), line!()));
        self.0.log(log_level(level), SourcePosition { file, line }, text);
    }

    fn set(&self, setting: &ApiLogSetting) -> Result<(), Status> {
        match setting {
            ApiLogSetting::Enabled(ApiLogLevel::Info, on) => self.0.set_info(*on),
            ApiLogSetting::Enabled(ApiLogLevel::Warning, on) => self.0.set_warning(*on),
            ApiLogSetting::Enabled(ApiLogLevel::Error, on) => self.0.set_error(*on),
            ApiLogSetting::Enabled(ApiLogLevel::Verbose, on) => {
                self.0.set_verbose_level(u32::from(*on))
            }
            ApiLogSetting::VerboseLevel(level) => self.0.set_verbose_level(*level),
            ApiLogSetting::Format(ApiLogFormat::Default) => self.0.set_format(LogFormat::Default),
            ApiLogSetting::Format(ApiLogFormat::Iso8601) => self.0.set_format(LogFormat::Iso8601),
            ApiLogSetting::File(path) => {
                let file = (!path.is_empty()).then(|| path.into());
                self.0.set_file(file).map_err(|error| {
                    Status::internal(format!("can't open log file '{path}': {error}"))
                })?;
            }
        }
        Ok(())
    }
}

const fn log_level(level: ApiLogLevel) -> LogLevel {
    match level {
        ApiLogLevel::Info => LogLevel::Info,
        ApiLogLevel::Warning => LogLevel::Warning,
        ApiLogLevel::Error => LogLevel::Error,
        ApiLogLevel::Verbose => LogLevel::Verbose(1),
    }
}
