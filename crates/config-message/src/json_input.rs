//! Parses the JSON form of a configuration.

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::schema::{
    EnumDescriptor, FieldCardinality, FieldDescriptor, FieldKind, MessageDescriptor,
    model_config_descriptor,
};
use serde_json::Number;

use crate::bounded;
use crate::diagnostic::{BoundedText, ConfigErrors, Diagnostic, Diagnostics};
use crate::dynamic::{
    DynamicMessage, DynamicValue, MapKey, MessageLimitCheck, MessageLimiter, map_entry_fields,
};
use crate::json_text::{JsonError, JsonPart, JsonReader, ReadParts};
use crate::suggest::{nearest_enum_value, nearest_name};

/// The maximum length of a JSON configuration, in bytes, because clients send them.
const CONFIG_JSON_BYTES_MAX: usize = 4 << 20;

/// Parses a configuration in JSON, as defined by Protocol Buffers.
///
/// # Errors
///
/// Returns all mistakes in the text.
pub fn parse_json(file_name: &str, text: &str) -> Result<ModelConfig, ConfigErrors> {
    let named = |mut diagnostic: Diagnostic| {
        file_name.clone_into(&mut diagnostic.file);
        diagnostic
    };
    if text.len() > CONFIG_JSON_BYTES_MAX {
        let (size, most) = (text.len(), CONFIG_JSON_BYTES_MAX);
        let message = bounded!("{size} bytes are too many, at most {most} are read");
        return Err(named(Diagnostic::about("", message)).into());
    }
    let mut decoder = JsonDecoder {
        json: JsonReader::new(text),
        diagnostics: Diagnostics::default(),
        messages: MessageLimiter::for_text(text),
    };
    let message = decoder.whole().map_err(|JsonError { position, message }| {
        named(Diagnostic { position: Some(position), ..Diagnostic::about("", message) })
    })?;
    let diagnostics = decoder.diagnostics.into_vec().into_iter().map(named).collect();
    ConfigErrors { diagnostics }.into_result()?;
    message.unwrap_or_else(|| DynamicMessage::new(model_config_descriptor())).to_message().map_err(
        |error| named(Diagnostic::about("", bounded!("can not be read back: {error}"))).into(),
    )
}

/// A decoded value, or `None` if an error was already reported.
type Decoded<T> = Result<Option<T>, JsonError>;

/// A decoder that continues after errors.
struct JsonDecoder<'t> {
    json: JsonReader<'t>,
    diagnostics: Diagnostics,
    messages: MessageLimiter,
}

impl JsonDecoder<'_> {
    fn whole(&mut self) -> Decoded<DynamicMessage> {
        let value = self.json.value()?;
        let message = self.message(model_config_descriptor(), &value, "")?;
        self.json.end().map(|()| message)
    }

    /// Reports a value of the wrong type.
    fn type_error<T>(&mut self, path: &str, value: &JsonPart, expected: &str) -> Decoded<T> {
        self.json.skip(value)?;
        let shown = match value {
            JsonPart::Null => "null",
            JsonPart::Bool(_) => "a boolean",
            JsonPart::Number(_) => "this number",
            JsonPart::String(_) => "this string",
            JsonPart::List => "a list",
            JsonPart::Object => "an object",
        };
        let message = bounded!("{shown} is not possible here");
        let expected = Some(BoundedText::truncated(expected));
        self.diagnostics.push(|| Diagnostic {
            expected,
            ..Diagnostic::about(BoundedText::truncated(path), message)
        });
        Ok(None)
    }

    fn message(
        &mut self,
        descriptor: &'static MessageDescriptor,
        value: &JsonPart,
        path: &str,
    ) -> Decoded<DynamicMessage> {
        if *value != JsonPart::Object {
            let expected = bounded!("an object with the fields of {}", descriptor.name);
            return self.type_error(path, value, &expected);
        }
        let counted = self.messages.add();
        if counted == MessageLimitCheck::First {
            let text = bounded!("more than {} objects", self.messages.most);
            self.diagnostics.push(|| Diagnostic::about(BoundedText::truncated(path), text));
        }
        if counted != MessageLimitCheck::Within {
            self.json.skip(value)?;
            return Ok(None);
        }
        let mut message = DynamicMessage::new(descriptor);
        let mut read = ReadParts::None;
        while let Some(name) = self.json.next_key(&mut read)? {
            let path = if path.is_empty() {
                BoundedText::truncated(&name)
            } else {
                bounded!("{path}.{name}")
            };
            let member = self.json.value()?;
            match descriptor.field_by_json_name(&name).or_else(|| descriptor.field(&name)) {
                Some(field) => self.field(&mut message, field, &member, &path)?,
                None => {
                    self.json.skip(&member)?;
                    self.unknown_field(descriptor, &name, &path);
                }
            }
        }
        Ok(Some(message))
    }

    fn unknown_field(&mut self, descriptor: &MessageDescriptor, name: &str, path: &str) {
        let shown = name.escape_debug();
        let message = bounded!("unknown field '{shown}' in {}", descriptor.name);
        self.diagnostics.push(|| Diagnostic {
            suggestion: nearest_name(name, descriptor.names()),
            ..Diagnostic::about(bounded!("{}", path.escape_debug()), message)
        });
    }

    fn field(
        &mut self,
        message: &mut DynamicMessage,
        field: &'static FieldDescriptor,
        value: &JsonPart,
        path: &str,
    ) -> Result<(), JsonError> {
        // A null value counts as absent.
        if *value == JsonPart::Null {
            return Ok(());
        }
        if let Some(choice) = field.oneof.filter(|_| message.has_other_oneof_field(field)) {
            let text = bounded!("another possibility of the oneof '{choice}' is given too");
            self.diagnostics.push(|| Diagnostic::about(BoundedText::truncated(path), text));
            return self.json.skip(value);
        }
        match (field.arity, value) {
            (FieldCardinality::Map, JsonPart::Object) => self.map(message, field, path)?,
            (FieldCardinality::Map, other) => {
                self.type_error::<()>(path, other, "an object")?;
            }
            (FieldCardinality::List, elements) => {
                let mut list = Vec::new();
                self.list(field.kind, elements, path, &mut list)?;
                message.set(field, DynamicValue::List(Box::new(list)));
            }
            (FieldCardinality::One, single) => {
                if let Some(value) = self.value(field.kind, single, path)? {
                    message.set(field, value);
                }
            }
        }
        Ok(())
    }

    /// Decodes a list. As in Protocol Buffers, a single value is a one-element list, nested lists
    /// are flattened, and null is not an element.
    fn list(
        &mut self,
        kind: FieldKind,
        value: &JsonPart,
        path: &str,
        list: &mut Vec<DynamicValue>,
    ) -> Result<(), JsonError> {
        match value {
            JsonPart::Null => {}
            JsonPart::List => {
                let mut read = ReadParts::None;
                for index in 0_usize.. {
                    if !self.json.next_element(&mut read)? {
                        break;
                    }
                    let element = self.json.value()?;
                    self.list(kind, &element, &bounded!("{path}[{index}]"), list)?;
                }
            }
            single => list.extend(self.value(kind, single, path)?),
        }
        Ok(())
    }

    fn map(
        &mut self,
        message: &mut DynamicMessage,
        field: &'static FieldDescriptor,
        path: &str,
    ) -> Result<(), JsonError> {
        let FieldKind::Message(entry) = field.kind else { return Ok(()) };
        let Some((key, value)) = map_entry_fields(entry) else { return Ok(()) };
        let mut read = ReadParts::None;
        while let Some(name) = self.json.next_key(&mut read)? {
            let path = bounded!("{path}[\"{}\"]", name.escape_debug());
            let member = self.json.value()?;
            let name = match key.kind {
                FieldKind::Uint64 => match name.parse() {
                    Ok(number) => MapKey::U64(number),
                    Err(_) => {
                        let text = "the key is not a number";
                        self.diagnostics.push(|| Diagnostic::about(path, text));
                        self.json.skip(&member)?;
                        continue;
                    }
                },
                _ => MapKey::String(name),
            };
            let decoded = match (&member, value.kind) {
                // A null value is a message without fields.
                (JsonPart::Null, FieldKind::Message(inner)) => {
                    Some(DynamicValue::Message(Box::new(DynamicMessage::new(inner))))
                }
                (member, kind) => self.value(kind, member, &path)?,
            };
            if let Some(value) = decoded {
                message.insert(field, name, value);
            }
        }
        Ok(())
    }

    fn value(&mut self, kind: FieldKind, value: &JsonPart, path: &str) -> Decoded<DynamicValue> {
        let read = match kind {
            FieldKind::Message(inner) => {
                let message = self.message(inner, value, path)?;
                return Ok(message.map(|message| DynamicValue::Message(Box::new(message))));
            }
            FieldKind::Enum(descriptor) => return self.enumeration(descriptor, value, path),
            FieldKind::Bool => boolean(value).map(DynamicValue::Bool),
            FieldKind::String => match value {
                JsonPart::String(text) => Some(DynamicValue::String(text.clone())),
                _ => None,
            },
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
        Ok(read)
    }

    /// Decodes an enumeration value. Names are case-insensitive and may have '-' for '_'; a number
    /// need not be known and may be a string.
    fn enumeration(
        &mut self,
        descriptor: &EnumDescriptor,
        value: &JsonPart,
        path: &str,
    ) -> Decoded<DynamicValue> {
        let JsonPart::String(name) = value else {
            let number = match value {
                JsonPart::Number(number) => number.as_i64().and_then(|i| i32::try_from(i).ok()),
                _ => None,
            };
            let expected = "the name or the number of a value";
            return match number {
                Some(number) => Ok(Some(DynamicValue::EnumNumber(number))),
                None => self.type_error(path, value, expected),
            };
        };
        let plain = name.replace('-', "_");
        let mut values = descriptor.values.iter();
        if let Some((_, number)) = values.find(|value| value.0.eq_ignore_ascii_case(&plain)) {
            return Ok(Some(DynamicValue::EnumNumber(*number)));
        }
        if let Ok(number) = name.parse() {
            return Ok(Some(DynamicValue::EnumNumber(number)));
        }
        let names: Vec<String> = descriptor.names().map(str::to_owned).collect();
        let message = bounded!("'{}' is not a value of {}", name.escape_debug(), descriptor.name);
        self.diagnostics.push(|| Diagnostic {
            expected: Some(bounded!("one of {}", names.join(", "))),
            suggestion: nearest_enum_value(name, &names),
            ..Diagnostic::about(BoundedText::truncated(path), message)
        });
        Ok(None)
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

/// Decodes a boolean or its name.
fn boolean(value: &JsonPart) -> Option<bool> {
    match value {
        JsonPart::String(text) => text.parse().ok(),
        JsonPart::Bool(value) => Some(*value),
        _ => None,
    }
}

/// Decodes an integer: a number without a fraction, or a string, which is the JSON form of large
/// integers.
fn integer(value: &JsonPart) -> Option<i128> {
    match value {
        JsonPart::String(text) => {
            text.parse::<u64>().map(i128::from).ok().or(text.parse::<i64>().map(i128::from).ok())
        }
        JsonPart::Number(number) => whole(number),
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

/// Decodes a number, or the name of a number that has no JSON form.
fn float(value: &JsonPart) -> Option<f64> {
    match value {
        JsonPart::Number(number) => number.as_f64(),
        JsonPart::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Rounds to single precision; `None` if out of range.
#[expect(clippy::cast_possible_truncation, reason = "the value is rounded to single precision")]
fn narrow(number: f64) -> Option<f32> {
    let fits = !number.is_finite() || number.abs() <= f64::from(f32::MAX);
    fits.then_some(number as f32)
}
