//! The parts of a log line.

use std::time::{SystemTime, UNIX_EPOCH};

use galatea_infer::LogLevel;

use super::{LogFormat, SourcePosition, escape};

const SECONDS_PER_DAY: u64 = 86_400;

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

/// A UTC time, broken down into its fields.
struct Moment {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    microsecond: u32,
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since_epoch.as_secs();
        let (year, month, day) = civil_date(seconds / SECONDS_PER_DAY);
        let second_of_day = seconds % SECONDS_PER_DAY;
        Self {
            year,
            month,
            day,
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            microsecond: since_epoch.subsec_micros(),
        }
    }
}

impl Moment {
    fn short(&self) -> String {
        let Self { month, day, hour, minute, second, microsecond, .. } = self;
        format!("{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{microsecond:06}")
    }

    fn iso8601(&self) -> String {
        let Self { year, month, day, hour, minute, second, .. } = self;
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// The Gregorian date of a day counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day comes last; 400 years
/// are always 146,097 days. Days before 1970 don't occur.
fn civil_date(days_since_epoch: u64) -> (u64, u64, u64) {
    let days = days_since_epoch.saturating_add(719_468);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
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

    #[test]
    fn dates_around_leap_days_are_right() {
        let day = |date: (u64, u64, u64), days: u64| assert_eq!(civil_date(days), date);
        day((1970, 1, 1), 0);
        day((1972, 2, 29), 789);
        day((1972, 3, 1), 790);
        day((2000, 2, 29), 11_016);
        day((2000, 12, 31), 11_322);
        day((2100, 2, 28), 47_540);
        day((2100, 3, 1), 47_541);
    }
}
