//! The members of a JSON object. A member of the wrong type is an error, because ignoring it would
//! change the model's results.

use serde_json::{Number, Value};

use crate::error::TextModelError;

/// The object in a JSON file.
#[derive(Copy, Clone)]
pub(crate) struct JsonObject<'a> {
    file: &'a str,
    object: &'a Value,
}

impl<'a> JsonObject<'a> {
    /// `object` is `Value::Null` if the file doesn't exist.
    pub(crate) const fn new(file: &'a str, object: &'a Value) -> Self {
        Self { file, object }
    }

    /// Returns a member; `None` if the object doesn't have it, or if it is null.
    pub(crate) fn get(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Returns true if the object has the member, even if it is null.
    pub(crate) fn contains(self, key: &str) -> bool {
        self.object.get(key).is_some()
    }

    /// Returns an object within the object.
    pub(crate) fn nested(self, key: &str) -> Self {
        Self { file: self.file, object: self.object.get(key).unwrap_or(&Value::Null) }
    }

    pub(crate) fn string(self, key: &str) -> Result<Option<&'a str>, TextModelError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn boolean(self, key: &str) -> Result<Option<bool>, TextModelError> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    /// Returns a number above 0. Tokenizers without a limit state a number that exceeds 64 bits,
    /// and other files state 0 or -1; the result is then `None`.
    pub(crate) fn count(self, key: &str) -> Result<Option<u64>, TextModelError> {
        let whole = |value: &'a Value| value.as_number().filter(|number| is_whole(number));
        let number = self.typed(key, "a whole number", whole)?;
        Ok(number.and_then(Number::as_u64).filter(|count| *count > 0))
    }

    /// Creates an error about a member.
    pub(crate) fn invalid(self, key: &str, problem: &str) -> TextModelError {
        self.error(format!("'{key}' {problem}"))
    }

    /// Creates an error about the file.
    pub(crate) fn error(self, problem: String) -> TextModelError {
        TextModelError::new(self.file, problem)
    }

    fn typed<T>(
        self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, TextModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let converted = convert(value);
        converted.map(Some).ok_or_else(|| self.invalid(key, &format!("is not {expected}")))
    }
}

fn is_whole(number: &Number) -> bool {
    // A whole number of more than 64 bits is read as a float.
    let exceeds = |float: f64| float.abs() >= 18_446_744_073_709_551_616.0;
    number.is_u64() || number.is_i64() || number.as_f64().is_some_and(exceeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_the_wrong_type_are_errors() {
        let object = serde_json::json!({
            "text": "t", "yes": true, "five": 5, "zero": 0, "minus": -1, "half": 0.5, "null": null
        });
        let members = JsonObject::new("f", &object);
        let error = |error: TextModelError| error.to_string();
        let count = |key| members.count(key).map_err(error);
        assert_eq!(count("five"), Ok(Some(5)));
        for key in ["zero", "minus", "null", "missing"] {
            assert_eq!(count(key), Ok(None), "{key}");
        }
        for key in ["half", "text", "yes"] {
            assert_eq!(count(key), Err(format!("f: '{key}' is not a whole number")));
        }
        assert_eq!(members.string("text"), Ok(Some("t")));
        assert_eq!(members.string("null"), Ok(None));
        assert_eq!(members.string("five").map_err(error).unwrap_err(), "f: 'five' is not a string");
        assert_eq!(members.boolean("yes"), Ok(Some(true)));
        let refused = members.boolean("five").map_err(error).unwrap_err();
        assert_eq!(refused, "f: 'five' is not a boolean");
        assert!(members.contains("null") && !members.contains("missing"));
    }
}
