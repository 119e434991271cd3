//! The model configuration schema, for code that reads and prints configurations field by field.
//!
//! The build script writes the tables as statics, which take no time at startup and no heap memory.

include!(concat!(env!("OUT_DIR"), "/schema.rs"));

/// The descriptor of `inference.ModelConfig`, the message of a `config.pbtxt`.
#[must_use]
pub const fn model_config_descriptor() -> &'static MessageDescriptor {
    &INFERENCE_MODELCONFIG
}

/// A message type.
#[derive(Debug)]
pub struct MessageDescriptor {
    /// The message's name without its package and enclosing messages.
    pub name: &'static str,
    /// True if the message is a map entry, which consists of a key and a value.
    pub is_map_entry: bool,
    /// The message's fields, in the order of the .proto file.
    pub fields: &'static [FieldDescriptor],
}

/// A message field.
#[derive(Debug)]
pub struct FieldDescriptor {
    /// The field's name with its package and enclosing messages.
    pub full_name: &'static str,
    /// The field's number on the wire.
    pub number: u32,
    /// The type of the field's values, or of its entries if it is a map.
    pub kind: FieldKind,
    /// The number of values that the field may have.
    pub arity: FieldCardinality,
    /// The name of the field's `oneof`, if any.
    pub oneof: Option<&'static str>,
}

/// The number of values that a field may have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FieldCardinality {
    /// At most one value.
    One,
    /// Any number of values.
    List,
    /// Any number of entries with distinct keys.
    Map,
}

/// The type of a field's values. Other types don't occur in the configuration.
#[derive(Copy, Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the .proto language")]
pub enum FieldKind {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Float,
    Double,
    String,
    Enum(&'static EnumDescriptor),
    Message(&'static MessageDescriptor),
}

/// An enumeration type.
#[derive(Debug)]
pub struct EnumDescriptor {
    /// The enumeration's name without its package and enclosing messages.
    pub name: &'static str,
    /// The enumeration's values with their numbers.
    pub values: &'static [(&'static str, i32)],
}

impl MessageDescriptor {
    /// The field with this name.
    #[must_use]
    pub fn field(&'static self, name: &str) -> Option<&'static FieldDescriptor> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// The field with this name in JSON.
    #[must_use]
    pub fn field_by_json_name(&'static self, name: &str) -> Option<&'static FieldDescriptor> {
        self.fields.iter().find(|field| is_json_name(name, field.name()))
    }

    /// The field with this number.
    #[must_use]
    pub fn field_by_number(&'static self, number: u32) -> Option<&'static FieldDescriptor> {
        self.fields.iter().find(|field| field.number == number)
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(FieldDescriptor::name)
    }
}

impl FieldDescriptor {
    /// The field's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.full_name.rsplit_once('.').map_or(self.full_name, |(_, name)| name)
    }

    /// Returns true if an unset field differs from a field with the default value.
    #[must_use]
    pub fn has_presence(&self) -> bool {
        let is_message = matches!(self.kind, FieldKind::Message(_));
        self.oneof.is_some() || (self.arity == FieldCardinality::One && is_message)
    }
}

impl EnumDescriptor {
    /// The number of the value with this name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i32> {
        self.values.iter().find(|value| value.0 == name).map(|value| value.1)
    }

    /// The name of the value with this number.
    #[must_use]
    pub fn name_of(&self, number: i32) -> Option<&'static str> {
        self.values.iter().find(|value| value.1 == number).map(|value| value.0)
    }

    /// The names of all values.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.iter().map(|value| value.0)
    }
}

/// Returns true if `json` is `name` in camel case.
fn is_json_name(json: &str, name: &str) -> bool {
    let mut letters = json.chars();
    let mut after_underscore = false;
    for c in name.chars() {
        if c == '_' {
            after_underscore = true;
            continue;
        }
        let expected = if after_underscore { c.to_ascii_uppercase() } else { c };
        if letters.next() != Some(expected) {
            return false;
        }
        after_underscore = false;
    }
    letters.next().is_none()
}

#[cfg(test)]
mod tests {
    use prost_reflect::{DescriptorPool, FieldDescriptor as Reflected, Kind as ReflectedKind};

    use super::*;

    /// Compares the tables for a message and its nested messages with reflection.
    fn check(table: &'static MessageDescriptor, message: &prost_reflect::MessageDescriptor) {
        assert_eq!(table.name, message.name());
        assert_eq!(table.is_map_entry, message.is_map_entry());
        let declared: Vec<&str> =
            message.descriptor_proto().field.iter().map(|field| field.name()).collect();
        assert_eq!(table.names().collect::<Vec<_>>(), declared, "{}", message.full_name());
        for field in table.fields {
            check_field(table, field, &message.get_field_by_name(field.name()).unwrap());
        }
    }

    fn check_field(table: &'static MessageDescriptor, field: &FieldDescriptor, other: &Reflected) {
        let name = field.full_name;
        assert_eq!(name, other.full_name());
        assert_eq!(field.number, other.number(), "{name}");
        assert_eq!(field.has_presence(), other.supports_presence(), "{name}");
        assert_eq!(field.arity == FieldCardinality::List, other.is_list(), "{name}");
        assert_eq!(field.arity == FieldCardinality::Map, other.is_map(), "{name}");
        let oneof = other.containing_oneof();
        assert_eq!(field.oneof, oneof.as_ref().map(|oneof| oneof.name()), "{name}");
        let by_json_name = table.field_by_json_name(other.json_name()).unwrap();
        assert_eq!(by_json_name.full_name, name);
        assert_eq!(table.field_by_number(field.number).unwrap().full_name, name);
        match (field.kind, other.kind()) {
            (FieldKind::Message(inner), ReflectedKind::Message(other)) => check(inner, &other),
            (FieldKind::Enum(inner), ReflectedKind::Enum(other)) => {
                assert_eq!(inner.name, other.name());
                let values: Vec<_> = other.values().collect();
                let values: Vec<_> = values.iter().map(|one| (one.name(), one.number())).collect();
                assert_eq!(inner.values, values);
            }
            (kind, other) => {
                assert_eq!(format!("{kind:?}").to_lowercase(), format!("{other:?}"), "{name}");
            }
        }
    }

    #[test]
    fn the_tables_equal_reflection() {
        let pool = DescriptorPool::decode(crate::DESCRIPTOR_SET).unwrap();
        let message = pool.get_message_by_name("inference.ModelConfig").unwrap();
        check(model_config_descriptor(), &message);
    }

    #[test]
    fn json_names_are_in_camel_case() {
        assert!(is_json_name("fp32FalseTrue", "fp32_false_true"));
        assert!(is_json_name("name", "name"));
        for wrong in ["fp32falseTrue", "fp32FalseTru", "fp32FalseTrues", "fp32_false_true", ""] {
            assert!(!is_json_name(wrong, "fp32_false_true"), "{wrong}");
        }
    }

    #[test]
    fn enumerations_have_names_and_numbers() {
        let FieldKind::Message(input) = model_config_descriptor().field("input").unwrap().kind
        else {
            panic!()
        };
        let FieldKind::Enum(types) = input.field("data_type").unwrap().kind else { panic!() };
        assert_eq!((types.number("TYPE_BOOL"), types.number("TYPE_NONE")), (Some(1), None));
        assert_eq!((types.name_of(14), types.name_of(99)), (Some("TYPE_BF16"), None));
    }
}
