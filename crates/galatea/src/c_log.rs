//! Lines that C code writes to the log.

use galatea_c_objects::log::{Level, Log, install};
use galatea_telemetry::{LogLevel, Logger, SourcePosition};

/// Lets C code write to this log, unless it writes to another one already.
pub(crate) fn use_for_c(logger: Logger) {
    install(Box::new(CLog(logger)));
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
}

const fn log_level(level: Level) -> LogLevel {
    match level {
        Level::Info => LogLevel::Info,
        Level::Warning => LogLevel::Warning,
        Level::Error => LogLevel::Error,
        Level::Verbose => LogLevel::Verbose(1),
    }
}
