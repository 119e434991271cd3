//! Dates of the Gregorian calendar, in UTC.
//!
//! The crate reads no clock and formats nothing. Its users do both.
//!
//! ```
//! use galatea_calendar::UtcTime;
//!
//! let time = UtcTime::after_1970(1_709_251_199);
//! assert_eq!((time.year, time.month, time.day), (2024, 2, 29));
//! assert_eq!((time.hour, time.minute, time.second), (23, 59, 59));
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

const SECONDS_PER_DAY: u64 = 86_400;
/// 1970-01-01 was a Thursday.
const FIRST_WEEKDAY: u64 = 4;

/// A point in time, broken down into its fields.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UtcTime {
    /// The year.
    pub year: u64,
    /// The month, 1 to 12.
    pub month: u64,
    /// The day of the month, 1 to 31.
    pub day: u64,
    /// The day of the week, 0 for Sunday to 6 for Saturday.
    pub weekday: u64,
    /// The hour, 0 to 23.
    pub hour: u64,
    /// The minute, 0 to 59.
    pub minute: u64,
    /// The second, 0 to 59.
    pub second: u64,
}

impl UtcTime {
    /// Creates the time that is this number of seconds after the start of 1970.
    #[must_use]
    pub const fn after_1970(seconds: u64) -> Self {
        let (days, of_day) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
        let (year, month, day) = date(days);
        Self {
            year,
            month,
            day,
            weekday: (days + FIRST_WEEKDAY) % 7,
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }
}

/// Returns the year, month and day that is this number of days after 1970-01-01.
///
/// Years are counted from March, so that the leap day comes last; 400 years
/// are always 146,097 days.
const fn date(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_around_leap_days_are_right() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (789, (1972, 2, 29)),
            (790, (1972, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_322, (2000, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), expected);
        }
    }

    #[test]
    fn weeks_and_hours_follow_days() {
        for (seconds, weekday, clock) in [
            (0, 4, (0, 0, 0)),
            (951_782_400, 2, (0, 0, 0)),
            (1_709_251_199, 4, (23, 59, 59)),
            (1_735_689_600, 3, (0, 0, 0)),
        ] {
            let time = UtcTime::after_1970(seconds);
            assert_eq!((time.weekday, (time.hour, time.minute, time.second)), (weekday, clock));
        }
    }

    #[test]
    fn no_time_is_too_late() {
        let last = UtcTime::after_1970(u64::MAX);
        assert_eq!((last.month, last.day, last.second), (11, 9, 15));
    }
}
