//! Dates for chat templates, in UTC.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A day of the Gregorian calendar.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// Returns the date that is this number of days after 1970-01-01.
    fn of(days: u64) -> Self {
        let mut rest = days;
        let mut year = 1970;
        loop {
            let length = if is_leap(year) { 366 } else { 365 };
            if rest < length || year > 9999 {
                break;
            }
            rest = rest.saturating_sub(length);
            year = year.saturating_add(1);
        }
        let mut month = 1;
        while rest >= month_length(year, month) && month < 12 {
            rest = rest.saturating_sub(month_length(year, month));
            month = month.saturating_add(1);
        }
        Self { year, month, day: rest.saturating_add(1) }
    }
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

const fn month_length(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Formats a time according to a `strftime` format. Directives that no known template uses are
/// copied unchanged.
pub(crate) fn format_time(seconds: u64, format: &str) -> String {
    let date = Date::of(seconds / 86_400);
    let weekday = name(&DAYS, (seconds / 86_400) % 7);
    let month = name(&MONTHS, date.month.saturating_sub(1));
    let of_day = seconds % 86_400;
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text.push_str(&date.year.to_string()),
            Some('y') => text.push_str(&two(date.year % 100)),
            Some('m') => text.push_str(&two(date.month)),
            Some('d') => text.push_str(&two(date.day)),
            Some('B') => text.push_str(month),
            Some('b') => text.push_str(month.get(..3).unwrap_or(month)),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(weekday.get(..3).unwrap_or(weekday)),
            Some('H') => text.push_str(&two(of_day / 3600)),
            Some('M') => text.push_str(&two(of_day / 60 % 60)),
            Some('S') => text.push_str(&two(of_day % 60)),
            Some('%') | None => text.push('%'),
            Some(other) => text.extend(['%', other]),
        }
    }
    text
}

fn two(number: u64) -> String {
    format!("{number:02}")
}

fn name(names: &[&'static str], index: u64) -> &'static str {
    usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thursday"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday"),
            (1_709_251_199, "2024-02-29 23:59:59 Thursday"),
            (1_735_689_600, "2025-01-01 00:00:00 Wednesday"),
        ] {
            assert_eq!(format_time(seconds, "%Y-%m-%d %H:%M:%S %A"), expected);
        }
        assert_eq!(format_time(0, "%a %b %B %y %% %q %"), "Thu Jan January 70 % %q %");
        assert_eq!(Date::of(u64::MAX / 86_400).year, 10_000);
    }
}
