//! The parts of a log line.

use std::time::{SystemTime, UNIX_EPOCH};

use galatea_calendar::UtcTime;
use galatea_infer::LogLevel;

use super::{LogFormat, SourcePosition, escape};

/// A log line whose header is written.
pub(super) struct Line {
    text: String,
}

impl Line {
    /// Writes the header, the part before the message.
    pub(super) fn head(
        format: LogFormat,
        level: LogLevel,
        time: SystemTime,
        process: u32,
        position: SourcePosition<'_>,
    ) -> Self {
        let moment = Moment::from(time);
        let letter = letter(level);
        let begin = match format {
            LogFormat::Default => format!("{letter}{}", moment.short()),
            LogFormat::Iso8601 => format!("{} {letter}", moment.iso8601()),
        };
        let file = position.file.rsplit('/').next().unwrap_or_default();
        Self { text: format!("{begin} {process} {file}:{}] ", position.line) }
    }

    /// Completes the record with a message, which may contain any characters.
    pub(super) fn message(mut self, message: &str, quote: bool) -> String {
        if quote {
            self.text.push_str(&escape::quoted(message));
        } else {
            self.text.push_str(message);
        }
        self.text.push('\n');
        self.text
    }

    /// Completes the record with lines that the server formatted, below the header.
    pub(super) fn followed_by(mut self, lines: &str) -> String {
        self.text.push('\n');
        self.text.push_str(lines);
        self.text.push('\n');
        self.text
    }
}

/// The letter at the start of a line; verbose lines count as information.
const fn letter(level: LogLevel) -> char {
    match level {
        LogLevel::Error => 'E',
        LogLevel::Warning => 'W',
        LogLevel::Info | LogLevel::Verbose(_) => 'I',
    }
}

/// A time, to the microsecond.
struct Moment {
    time: UtcTime,
    microsecond: u32,
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = UtcTime::after_1970(since_1970.as_secs());
        Self { time, microsecond: since_1970.subsec_micros() }
    }
}

impl Moment {
    fn short(&self) -> String {
        let Self { time: UtcTime { month, day, hour, minute, second, .. }, microsecond } = self;
        format!("{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{microsecond:06}")
    }

    fn iso8601(&self) -> String {
        let UtcTime { year, month, day, hour, minute, second, .. } = self.time;
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn check(format: LogFormat, level: LogLevel, seconds: u64, expected: &str) {
        let time = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(42);
        let position = SourcePosition { file: "crates/engine/src/load.rs", line: 7 };
        let line = Line::head(format, level, time, 99, position);
        assert_eq!(line.message("loaded", true), expected);
    }

    #[test]
    // row: LOGF-01 LOGF-02
    fn both_formats_show_the_time_in_utc() {
        let seconds = 1_795_247_101;
        check(
            LogFormat::Default,
            LogLevel::Info,
            seconds,
            "I1121 07:45:01.000042 99 load.rs:7] \"loaded\"\n",
        );
        check(
            LogFormat::Iso8601,
            LogLevel::Error,
            seconds,
            "2026-11-21T07:45:01Z E 99 load.rs:7] \"loaded\"\n",
        );
        check(
            LogFormat::Default,
            LogLevel::Verbose(3),
            seconds,
            "I1121 07:45:01.000042 99 load.rs:7] \"loaded\"\n",
        );
    }
}
