//! Where lines of the log go.

use std::fmt::{self, Display};
use std::panic::Location;
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_infer::{InferenceRequest, ResponseSender, Status};

type Write = dyn Fn(LogLevel, &Location<'_>, &dyn Display) + Send + Sync;

type Wants = dyn Fn(LogLevel) -> bool + Send + Sync;

/// Writes lines to the server's log, each with the place in the source that
/// it comes from. A client may have written a part of a line: the receiver of the lines
/// escapes control characters, so that a line stays one line.
#[derive(Clone)]
pub struct LogSink {
    write: Arc<Write>,
    /// Which levels are not left out, if that can be asked.
    wants: Option<Arc<Wants>>,
}

impl LogSink {
    /// A sink that hands every line to `write`, which formats what it wants.
    pub fn new(
        write: impl Fn(LogLevel, &Location<'_>, &dyn Display) + Send + Sync + 'static,
    ) -> Self {
        Self { write: Arc::new(write), wants: None }
    }

    /// The same, and it can be asked which levels are not left out. Without that there
    /// are no lines about each request and sequence.
    #[must_use]
    pub fn with_levels(self, wants: impl Fn(LogLevel) -> bool + Send + Sync + 'static) -> Self {
        Self { wants: Some(Arc::new(wants)), ..self }
    }

    /// Whether lines of this level are sure not to be left out.
    pub(crate) fn wants(&self, level: LogLevel) -> bool {
        self.wants.as_ref().is_some_and(|wants| wants(level))
    }

    /// Writes a line as the caller's. One that the log leaves out is not even
    /// formatted: give it `format_args!`.
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

/// Answers a request that is not taken with an error, and says so.
#[track_caller]
pub fn refuse(sender: ResponseSender, status: Status, log: &LogSink) {
    log.write(LogLevel::Verbose(1), refusal(&status));
    sender.fail(status);
}

/// The line about a request that is refused with this status.
pub(crate) fn refusal(status: &Status) -> impl Display {
    fmt::from_fn(|f| write!(f, "a request is refused: {}", status.message()))
}

/// The same, and which request that is, whether or not the status says so.
pub(crate) fn refusal_of(request: &InferenceRequest, status: &Status) -> impl Display {
    fmt::from_fn(|f| {
        let name = request.log_prefix();
        let text = status.message().strip_prefix(&name).unwrap_or(status.message());
        write!(f, "a request is refused: {name}{text}")
    })
}
