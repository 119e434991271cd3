//! Escaping of text in log lines.

/// The text as a JSON string, including its quotes.
pub(super) fn quoted(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 2);
    line.push('"');
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            other => push_escaped(&mut line, other),
        }
    }
    line.push('"');
    line
}

/// The text without quotes, with control characters escaped.
pub(crate) fn escape_controls(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    text.chars().for_each(|character| push_escaped(&mut line, character));
    line
}

/// Appends a character, escaped if necessary. A control character could end the line, colour it or
/// move a terminal's cursor, and thus disguise one message as another. Other characters that end a
/// line or change the text direction could do the same, although Unicode does not classify them as
/// control characters.
fn push_escaped(line: &mut String, character: char) {
    match character {
        '\u{8}' => line.push_str("\\b"),
        '\u{c}' => line.push_str("\\f"),
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\t' => line.push_str("\\t"),
        control if control.is_control() || is_deceptive(control) => {
            line.push_str(&format!("\\u{:04X}", u32::from(control)));
        }
        other => line.push(other),
    }
}

/// Returns true if the character ends a line or changes the direction of the text after it.
const fn is_deceptive(character: char) -> bool {
    matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_json_string() {
        assert_eq!(quoted("plain"), r#""plain""#);
        assert_eq!(quoted("a\"b\\c/d é"), r#""a\"b\\c/d é""#);
        assert_eq!(quoted("a\nE1121 forged\r\t\u{1b}[31m"), r#""a\nE1121 forged\r\t\u001B[31m""#);
        assert_eq!(
            quoted("\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}"),
            r#""\u2028\u2029\u202A\u202E\u2066\u2069""#
        );
        assert_eq!(quoted("\u{2027}\u{202f}\u{2065}\u{206a}").chars().count(), 6);
        assert_eq!(quoted("\u{7f}\u{85}\u{0}"), r#""\u007F\u0085\u0000""#);
    }

    #[test]
    fn control_characters_are_escaped_without_quotes_for_tables() {
        assert_eq!(escape_controls("a\"b\\c\nd"), "a\"b\\c\\nd");
    }
}
