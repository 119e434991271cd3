//! The JSON form of a configuration, read.

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::{MODEL_CONFIG_MESSAGE, descriptor_pool};
use prost_reflect::{DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use crate::diagnostic::{ConfigErrors, Diagnostic, Position};
use crate::suggest::{nearest, nearest_value};

pub(crate) fn parse(file_name: &str, text: &str) -> Result<ModelConfig, ConfigErrors> {
    let named = |mut diagnostic: Diagnostic| {
        file_name.clone_into(&mut diagnostic.file);
        diagnostic
    };
    let mut value: Value = serde_json::from_str(text).map_err(|error| {
        let position = Position { line: error.line(), column: error.column() };
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or_default().to_owned();
        named(Diagnostic { position: Some(position), ..Diagnostic::about("", message) })
    })?;
    let Some(descriptor) = descriptor_pool().get_message_by_name(MODEL_CONFIG_MESSAGE) else {
        return Err(named(Diagnostic::about("", "the schema of configurations is missing")).into());
    };
    let mut found = Vec::new();
    check_message(&descriptor, &mut value, "", &mut found);
    let diagnostics = found.into_iter().map(named).collect();
    ConfigErrors { diagnostics }.into_result()?;
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(descriptor, value, &options)
        .map_err(|error| named(Diagnostic::about("", error.to_string())))?;
    let config = message
        .transcode_to()
        .map_err(|error| named(Diagnostic::about("", format!("can not be read back: {error}"))))?;
    Ok(config)
}

/// Finds unknown fields, and brings the names of enumerations' values into the
/// case of the schema.
fn check_message(
    descriptor: &MessageDescriptor,
    value: &mut Value,
    path: &str,
    found: &mut Vec<Diagnostic>,
) {
    let Value::Object(members) = value else { return };
    for (name, member) in members.iter_mut() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let field =
            descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name));
        match field {
            Some(field) => check_field(&field, member, &path, found),
            None => {
                let names: Vec<String> =
                    descriptor.fields().map(|field| field.name().to_owned()).collect();
                let shown = name.escape_debug();
                let message = format!("unknown field '{shown}' in {}", descriptor.name());
                found.push(Diagnostic {
                    suggestion: nearest(name, names.iter().map(String::as_str)),
                    ..Diagnostic::about(path.escape_debug().to_string(), message)
                });
            }
        }
    }
}

fn check_field(
    field: &FieldDescriptor,
    value: &mut Value,
    path: &str,
    found: &mut Vec<Diagnostic>,
) {
    match (field.kind(), value) {
        (Kind::Message(entry), Value::Object(members)) if field.is_map() => {
            let kind = entry.map_entry_value_field().kind();
            for (key, member) in members.iter_mut() {
                check_value(&kind, member, &format!("{path}[\"{}\"]", key.escape_debug()), found);
            }
        }
        (kind, Value::Array(elements)) if field.is_list() => {
            for (index, element) in elements.iter_mut().enumerate() {
                check_value(&kind, element, &format!("{path}[{index}]"), found);
            }
        }
        (kind, single) => check_value(&kind, single, path, found),
    }
}

fn check_value(kind: &Kind, value: &mut Value, path: &str, found: &mut Vec<Diagnostic>) {
    match (kind, value) {
        (Kind::Message(descriptor), value) => check_message(descriptor, value, path, found),
        (Kind::Enum(descriptor), Value::String(name)) => {
            let names: Vec<String> =
                descriptor.values().map(|value| value.name().to_owned()).collect();
            if let Some(exact) = names.iter().find(|exact| exact.eq_ignore_ascii_case(name)) {
                exact.clone_into(name);
            } else {
                let shown = name.escape_debug();
                let message = format!("'{shown}' is not a value of {}", descriptor.name());
                found.push(Diagnostic {
                    expected: Some(format!("one of {}", names.join(", "))),
                    suggestion: nearest_value(name, &names),
                    ..Diagnostic::about(path, message)
                });
            }
        }
        _ => {}
    }
}
