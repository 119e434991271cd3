//! The server's log, and its lines about requests.

pub(crate) mod request_log;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display};
use std::panic::Location;
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_infer::{InferenceRequest, ResponseSender, Status};

type WriteLine = dyn Fn(LogLevel, &Location<'_>, &dyn Display) + Send + Sync;

type IsEnabled = dyn Fn(LogLevel) -> bool + Send + Sync;

/// Writes lines to the server's log, each with its position in the source code. Part of a line may
/// come from a client, so the receiver escapes control characters, and a line stays a single line.
#[derive(Clone)]
pub struct LogSink {
    write: Arc<WriteLine>,
    /// The function that reports which levels are logged, if the log has one.
    is_enabled: Option<Arc<IsEnabled>>,
}

impl LogSink {
    /// Creates a sink that passes every line to `write`, which formats the lines that it logs.
    pub fn new(
        write: impl Fn(LogLevel, &Location<'_>, &dyn Display) + Send + Sync + 'static,
    ) -> Self {
        Self { write: Arc::new(write), is_enabled: None }
    }

    /// Adds a function that reports which levels are logged. Without it, nothing is logged about
    /// individual requests and sequences.
    #[must_use]
    pub fn with_level_filter(
        self,
        is_enabled: impl Fn(LogLevel) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { is_enabled: Some(Arc::new(is_enabled)), ..self }
    }

    /// Returns true if lines of this level are certain to be logged.
    pub(crate) fn is_enabled(&self, level: LogLevel) -> bool {
        self.is_enabled.as_ref().is_some_and(|is_enabled| is_enabled(level))
    }

    /// Writes a line, with the caller's position. A line that is passed as `format_args!` is
    /// formatted only if it is logged.
    #[track_caller]
    pub fn write(&self, level: LogLevel, message: impl Display) {
        (self.write)(level, Location::caller(), &message);
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}

/// Replies to a refused request with an error, and logs the refusal.
#[track_caller]
pub fn refuse_and_log(sender: ResponseSender, status: Status, log: &LogSink) {
    log.write(LogLevel::Verbose(1), refusal(&status));
    sender.refuse(status);
}

/// The log line for a request that is refused with this status.
pub(crate) fn refusal(status: &Status) -> impl Display {
    fmt::from_fn(|f| write!(f, "a request is refused: {}", status.message()))
}

/// The log line for a refused request. It contains the request's identifier even if the status
/// doesn't.
pub(crate) fn refusal_of(request: &InferenceRequest, status: &Status) -> impl Display {
    fmt::from_fn(|f| {
        let name = request.log_prefix();
        let text = status.message().strip_prefix(&name).unwrap_or(status.message());
        write!(f, "a request is refused: {name}{text}")
    })
}
