//! The configuration as JSON, exactly as the original prints it.

mod float;

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::{MODEL_CONFIG_MESSAGE, descriptor_pool};
use prost::Message as _;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

/// 64-bit fields that are printed as strings, as protocol buffers print them:
/// the original turns every other one into a number but misses these.
const QUOTED_INTEGERS: [&str; 3] = [
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelSequenceBatching.InitialState.dims",
];

/// Prints a configuration: the names of the .proto file, every scalar and list
/// even if empty, enumerations by name, 64-bit integers as numbers, no white
/// space.
#[must_use]
pub fn to_json(config: &ModelConfig) -> String {
    let mut out = String::new();
    let descriptor = descriptor_pool().get_message_by_name(MODEL_CONFIG_MESSAGE);
    let encoded = config.encode_to_vec();
    // Both exist by construction: the message and its schema are one crate's.
    let message = descriptor.and_then(|d| DynamicMessage::decode(d, encoded.as_slice()).ok());
    if let Some(message) = message {
        write_message(&mut out, &message);
    }
    out
}

fn write_message(out: &mut String, message: &DynamicMessage) {
    out.push('{');
    let mut first = true;
    for field in declared_fields(&message.descriptor()) {
        if field.supports_presence() && !message.has_field(&field) {
            continue;
        }
        if !first {
            out.push(',');
        }
        first = false;
        write_string(out, field.name());
        out.push(':');
        write_field(out, &field, message.get_field(&field).as_ref());
    }
    out.push('}');
}

/// The fields in the order in which they are printed: that of the .proto file,
/// which reflection does not keep, but scalars of which one can be chosen come
/// last. The original's writer prepares all other fields with their defaults.
fn declared_fields(descriptor: &MessageDescriptor) -> Vec<FieldDescriptor> {
    let declared = descriptor.descriptor_proto().field.iter();
    let fields = declared.filter_map(|field| descriptor.get_field_by_name(field.name()));
    let chosen_scalar = |field: &FieldDescriptor| {
        field.containing_oneof().is_some() && !matches!(field.kind(), Kind::Message(_))
    };
    let (last, mut first): (Vec<_>, Vec<_>) = fields.partition(chosen_scalar);
    first.extend(last);
    first
}

fn write_field(out: &mut String, field: &FieldDescriptor, value: &Value) {
    match value {
        Value::List(list) => {
            out.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, field, &field.kind(), element);
            }
            out.push(']');
        }
        Value::Map(map) => {
            // The kind of a map's value is the kind of its entry's field 2.
            let Kind::Message(entry) = field.kind() else { return };
            let kind = entry.map_entry_value_field().kind();
            let mut entries: Vec<(&MapKey, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, element)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_key(out, key);
                out.push(':');
                write_value(out, field, &kind, element);
            }
            out.push('}');
        }
        single => write_value(out, field, &field.kind(), single),
    }
}

fn write_key(out: &mut String, key: &MapKey) {
    match key {
        MapKey::String(text) => write_string(out, text),
        MapKey::Bool(b) => write_string(out, &b.to_string()),
        MapKey::I32(i) => write_string(out, &i.to_string()),
        MapKey::I64(i) => write_string(out, &i.to_string()),
        MapKey::U32(u) => write_string(out, &u.to_string()),
        MapKey::U64(u) => write_string(out, &u.to_string()),
    }
}

fn write_value(out: &mut String, field: &FieldDescriptor, kind: &Kind, value: &Value) {
    match value {
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::I32(i) => out.push_str(&i.to_string()),
        Value::U32(u) => out.push_str(&u.to_string()),
        Value::I64(i) => write_integer(out, field, &i.to_string()),
        Value::U64(u) => write_integer(out, field, &u.to_string()),
        Value::F32(f) => out.push_str(&float::single(*f)),
        Value::F64(f) => out.push_str(&float::double(*f)),
        Value::String(text) => write_string(out, text),
        // No field of a configuration holds bytes.
        Value::Bytes(bytes) => write_string(out, &String::from_utf8_lossy(bytes)),
        Value::EnumNumber(number) => write_enumeration(out, kind, *number),
        Value::Message(message) => write_message(out, message),
        Value::List(_) | Value::Map(_) => {}
    }
}

fn write_integer(out: &mut String, field: &FieldDescriptor, digits: &str) {
    if QUOTED_INTEGERS.contains(&field.full_name()) {
        write_string(out, digits);
    } else {
        out.push_str(digits);
    }
}

fn write_enumeration(out: &mut String, kind: &Kind, number: i32) {
    let value = match kind {
        Kind::Enum(descriptor) => descriptor.get_value(number),
        _ => None,
    };
    match value {
        Some(value) => write_string(out, value.name()),
        None => out.push_str(&number.to_string()),
    }
}

/// Escapes as the original's writer does: quotes, backslashes and control
/// characters, these with upper-case digits where they have no short form.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control < ' ' => out.push_str(&format!("\\u{:04X}", u32::from(control))),
            plain => out.push(plain),
        }
    }
    out.push('"');
}
