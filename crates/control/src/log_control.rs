//! The log settings that clients can read and change.

use std::fmt;

use galatea_gate::access::{AccessPass, api};

use galatea_infer::Status;

/// The format of a log line's header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `I1121 07:45:01.123456 PID file:line] `: level, month and day, time.
    #[default]
    Default,
    /// `2026-11-21T07:45:01Z I PID file:line] `.
    Iso8601,
}

impl LogFormat {
    /// The format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Default, Self::Iso8601].into_iter().find(|format| format.name() == name)
    }

    /// The name that the command line and the protocols use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Iso8601 => "ISO8601",
        }
    }
}

/// The current settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The file that receives all log lines; empty for the console.
    pub file: String,
    /// True if information is logged.
    pub info: bool,
    /// True if warnings are logged.
    pub warning: bool,
    /// True if errors are logged.
    pub error: bool,
    /// The maximum level of verbose lines that are logged.
    pub verbose_level: u32,
    /// The format of log line headers.
    pub format: LogFormat,
}

/// A change to the log settings that clients may request. The log's destination is fixed at
/// startup.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogSettingChange {
    /// Switches information on or off.
    Info(bool),
    /// Switches warnings on or off.
    Warning(bool),
    /// Switches errors on or off.
    Error(bool),
    /// Sets the maximum level of verbose lines that are logged.
    VerboseLevel(u32),
    /// Sets the format of log line headers.
    Format(LogFormat),
}

impl LogSettingChange {
    /// Sets the maximum level of verbose lines that are logged. As in Triton, the level is a signed
    /// 32-bit number, and negative levels count as 0.
    #[must_use]
    pub fn verbose_level(level: u64) -> Self {
        let low_bits = u32::try_from(level & u64::from(u32::MAX)).unwrap_or_default();
        Self::VerboseLevel(if i32::try_from(low_bits).is_ok() { low_bits } else { 0 })
    }
}

/// The log, as seen by doors.
pub trait LogControl: fmt::Debug + Send + Sync {
    /// The current settings of the log.
    fn settings(&self, pass: AccessPass<api::Logging>) -> LogSettings;
    /// Changes one setting, for all subsequent lines.
    fn change(&self, pass: AccessPass<api::Logging>, change: LogSettingChange);
}

/// A client's changes to the log.
///
/// As in Triton, the changes that precede a mistake take effect: a client that gets an error may
/// have changed the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogSettingsUpdate {
    /// The changes, in the order in which they are applied.
    pub changes: Vec<LogSettingChange>,
    /// The mistake that follows the changes, if any.
    pub mistake: Option<Status>,
}

impl LogSettingsUpdate {
    /// Applies the changes and returns the new settings.
    ///
    /// # Errors
    ///
    /// The mistake, if there is one.
    pub fn apply(
        self,
        log: Option<&dyn LogControl>,
        pass: AccessPass<api::Logging>,
    ) -> Result<LogSettings, Status> {
        let log =
            log.ok_or_else(|| Status::unavailable("the server does not support dynamic logging"))?;
        for change in self.changes {
            log.change(pass, change);
        }
        self.mistake.map_or_else(|| Ok(log.settings(pass)), Err)
    }
}
