//! Prints a configuration in the Protocol Buffers text format, as the Protocol Buffers library
//! does: one line per set field, in field-number order.

use std::fmt::Write as _;

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::schema::{FieldDescriptor, FieldKind, model_config_descriptor};

use crate::dynamic::{DynamicMessage, DynamicValue, MapKey};

/// Prints a configuration in the text format, as Triton does.
#[must_use]
pub fn to_pbtxt(config: &ModelConfig) -> String {
    let mut printer = Printer { out: String::new(), depth: 0 };
    // This is never `None`: the message and its schema come from the same crate.
    if let Some(message) = DynamicMessage::from_message(model_config_descriptor(), config) {
        printer.message(&message);
    }
    printer.out
}

struct Printer {
    out: String,
    depth: usize,
}

impl Printer {
    fn message(&mut self, message: &DynamicMessage) {
        let mut fields: Vec<_> = message.descriptor().fields.iter().collect();
        fields.sort_by_key(|field| field.number);
        for field in fields {
            match message.get(field) {
                None => {}
                Some(DynamicValue::List(list)) => {
                    list.iter().for_each(|one| self.field(field.name(), field.kind, one));
                }
                Some(DynamicValue::Map(map)) => {
                    map.iter().for_each(|(key, value)| self.entry(field, key, value));
                }
                Some(value) => self.field(field.name(), field.kind, value),
            }
        }
    }

    fn field(&mut self, name: &str, kind: FieldKind, value: &DynamicValue) {
        if let DynamicValue::Message(message) = value {
            return self.block(name, |printer| printer.message(message));
        }
        let value = match (value, kind) {
            (DynamicValue::EnumNumber(number), FieldKind::Enum(kind)) => {
                kind.name_of(*number).map_or_else(|| number.to_string(), str::to_owned)
            }
            (DynamicValue::EnumNumber(number), _) => number.to_string(),
            (DynamicValue::Bool(value), _) => value.to_string(),
            (DynamicValue::I32(value), _) => value.to_string(),
            (DynamicValue::I64(value), _) => value.to_string(),
            (DynamicValue::U32(value), _) => value.to_string(),
            (DynamicValue::U64(value), _) => value.to_string(),
            (DynamicValue::F32(value), _) => number(f64::from(*value), value.to_string()),
            (DynamicValue::F64(value), _) => number(*value, value.to_string()),
            (DynamicValue::String(text), _) => quoted(text),
            (DynamicValue::Message(_) | DynamicValue::List(_) | DynamicValue::Map(_), _) => return,
        };
        self.line(&format!("{name}: {value}"));
    }

    fn entry(&mut self, field: &FieldDescriptor, key: &MapKey, value: &DynamicValue) {
        let FieldKind::Message(entry) = field.kind else { return };
        let Some((_, of_value)) = crate::dynamic::map_entry_fields(entry) else { return };
        self.block(field.name(), |printer| {
            let key = match key {
                MapKey::U64(number) => number.to_string(),
                MapKey::String(text) => quoted(text),
            };
            printer.line(&format!("key: {key}"));
            printer.field("value", of_value.kind, value);
        });
    }

    fn block(&mut self, name: &str, content: impl FnOnce(&mut Self)) {
        self.line(&format!("{name} {{"));
        self.depth += 1;
        content(self);
        self.depth -= 1;
        self.line("}");
    }

    fn line(&mut self, text: &str) {
        self.out.extend(std::iter::repeat_n("  ", self.depth));
        self.out.push_str(text);
        self.out.push('\n');
    }
}

fn number(value: f64, finite: String) -> String {
    match value {
        _ if value.is_nan() => String::from("nan"),
        f64::INFINITY => String::from("inf"),
        f64::NEG_INFINITY => String::from("-inf"),
        _ => finite,
    }
}

/// Quotes a string with C escapes; non-ASCII bytes are octal.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' | b'\'' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=b'~' => out.push(char::from(byte)),
            // Writing to a string can't fail.
            _ => drop(write!(out, "\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_json;

    /// Compares the result with Triton's text for the same JSON.
    #[test]
    fn a_configuration_is_printed_as_in_triton() {
        let json = include_str!("testdata/override.json");
        let config = parse_json("f", json).unwrap();
        assert_eq!(to_pbtxt(&config), include_str!("testdata/override.pbtxt"));
    }

    #[test]
    fn numbers_beyond_all_bounds_have_names() {
        let shown = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
        let shown = shown.map(|value| number(value, value.to_string()));
        assert_eq!(shown, ["nan", "inf", "-inf", "0.5"]);
    }
}
