//! The names that a model may have.

use thiserror::Error;

/// The longest name of a directory on Linux.
const NAME_BYTES_MAX: usize = 255;

/// A name that no model may have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid model name '{}': {reason}", .name.escape_debug())]
pub struct InvalidName {
    name: String,
    reason: &'static str,
}

/// Checks a model's name: one component of a path that no later reader can take for
/// another.
///
/// # Errors
///
/// If it is empty, `.` or `..`, begins or ends with a blank, is longer than
/// 255 bytes, or contains `/`, `\` or a control character.
pub fn check_model_name(name: &str) -> Result<(), InvalidName> {
    let refuse = |reason| Err(InvalidName { name: name.to_owned(), reason });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return refuse("it is longer than 255 bytes");
    }
    if name.trim() != name {
        return refuse("it begins or ends with a blank");
    }
    if name == "." || name == ".." {
        return refuse("it names a directory relative to another");
    }
    if name.contains(['/', '\\']) {
        return refuse("it contains a slash or backslash");
    }
    if name.contains(char::is_control) {
        return refuse("it contains a control character");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_valid() {
        let longest = "x".repeat(255);
        for name in ["simple", "a.b-c_d", "..a", "résumé", "two words", "$(touch x)", &longest] {
            assert_eq!(check_model_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_invalid() {
        let too_long = "x".repeat(256);
        for name in [
            "", ".", "..", " ..", ".. ", "a/b", "../x", "a\\b", "a\0b", "a\nb", "\u{85}", &too_long,
        ] {
            assert!(check_model_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_message_escapes_the_name() {
        let message = check_model_name("a\nb").unwrap_err().to_string();
        assert_eq!(message, "invalid model name 'a\\nb': it contains a control character");
    }
}
