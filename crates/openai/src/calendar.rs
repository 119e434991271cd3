//! Dates for chat templates, in UTC.

use galatea_calendar::UtcTime;

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
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats a time according to a `strftime` format. Directives that no known template uses are
/// copied unchanged.
pub(crate) fn format_time(seconds: u64, format: &str) -> String {
    let time = UtcTime::after_1970(seconds);
    let weekday = name(&DAYS, time.weekday);
    let month = name(&MONTHS, time.month.saturating_sub(1));
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text.push_str(&time.year.to_string()),
            Some('y') => text.push_str(&two(time.year % 100)),
            Some('m') => text.push_str(&two(time.month)),
            Some('d') => text.push_str(&two(time.day)),
            Some('B') => text.push_str(month),
            Some('b') => text.push_str(month.get(..3).unwrap_or(month)),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(weekday.get(..3).unwrap_or(weekday)),
            Some('H') => text.push_str(&two(time.hour)),
            Some('M') => text.push_str(&two(time.minute)),
            Some('S') => text.push_str(&two(time.second)),
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
    }
}
