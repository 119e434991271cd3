//! The weight of a line of the log.

/// The level of a line of the log, from the most to the least important.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is doubtful.
    Warning,
    /// Something happened.
    Info,
    /// Details, in levels from 1; a higher level is finer.
    Verbose(u32),
}
