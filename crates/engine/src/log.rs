//! Where lines of the log go.

use std::fmt::{self, Display, Write as _};
use std::panic::Location;
use std::sync::Arc;

use galatea_backend::LogLevel;
use galatea_infer::{ResponseSender, Status};

type Write = dyn Fn(LogLevel, &Location<'_>, &dyn Display) + Send + Sync;

/// Writes lines to the server's log, each with the place in the source that
/// it comes from.
#[derive(Clone)]
pub struct LogSink(Arc<Write>);

impl LogSink {
    /// A sink that hands every line to `write`, which formats what it wants.
    pub fn new(
        write: impl Fn(LogLevel, &Location<'_>, &dyn Display) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(write))
    }

    /// Writes a line as the caller's. One that the log leaves out is not even
    /// formatted: give it `format_args!`.
    #[track_caller]
    pub fn write(&self, level: LogLevel, message: impl Display) {
        (self.0)(level, Location::caller(), &message);
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}

/// Answers a request that is not taken with an error, and says so.
#[track_caller]
pub(crate) fn refuse(sender: ResponseSender, status: Status, log: &LogSink) {
    log.write(LogLevel::Verbose(1), refusal(&status));
    sender.fail(status);
}

/// The line about a request that is refused with this status.
pub(crate) fn refusal(status: &Status) -> impl Display {
    fmt::from_fn(|f| write!(f, "a request is refused: {}", OneLine(status.message())))
}

/// Text of which a client may have written a part: it stays on its line.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_does_not_end_within() {
        assert_eq!(OneLine("a 'b'\r\nc\u{1b}\u{85}é").to_string(), "a 'b'\\r\\nc\\u{1b}\\u{85}é");
    }
}
