//! Reads the JSON form of a configuration.

use galatea_gate::limits::Limits;
use galatea_protocol::inference::ModelConfig;
use galatea_protocol::schema::{
    Arity, EnumDescriptor, FieldDescriptor, FieldKind, MessageDescriptor, model_config,
};
use serde_json::{Map, Number, Value as Json};

use crate::diagnostic::{BoundedText, ConfigErrors, Diagnostic, Diagnostics, bounded};
use crate::dynamic::{DynamicMessage, DynamicValue, MapKey, entry_fields};
use crate::json_text::{self, JsonError};
use crate::suggest::{nearest, nearest_value};

pub(crate) fn parse(file_name: &str, text: &str) -> Result<ModelConfig, ConfigErrors> {
    let named = |mut diagnostic: Diagnostic| {
        file_name.clone_into(&mut diagnostic.file);
        diagnostic
    };
    if text.len() > Limits::CONFIG_JSON_BYTES_MAX {
        let (size, most) = (text.len(), Limits::CONFIG_JSON_BYTES_MAX);
        let message = bounded!("{size} bytes are too many, at most {most} are read");
        return Err(named(Diagnostic::about("", message)).into());
    }
    let value = json_text::parse(text).map_err(|JsonError { position, message }| {
        named(Diagnostic { position: Some(position), ..Diagnostic::about("", message) })
    })?;
    let mut decoder = JsonDecoder::default();
    let message = decoder.message(model_config(), &value, "");
    let diagnostics = decoder.diagnostics.into_vec().into_iter().map(named).collect();
    ConfigErrors { diagnostics }.into_result()?;
    message.unwrap_or_else(|| DynamicMessage::new(model_config())).to_message().map_err(|error| {
        named(Diagnostic::about("", bounded!("can not be read back: {error}"))).into()
    })
}

/// Decodes values and continues after errors.
#[derive(Default)]
struct JsonDecoder {
    diagnostics: Diagnostics,
    /// The number of messages read so far.
    messages: usize,
}

impl JsonDecoder {
    /// Reports a value of the wrong type.
    fn type_error<T>(&mut self, path: &str, value: &Json, expected: &str) -> Option<T> {
        let shown = match value {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "this number",
            Json::String(_) => "this string",
            Json::Array(_) => "a list",
            Json::Object(_) => "an object",
        };
        let message = bounded!("{shown} is not possible here");
        let expected = Some(BoundedText::quote(expected));
        self.diagnostics.push(|| Diagnostic {
            expected,
            ..Diagnostic::about(BoundedText::quote(path), message)
        });
        None
    }

    fn message(
        &mut self,
        descriptor: &'static MessageDescriptor,
        value: &Json,
        path: &str,
    ) -> Option<DynamicMessage> {
        let Json::Object(members) = value else {
            let expected = bounded!("an object with the fields of {}", descriptor.name);
            return self.type_error(path, value, &expected);
        };
        self.messages = self.messages.saturating_add(1);
        if self.messages > Limits::CONFIG_MESSAGES_MAX {
            // Once is enough.
            if self.messages == Limits::CONFIG_MESSAGES_MAX.saturating_add(1) {
                let text = bounded!("more than {} objects", Limits::CONFIG_MESSAGES_MAX);
                self.diagnostics.push(|| Diagnostic::about(BoundedText::quote(path), text));
            }
            return None;
        }
        let mut message = DynamicMessage::new(descriptor);
        for (name, member) in members {
            let path =
                if path.is_empty() { BoundedText::quote(name) } else { bounded!("{path}.{name}") };
            match descriptor.field_by_json_name(name).or_else(|| descriptor.field(name)) {
                Some(field) => self.field(&mut message, field, member, &path),
                None => self.unknown_field(descriptor, name, &path),
            }
        }
        Some(message)
    }

    fn unknown_field(&mut self, descriptor: &MessageDescriptor, name: &str, path: &str) {
        let shown = name.escape_debug();
        let message = bounded!("unknown field '{shown}' in {}", descriptor.name);
        self.diagnostics.push(|| Diagnostic {
            suggestion: nearest(name, descriptor.names()),
            ..Diagnostic::about(bounded!("{}", path.escape_debug()), message)
        });
    }

    fn field(
        &mut self,
        message: &mut DynamicMessage,
        field: &'static FieldDescriptor,
        value: &Json,
        path: &str,
    ) {
        // Null counts as absent.
        if value.is_null() {
            return;
        }
        if let Some(choice) = field.oneof.filter(|choice| message.has_choice(choice)) {
            let text = bounded!("another possibility of the oneof '{choice}' is given too");
            self.diagnostics.push(|| Diagnostic::about(BoundedText::quote(path), text));
            return;
        }
        match (field.arity, value) {
            (Arity::Map, Json::Object(members)) => self.map(message, field, members, path),
            (Arity::Map, other) => self.type_error(path, other, "an object").unwrap_or_default(),
            (Arity::List, elements) => {
                let mut list = Vec::new();
                self.list(field.kind, elements, path, &mut list);
                message.set(field, DynamicValue::List(list));
            }
            (Arity::One, single) => {
                if let Some(value) = self.value(field.kind, single, path) {
                    message.set(field, value);
                }
            }
        }
    }

    /// As for protocol buffers, a single value is a list of one, lists in a list are joined,
    /// and null is no element.
    fn list(&mut self, kind: FieldKind, value: &Json, path: &str, list: &mut Vec<DynamicValue>) {
        match value {
            Json::Null => {}
            Json::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    self.list(kind, element, &bounded!("{path}[{index}]"), list);
                }
            }
            single => list.extend(self.value(kind, single, path)),
        }
    }

    fn map(
        &mut self,
        message: &mut DynamicMessage,
        field: &'static FieldDescriptor,
        members: &Map<String, Json>,
        path: &str,
    ) {
        let FieldKind::Message(entry) = field.kind else { return };
        let Some((key, value)) = entry_fields(entry) else { return };
        for (name, member) in members {
            let path = bounded!("{path}[\"{}\"]", name.escape_debug());
            let name = match key.kind {
                FieldKind::Uint64 => match name.parse() {
                    Ok(number) => MapKey::U64(number),
                    Err(_) => {
                        let text = "the key is not a number";
                        self.diagnostics.push(|| Diagnostic::about(path, text));
                        continue;
                    }
                },
                _ => MapKey::String(name.clone()),
            };
            // Null is a value without fields.
            let nothing = Json::Object(Map::new());
            let member = if member.is_null() { &nothing } else { member };
            if let Some(value) = self.value(value.kind, member, &path) {
                message.insert(field, name, value);
            }
        }
    }

    fn value(&mut self, kind: FieldKind, value: &Json, path: &str) -> Option<DynamicValue> {
        let read = match kind {
            FieldKind::Message(inner) => {
                return self.message(inner, value, path).map(DynamicValue::Message);
            }
            FieldKind::Enum(descriptor) => return self.enumeration(descriptor, value, path),
            FieldKind::Bool => boolean(value).map(DynamicValue::Bool),
            FieldKind::String => value.as_str().map(|text| DynamicValue::String(text.to_owned())),
            FieldKind::Int32 => {
                integer(value).and_then(|i| i.try_into().ok()).map(DynamicValue::I32)
            }
            FieldKind::Int64 => {
                integer(value).and_then(|i| i.try_into().ok()).map(DynamicValue::I64)
            }
            FieldKind::Uint32 => {
                integer(value).and_then(|i| i.try_into().ok()).map(DynamicValue::U32)
            }
            FieldKind::Uint64 => {
                integer(value).and_then(|i| i.try_into().ok()).map(DynamicValue::U64)
            }
            FieldKind::Float => float(value).and_then(narrow).map(DynamicValue::F32),
            FieldKind::Double => float(value).map(DynamicValue::F64),
        };
        if read.is_none() {
            return self.type_error(path, value, expectation(kind));
        }
        read
    }

    /// Names match in any case, and with '-' for '_'; a number need not be known, and may be
    /// a string.
    fn enumeration(
        &mut self,
        descriptor: &EnumDescriptor,
        value: &Json,
        path: &str,
    ) -> Option<DynamicValue> {
        let Json::String(name) = value else {
            let number = match value {
                Json::Number(number) => number.as_i64().and_then(|i| i32::try_from(i).ok()),
                _ => None,
            };
            let expected = "the name or the number of a value";
            return number
                .map(DynamicValue::EnumNumber)
                .or_else(|| self.type_error(path, value, expected));
        };
        let plain = name.replace('-', "_");
        let mut values = descriptor.values.iter();
        if let Some((_, number)) = values.find(|value| value.0.eq_ignore_ascii_case(&plain)) {
            return Some(DynamicValue::EnumNumber(*number));
        }
        if let Ok(number) = name.parse() {
            return Some(DynamicValue::EnumNumber(number));
        }
        let names: Vec<String> = descriptor.names().map(str::to_owned).collect();
        let message = bounded!("'{}' is not a value of {}", name.escape_debug(), descriptor.name);
        self.diagnostics.push(|| Diagnostic {
            expected: Some(bounded!("one of {}", names.join(", "))),
            suggestion: nearest_value(name, &names),
            ..Diagnostic::about(BoundedText::quote(path), message)
        });
        None
    }
}

const fn expectation(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Bool => "true or false",
        FieldKind::Int32 => "an integer of 32 bits",
        FieldKind::Uint32 => "an integer of 32 bits that is not negative",
        FieldKind::Int64 => "an integer of 64 bits",
        FieldKind::Uint64 => "an integer of 64 bits that is not negative",
        FieldKind::Float | FieldKind::Double => "a number",
        FieldKind::String => "a string",
        FieldKind::Enum(_) | FieldKind::Message(_) => "another value",
    }
}

/// A boolean, or its name.
fn boolean(value: &Json) -> Option<bool> {
    match value {
        Json::String(text) => text.parse().ok(),
        other => other.as_bool(),
    }
}

/// An integer: a number without a fraction, or a string, the JSON form of large integers.
fn integer(value: &Json) -> Option<i128> {
    match value {
        Json::String(text) => {
            text.parse::<u64>().map(i128::from).ok().or(text.parse::<i64>().map(i128::from).ok())
        }
        Json::Number(number) => whole(number),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is checked to be whole and small enough")]
fn whole(number: &Number) -> Option<i128> {
    const MOST: f64 = 18_446_744_073_709_551_616.0;
    if let Some(integer) = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)) {
        return Some(integer);
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < MOST)?;
    Some(float as i128)
}

/// A number, or the name of a number without a JSON form.
fn float(value: &Json) -> Option<f64> {
    match value {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Rounds to single precision; `None` if out of range.
#[expect(clippy::cast_possible_truncation, reason = "the value is rounded to single precision")]
fn narrow(number: f64) -> Option<f32> {
    let fits = !number.is_finite() || number.abs() <= f64::from(f32::MAX);
    fits.then_some(number as f32)
}
