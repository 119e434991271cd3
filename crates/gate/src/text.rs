//! Bounded strings: messages repeat a caller's input, which may be long.

use std::fmt::{self, Display, Write};

/// Shortens a string in place to about `bytes_max` bytes, and appends the number of missing bytes.
pub fn truncate_text(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let kept = text.floor_char_boundary(bytes_max);
        let missing = text.len().saturating_sub(kept);
        text.truncate(kept);
        text.shrink_to_fit();
        push_note(text, missing);
    }
}

/// Formats a value in about `bytes_max` bytes, however long it is.
#[must_use]
pub fn format_bounded(value: impl Display, bytes_max: usize) -> String {
    formatted(value, bytes_max, usize::MAX)
}

/// Like [`format_bounded`], but also takes bounded time: missing bytes are counted only up to about
/// `counted_max`.
#[must_use]
pub fn format_prefix(value: impl Display, bytes_max: usize, counted_max: usize) -> String {
    formatted(value, bytes_max, counted_max)
}

fn formatted(value: impl Display, bytes_max: usize, missing_max: usize) -> String {
    let mut bounded = BoundedString { text: String::new(), bytes_max, missing: 0, missing_max };
    // Writing fails if counting has stopped, or if the value's own formatting fails.
    let _ = write!(bounded, "{value}");
    let BoundedString { mut text, missing, .. } = bounded;
    if missing > missing_max {
        // Writing to memory never fails.
        let _ = write!(text, "... (more than {missing_max} more bytes)");
    } else if missing > 0 {
        push_note(&mut text, missing);
    }
    text
}

fn push_note(text: &mut String, missing: usize) {
    // Writing to memory never fails.
    let _ = write!(text, "... ({missing} more bytes)");
}

/// A string that stops growing and counts the missing bytes.
struct BoundedString {
    text: String,
    bytes_max: usize,
    missing: usize,
    /// The number of missing bytes beyond which formatting stops.
    missing_max: usize,
}

impl Write for BoundedString {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = match self.missing {
            0 => self.bytes_max.saturating_sub(self.text.len()),
            _ => 0,
        };
        let (kept, rest) = more.split_at(more.floor_char_boundary(room));
        self.text.push_str(kept);
        self.missing = self.missing.saturating_add(rest.len());
        if self.missing > self.missing_max { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, bytes_max: usize, expected: &str) {
        let mut owned = text.to_owned();
        truncate_text(&mut owned, bytes_max);
        assert_eq!(owned, expected);
        assert_eq!(format_bounded(text, bytes_max), expected);
        // The same text in small pieces.
        let pieces = text.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(format_bounded(Pieces(&pieces), bytes_max), expected);
    }

    struct Pieces<'a>(&'a [String]);

    impl Display for Pieces<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.iter().try_for_each(|piece| f.write_str(piece))
        }
    }

    #[test]
    fn formatting_ends_when_enough_is_missing() {
        struct Endless;
        impl Display for Endless {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                std::iter::repeat("abc").try_for_each(|piece| f.write_str(piece))
            }
        }
        assert_eq!(format_prefix(Endless, 4, 10), "abca... (more than 10 more bytes)");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        check("", 0, "");
        check("abc", 3, "abc");
        check("abcdef", 3, "abc... (3 more bytes)");
        check("aéé", 2, "a... (4 more bytes)");
        check("aéb", 3, "aé... (1 more bytes)");
    }
}
