//! Parsing the parameters of a configuration.

use std::collections::BTreeMap;

use galatea_infer::Status;

use crate::api::Switch;

/// The integer parameter `key`, if it is given.
pub(crate) fn integer(values: &BTreeMap<String, String>, key: &str) -> Result<Option<i32>, Status> {
    let Some(text) = values.get(key) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(invalid_value(key, text, "an integral number")),
    }
}

/// The boolean parameter `key`, if it is given.
pub(crate) fn switch(
    values: &BTreeMap<String, String>,
    key: &str,
) -> Result<Option<Switch>, Status> {
    values.get(key).map(|text| parse_switch(key, text)).transpose()
}

/// Parses a boolean in any of Triton's forms.
pub(crate) fn parse_switch(key: &str, text: &str) -> Result<Switch, Status> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "on" => Ok(Switch::On),
        "0" | "false" | "off" => Ok(Switch::Off),
        _ => Err(invalid_value(key, text, "a boolean (1, 0, true, false, on or off)")),
    }
}

/// The error for a value.
pub(crate) fn invalid_value(key: &str, text: &str, expected: &str) -> Status {
    Status::invalid_argument(format!("'{key}' is '{text}', which is not {expected}"))
}
