//! The severity of a log line.

/// The level of a log line, from the most to the least important.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// A failure.
    Error,
    /// A possible problem.
    Warning,
    /// An event.
    Info,
    /// A detail, in levels starting at 1; a higher level is finer.
    Verbose(u32),
}
