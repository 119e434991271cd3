//! The parts of Python that Triton's parsers rely on.

use crate::json::{JsonValue, push_indented, push_spaced};

/// The characters that `json.dumps` writes as they are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Charset {
    Ascii,
    Unicode,
}

/// Formats a value as `json.dumps` does.
pub(super) fn dumps(value: &JsonValue, charset: Charset) -> String {
    let mut text = Vec::new();
    match charset {
        Charset::Ascii => push_spaced(&mut text, value),
        Charset::Unicode => push_indented(&mut text, value, None),
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns true if Python regards the value as true.
pub(super) fn is_truthy(value: &JsonValue) -> bool {
    match value {
        JsonValue::Null => false,
        JsonValue::Bool(value) => *value,
        JsonValue::Int(number) => *number != 0,
        JsonValue::BigInt(_) => true,
        JsonValue::Float(number) => *number != 0.0,
        JsonValue::Text(text) => !text.is_empty(),
        JsonValue::List(elements) => !elements.is_empty(),
        JsonValue::Object(object) => object.iter().next().is_some(),
    }
}

/// True for the characters that Python regards as space.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\x1c'..='\x1f')
}

/// Returns the text without space around it.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Returns the text after this number of characters.
pub(super) fn after_chars(text: &str, count: usize) -> &str {
    let start = text.char_indices().nth(count).map_or(text.len(), |(index, _)| index);
    text.get(start..).unwrap_or_default()
}

/// Returns the text without this number of characters at its end.
pub(super) fn without_last_chars(text: &str, count: usize) -> &str {
    let Some(last) = count.checked_sub(1) else { return text };
    let end = text.char_indices().rev().nth(last).map_or(0, |(index, _)| index);
    text.get(..end).unwrap_or_default()
}

/// Returns the start that two texts share.
pub(super) fn common_prefix<'t>(text: &'t str, other: &str) -> &'t str {
    let pairs = text.char_indices().zip(other.chars());
    let length = pairs.take_while(|((_, one), two)| one == two);
    let end =
        length.last().map_or(0, |((index, letter), _)| index.saturating_add(letter.len_utf8()));
    text.get(..end).unwrap_or_default()
}

/// Returns the end that two texts share, up to the last letter or digit in it.
pub(super) fn common_suffix<'t>(text: &'t str, other: &str) -> &'t str {
    let pairs = text.char_indices().rev().zip(other.chars().rev());
    let shared = pairs.take_while(|((_, one), two)| one == two && !one.is_alphanumeric());
    let start = shared.last().map_or(text.len(), |((index, _), _)| index);
    text.get(start..).unwrap_or_default()
}

/// Returns the part of a text that lies between the start and the end that it shares with an
/// earlier text.
pub(super) fn difference<'t>(text: &'t str, earlier: &str) -> &'t str {
    let suffix = common_suffix(text, earlier);
    let earlier = earlier.strip_suffix(suffix).unwrap_or(earlier);
    let prefix = common_prefix(text, earlier);
    let middle = text.strip_suffix(suffix).unwrap_or(text);
    middle.strip_prefix(prefix).unwrap_or(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_compared_by_characters() {
        assert_eq!(common_prefix("aéb", "aéc"), "aé");
        assert_eq!(common_prefix("é", "è"), "");
        assert_eq!(common_suffix("{\"a\": \"b\"}", "{\"a\": \"c\"}"), "\"}");
        assert_eq!(difference(r#"{"fruit": "apple"}"#, r#"{"fruit": "ap"}"#), "ple");
        assert_eq!(difference(r#"{"a": [1, 2]}"#, r#"{"a": [1]}"#), ", 2");
        assert_eq!((after_chars("aéb", 2), after_chars("a", 2)), ("b", ""));
        assert_eq!((without_last_chars("aéb", 2), without_last_chars("a", 2)), ("a", ""));
        assert_eq!(without_last_chars("a", 0), "a");
    }
}
