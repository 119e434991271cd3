//! Prints the configuration as JSON, in exactly Triton's form.

mod float;

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::schema::{
    FieldDescriptor, FieldKind, MessageDescriptor, model_config_descriptor,
};

use crate::dynamic::{DynamicMessage, DynamicValue, MapKey, map_entry_fields};

/// The 64-bit fields that are printed as strings, as Protocol Buffers does. Triton converts all
/// other 64-bit fields to numbers but misses these.
const QUOTED_INTEGERS: [&str; 3] = [
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelSequenceBatching.InitialState.dims",
];

/// Prints a configuration without whitespace: with the field names of the .proto file, every scalar
/// and list even if empty, enumerations by name, and 64-bit integers as numbers.
#[must_use]
pub fn model_config_to_json(config: &ModelConfig) -> String {
    let mut out = String::new();
    // This is never `None`: the message and its schema come from the same crate.
    if let Some(message) = DynamicMessage::from_message(model_config_descriptor(), config) {
        write_message(&mut out, &message);
    }
    out
}

fn write_message(out: &mut String, message: &DynamicMessage) {
    out.push('{');
    let mut first = true;
    for field in printed_fields(message.descriptor()) {
        let value = match message.get(field) {
            Some(value) => value,
            None if field.has_presence() => continue,
            None => &DynamicValue::default_of_field(field),
        };
        if !first {
            out.push(',');
        }
        first = false;
        write_string(out, field.name());
        out.push(':');
        write_field(out, field, value);
    }
    out.push('}');
}

/// The fields in the order in which they are printed. This is their order in the .proto file,
/// except that `oneof` scalars come last, because Triton's writer first adds all other fields with
/// their defaults.
fn printed_fields(
    descriptor: &'static MessageDescriptor,
) -> impl Iterator<Item = &'static FieldDescriptor> {
    let chosen_scalar = |field: &&FieldDescriptor| {
        field.oneof.is_some() && !matches!(field.kind, FieldKind::Message(_))
    };
    let first = descriptor.fields.iter().filter(move |field| !chosen_scalar(field));
    first.chain(descriptor.fields.iter().filter(chosen_scalar))
}

fn write_field(out: &mut String, field: &FieldDescriptor, value: &DynamicValue) {
    match value {
        DynamicValue::List(list) => {
            out.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, field, field.kind, element);
            }
            out.push(']');
        }
        DynamicValue::Map(map) => {
            // A map's value kind is the kind of field 2 of its entry.
            let FieldKind::Message(entry) = field.kind else { return };
            let Some((_, of_entry)) = map_entry_fields(entry) else { return };
            out.push('{');
            for (index, (key, element)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_key(out, key);
                out.push(':');
                write_value(out, field, of_entry.kind, element);
            }
            out.push('}');
        }
        single => write_value(out, field, field.kind, single),
    }
}

fn write_key(out: &mut String, key: &MapKey) {
    match key {
        MapKey::String(text) => write_string(out, text),
        MapKey::U64(u) => write_string(out, &u.to_string()),
    }
}

fn write_value(out: &mut String, field: &FieldDescriptor, kind: FieldKind, value: &DynamicValue) {
    match value {
        DynamicValue::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        DynamicValue::I32(i) => out.push_str(&i.to_string()),
        DynamicValue::U32(u) => out.push_str(&u.to_string()),
        DynamicValue::I64(i) => write_integer(out, field, &i.to_string()),
        DynamicValue::U64(u) => write_integer(out, field, &u.to_string()),
        DynamicValue::F32(f) => out.push_str(&float::single(*f)),
        DynamicValue::F64(f) => out.push_str(&float::double(*f)),
        DynamicValue::String(text) => write_string(out, text),
        DynamicValue::EnumNumber(number) => write_enumeration(out, kind, *number),
        DynamicValue::Message(message) => write_message(out, message),
        DynamicValue::List(_) | DynamicValue::Map(_) => {}
    }
}

fn write_integer(out: &mut String, field: &FieldDescriptor, digits: &str) {
    if QUOTED_INTEGERS.contains(&field.full_name) {
        write_string(out, digits);
    } else {
        out.push_str(digits);
    }
}

fn write_enumeration(out: &mut String, kind: FieldKind, number: i32) {
    let value = match kind {
        FieldKind::Enum(descriptor) => descriptor.name_of(number),
        _ => None,
    };
    match value {
        Some(name) => write_string(out, name),
        None => out.push_str(&number.to_string()),
    }
}

/// Escapes quotes, backslashes and control characters, as Triton's writer does. Control characters
/// without a short form use upper-case digits.
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
