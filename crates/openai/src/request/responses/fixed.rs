//! Fields whose values the server can't change.

use super::super::Fields;
use super::{member, mistyped, refused};
use crate::Failure;
use crate::json::{JsonValue, Object};

/// A value that a field may have.
enum FixedValue {
    Bool(bool),
    Int(i64),
    Text(&'static str),
}

impl FixedValue {
    fn is(&self, value: &JsonValue) -> bool {
        match self {
            Self::Bool(fixed) => value.as_bool() == Some(*fixed),
            Self::Int(fixed) => value.as_int() == Some(*fixed),
            Self::Text(fixed) => value.as_str() == Some(fixed),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Bool(fixed) => fixed.to_string(),
            Self::Int(fixed) => fixed.to_string(),
            Self::Text(fixed) => format!("'{fixed}'"),
        }
    }
}

const NOT_STORED: &str = "responses are not stored";
const NOT_SUPPORTED: &str = "it is not supported";

/// The fields, the values that they may have apart from `null`, and the reason.
const FIXED: [(&str, &[FixedValue], &str); 16] = [
    ("store", &[FixedValue::Bool(false)], NOT_STORED),
    ("previous_response_id", &[], NOT_STORED),
    ("conversation", &[], "conversations are not stored"),
    ("prompt", &[], "prompts are not stored"),
    ("background", &[FixedValue::Bool(false)], "responses are not generated in the background"),
    ("background_options", &[], "responses are not generated in the background"),
    ("max_tool_calls", &[], "there are no built-in tools"),
    ("truncation", &[FixedValue::Text("disabled")], "the input is not truncated"),
    ("top_logprobs", &[FixedValue::Int(0)], "responses have no probabilities of tokens"),
    (
        "service_tier",
        &[FixedValue::Text("auto"), FixedValue::Text("default")],
        "there is one service tier",
    ),
    ("access_programs", &[], NOT_SUPPORTED),
    ("context_management", &[], NOT_SUPPORTED),
    ("image", &[], NOT_SUPPORTED),
    ("moderation", &[], NOT_SUPPORTED),
    ("prompt_cache_options", &[], NOT_SUPPORTED),
    ("prompt_cache_retention", &[], NOT_SUPPORTED),
];

/// The data that a client may request although no response has it: it belongs to items for the
/// steps of a reasoning model.
const INCLUDABLE: &str = "reasoning.encrypted_content";

/// Refuses other values of these fields.
pub(super) fn check(fields: &Fields) -> Result<(), Failure> {
    for (name, values, reason) in &FIXED {
        if let Some(value) = fields.get(name) {
            check_value(name, value, values, reason)?;
        }
    }
    check_members(fields, "reasoning", &[], "the effort of reasoning can't be chosen")?;
    let options = [("include_obfuscation", FixedValue::Bool(false))];
    check_members(fields, "stream_options", &options, "events have no obfuscation")?;
    check_include(fields)
}

/// Refuses verbosities of the text other than the default.
pub(super) fn check_text(text: &Object) -> Result<(), Failure> {
    let Some(verbosity) = member(text, "verbosity") else { return Ok(()) };
    let values = [FixedValue::Text("medium")];
    check_value("text.verbosity", verbosity, &values, "the verbosity can't be chosen")
}

fn check_value(
    name: &str,
    value: &JsonValue,
    values: &[FixedValue],
    reason: &str,
) -> Result<(), Failure> {
    if values.iter().any(|fixed| fixed.is(value)) {
        return Ok(());
    }
    let shown: Vec<String> = values.iter().map(FixedValue::shown).collect();
    if shown.is_empty() {
        let text = format!("Unsupported parameter: '{name}': {reason}.");
        let code = Some("unsupported_parameter");
        return Err(Failure::Field { param: name.to_owned(), text, code });
    }
    let text = format!("Unsupported value: '{name}' can only be {}: {reason}.", shown.join(" or "));
    Err(refused(name, text))
}

/// Refuses members of an object other than those with a fixed value.
fn check_members(
    fields: &Fields,
    name: &str,
    fixed: &[(&str, FixedValue)],
    reason: &str,
) -> Result<(), Failure> {
    let Some(value) = fields.get(name) else { return Ok(()) };
    let object = value.as_object().ok_or_else(|| mistyped(name, "an object"))?;
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let known = fixed.iter().find(|(fixed, _)| *fixed == key);
        let values = known.map_or(&[][..], |(_, value)| std::slice::from_ref(value));
        check_value(&format!("{name}.{key}"), value, values, reason)?;
    }
    Ok(())
}

fn check_include(fields: &Fields) -> Result<(), Failure> {
    let Some(include) = fields.get("include") else { return Ok(()) };
    let list = include.as_list().ok_or_else(|| mistyped("include", "a list"))?;
    match list.iter().position(|one| one.as_str() != Some(INCLUDABLE)) {
        None => Ok(()),
        Some(index) => Err(refused(
            format!("include[{index}]"),
            format!("Unsupported value: 'include[{index}]' can only be '{INCLUDABLE}'."),
        )),
    }
}
