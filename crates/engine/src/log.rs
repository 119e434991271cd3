//! Where lines of the log go.

use std::panic::Location;
use std::sync::Arc;

use galatea_backend::LogLevel;

type Write = dyn Fn(LogLevel, &Location<'_>, &str) + Send + Sync;

/// Writes lines to the server's log, each with the place in the source that
/// it comes from.
#[derive(Clone)]
pub struct LogSink(Arc<Write>);

impl LogSink {
    /// A sink that hands every line to `write`.
    pub fn new(write: impl Fn(LogLevel, &Location<'_>, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// Writes a line as the caller's.
    #[track_caller]
    pub fn write(&self, level: LogLevel, message: &str) {
        (self.0)(level, Location::caller(), message);
    }
}

impl std::fmt::Debug for LogSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogSink")
    }
}
