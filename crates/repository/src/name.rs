//! Valid model names.

use galatea_gate::text::format_bounded;
use thiserror::Error;

/// The maximum length of a model name, in bytes: the maximum length of a directory name on Linux.
pub const MODEL_NAME_BYTES_MAX: usize = 255;

/// An invalid model name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid model name '{}': {reason}", format_bounded(.name.escape_debug(), MODEL_NAME_BYTES_MAX))]
pub struct InvalidName {
    name: String,
    reason: &'static str,
}

/// Checks the name of a model in a repository: it must be a single path component that can be shown
/// on one line.
///
/// # Errors
///
/// Returns an error if the name is empty, `.` or `..` (even with surrounding blanks), is longer
/// than 255 bytes, or contains `/` or a control character.
pub fn check_model_name(name: &str) -> Result<(), InvalidName> {
    let refuse = |reason| Err(InvalidName { name: name.to_owned(), reason });
    if name.len() > MODEL_NAME_BYTES_MAX {
        return refuse("it is longer than 255 bytes");
    }
    if name.trim().is_empty() {
        return refuse("it is empty");
    }
    if name.trim() == "." || name.trim() == ".." {
        return refuse("it names a directory relative to another");
    }
    if name.contains('/') {
        return refuse("it contains a slash");
    }
    if name.contains(char::is_control) {
        return refuse("it contains a control character");
    }
    Ok(())
}

/// Checks the name of a model whose files a client sends. No directory has that name yet, so a
/// stricter rule can apply, which prevents names that look alike.
///
/// # Errors
///
/// Same as [`check_model_name`]; in addition, the name must not begin or end with a blank.
pub fn check_uploaded_model_name(name: &str) -> Result<(), InvalidName> {
    check_model_name(name)?;
    let refuse = |reason| Err(InvalidName { name: name.to_owned(), reason });
    if name.trim() != name {
        return refuse("it begins or ends with a blank");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_valid() {
        let longest = "x".repeat(255);
        for name in
            ["simple", "a.b-c_d", "..a", "résumé", "two words", "$(touch x)", "a\\b", &longest]
        {
            assert_eq!(check_model_name(name), Ok(()), "{name}");
            assert_eq!(check_uploaded_model_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn directories_may_have_names_that_clients_may_not_make() {
        for name in [" x", "x ", " . x"] {
            assert_eq!(check_model_name(name), Ok(()), "{name}");
            assert!(check_uploaded_model_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_invalid() {
        let too_long = "x".repeat(256);
        for name in
            ["", " ", ".", "..", " ..", ".. ", "a/b", "../x", "a\0b", "a\nb", "\u{85}", &too_long]
        {
            assert!(check_model_name(name).is_err(), "{name}");
            assert!(check_uploaded_model_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_message_escapes_and_cuts_the_name() {
        let message = check_model_name("a\nb").unwrap_err().to_string();
        assert_eq!(message, "invalid model name 'a\\nb': it contains a control character");
        let message = check_model_name(&"x".repeat(1 << 20)).unwrap_err().to_string();
        assert!(message.len() < 400, "{message}");
    }
}
