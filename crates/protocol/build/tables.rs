//! Writes the schema of a message and its nested messages as statics with the types from
//! `src/schema.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// Messages and enumerations, by full name with a leading dot.
#[derive(Default)]
struct Declarations<'a> {
    messages: BTreeMap<String, &'a DescriptorProto>,
    enums: BTreeMap<String, &'a EnumDescriptorProto>,
}

/// Writes the tables for the message `root` and all types that it uses.
pub(crate) fn write(descriptors: &FileDescriptorSet, root: &str) -> Result<String, String> {
    let mut declarations = Declarations::default();
    for file in &descriptors.file {
        let scope = format!(".{}", file.package());
        declarations
            .enums
            .extend(file.enum_type.iter().map(|one| (format!("{scope}.{}", one.name()), one)));
        file.message_type.iter().for_each(|message| declarations.add(&scope, message));
    }
    let mut tables = Tables { declarations, messages: BTreeMap::new(), enums: BTreeMap::new() };
    tables.message(&format!(".{root}"))?;
    Ok(tables.enums.into_values().chain(tables.messages.into_values()).collect())
}

impl<'a> Declarations<'a> {
    fn add(&mut self, scope: &str, message: &'a DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        let enums = message.enum_type.iter();
        self.enums.extend(enums.map(|one| (format!("{name}.{}", one.name()), one)));
        message.nested_type.iter().for_each(|nested| self.add(&name, nested));
        self.messages.insert(name, message);
    }
}

/// The text of the tables written so far.
struct Tables<'a> {
    declarations: Declarations<'a>,
    messages: BTreeMap<String, String>,
    enums: BTreeMap<String, String>,
}

impl Tables<'_> {
    fn message(&mut self, full_name: &str) -> Result<(), String> {
        if self.messages.contains_key(full_name) {
            return Ok(());
        }
        let Some(&message) = self.declarations.messages.get(full_name) else {
            return Err(format!("there is no message {full_name}"));
        };
        // Inserted first so that a message nested in itself ends the recursion.
        self.messages.insert(full_name.to_owned(), String::new());
        let mut text = format!(
            "static {}: MessageDescriptor = MessageDescriptor {{ name: {:?}, is_map_entry: {}, \
             fields: &[\n",
            symbol(full_name),
            message.name(),
            is_map_entry(message),
        );
        for field in &message.field {
            let line = self.field(full_name, message, field)?;
            text.push_str(&line);
        }
        text.push_str("] };\n");
        self.messages.insert(full_name.to_owned(), text);
        Ok(())
    }

    fn field(
        &mut self,
        owner: &str,
        message: &DescriptorProto,
        field: &FieldDescriptorProto,
    ) -> Result<String, String> {
        let full_name = format!("{}.{}", owner.trim_start_matches('.'), field.name());
        if field.proto3_optional() || field.json_name() != lower_camel_case(field.name()) {
            return Err(format!("{full_name} is of a form that the tables don't have"));
        }
        let kind = self.kind(field).ok_or_else(|| format!("{full_name} is of no known type"))??;
        let nested = self.declarations.messages.get(field.type_name());
        let arity = match field.label() {
            Label::Repeated if nested.is_some_and(|nested| is_map_entry(nested)) => "Map",
            Label::Repeated => "List",
            Label::Optional | Label::Required => "One",
        };
        let oneof = field.oneof_index.and_then(|index| usize::try_from(index).ok());
        let oneof = oneof.and_then(|index| message.oneof_decl.get(index));
        let oneof = oneof.map(|oneof| oneof.name());
        let mut line = String::new();
        let _ = writeln!(
            line,
            "    FieldDescriptor {{ full_name: {full_name:?}, number: {}, kind: FieldKind::{kind}, \
             arity: FieldCardinality::{arity}, oneof: {oneof:?} }},",
            field.number(),
        );
        Ok(line)
    }

    /// The kind as Rust code; `None` for a kind that tables can't represent.
    fn kind(&mut self, field: &FieldDescriptorProto) -> Option<Result<String, String>> {
        let name = field.type_name();
        let plain = match field.r#type() {
            Type::Bool => "Bool",
            Type::Int32 => "Int32",
            Type::Int64 => "Int64",
            Type::Uint32 => "Uint32",
            Type::Uint64 => "Uint64",
            Type::Float => "Float",
            Type::Double => "Double",
            Type::String => "String",
            Type::Message => {
                return Some(self.message(name).map(|()| format!("Message(&{})", symbol(name))));
            }
            Type::Enum => {
                return Some(self.enumeration(name).map(|()| format!("Enum(&{})", symbol(name))));
            }
            _ => return None,
        };
        Some(Ok(plain.to_owned()))
    }

    fn enumeration(&mut self, full_name: &str) -> Result<(), String> {
        let Some(one) = self.declarations.enums.get(full_name) else {
            return Err(format!("there is no enumeration {full_name}"));
        };
        let values: String = one
            .value
            .iter()
            .map(|value| format!("({:?}, {}), ", value.name(), value.number()))
            .collect();
        let text = format!(
            "static {}: EnumDescriptor = EnumDescriptor {{ name: {:?}, values: &[{values}] }};\n",
            symbol(full_name),
            one.name(),
        );
        self.enums.insert(full_name.to_owned(), text);
        Ok(())
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|options| options.map_entry())
}

/// The name of the static for a full name such as `.inference.ModelRateLimiter.Resource`.
/// No two names differ only in case.
fn symbol(full_name: &str) -> String {
    full_name.trim_start_matches('.').replace('.', "_").to_uppercase()
}

/// A field's default JSON name.
fn lower_camel_case(name: &str) -> String {
    let mut after_underscore = false;
    let mut camel = String::new();
    for c in name.chars() {
        if c == '_' {
            after_underscore = true;
            continue;
        }
        camel.push(if after_underscore { c.to_ascii_uppercase() } else { c });
        after_underscore = false;
    }
    camel
}
