//! Dynamic messages: trees of values that are typed by descriptors instead of generated
//! code, for reading and printing field by field.

mod wire;

use std::collections::BTreeMap;

use galatea_protocol::schema::{Arity, FieldDescriptor, FieldKind, MessageDescriptor};

/// The maximum number of objects in a configuration in JSON: inputs, instance groups,
/// steps of an ensemble. An empty one takes three bytes of JSON and hundreds in memory.
const CONFIG_MESSAGES_MAX: usize = 1 << 16;

/// Counts the messages of a text and bounds their number: an empty one takes three bytes of
/// text and hundreds of memory.
#[derive(Debug)]
pub struct MessageCount {
    read: usize,
    /// The bound.
    pub most: usize,
}

/// The place of a message beside the bound of their number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CountedMessage {
    /// It is one of those that may be there.
    Within,
    /// The first one too many, which is to be reported.
    First,
    /// There were too many before it.
    Beyond,
}

impl MessageCount {
    /// The shortest message with something in it, such as `{key:"a" value:""}`, is longer.
    const BYTES_MIN: usize = 16;
    /// The number of messages that a text of any length may have.
    const FREE: usize = 1 << 10;

    /// Counts the messages of this text.
    #[must_use]
    pub fn for_text(text: &str) -> Self {
        let most = Self::FREE.saturating_add(text.len() / Self::BYTES_MIN);
        Self { read: 0, most: most.min(CONFIG_MESSAGES_MAX) }
    }

    /// Counts the next message.
    pub fn add(&mut self) -> CountedMessage {
        self.read = self.read.saturating_add(1);
        match self.read.saturating_sub(self.most) {
            0 => CountedMessage::Within,
            1 => CountedMessage::First,
            _ => CountedMessage::Beyond,
        }
    }
}

/// A message with the fields that are set.
#[derive(Clone, Debug)]
pub struct DynamicMessage {
    descriptor: &'static MessageDescriptor,
    /// The values by field number.
    fields: BTreeMap<u32, DynamicValue>,
}

/// The value of a field. It is small, because a list may have one for every two bytes of a
/// configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum DynamicValue {
    /// True or false.
    Bool(bool),
    /// A number of 32 bits with a sign.
    I32(i32),
    /// A number of 64 bits with a sign.
    I64(i64),
    /// A number of 32 bits without a sign.
    U32(u32),
    /// A number of 64 bits without a sign.
    U64(u64),
    /// A number with a fraction, of 32 bits.
    F32(f32),
    /// A number with a fraction, of 64 bits.
    F64(f64),
    /// A text.
    String(String),
    /// The number of a value of an enumeration.
    EnumNumber(i32),
    /// A message.
    Message(Box<DynamicMessage>),
    /// The values of a repeated field.
    List(Box<Vec<Self>>),
    /// The entries of a map.
    Map(Box<BTreeMap<MapKey, Self>>),
}

/// The key of a map entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapKey {
    /// A number.
    U64(u64),
    /// A text.
    String(String),
}

impl PartialEq for DynamicMessage {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.descriptor, other.descriptor) && self.fields == other.fields
    }
}

impl DynamicMessage {
    /// Makes an empty message.
    pub const fn new(descriptor: &'static MessageDescriptor) -> Self {
        Self { descriptor, fields: BTreeMap::new() }
    }

    /// The schema of the message.
    #[must_use]
    pub const fn descriptor(&self) -> &'static MessageDescriptor {
        self.descriptor
    }

    /// The value of a field, if it is set.
    pub fn get(&self, field: &FieldDescriptor) -> Option<&DynamicValue> {
        self.fields.get(&field.number)
    }

    /// Sets the value of a field, or all values of a list or map.
    pub fn set(&mut self, field: &FieldDescriptor, value: DynamicValue) {
        self.fields.insert(field.number, value);
    }

    /// Returns true if another field of the same `oneof` is set.
    pub fn has_other_choice(&self, field: &FieldDescriptor) -> bool {
        let is_other = |other: &FieldDescriptor| {
            other.oneof == field.oneof && other.number != field.number && self.get(other).is_some()
        };
        field.oneof.is_some() && self.descriptor.fields.iter().any(is_other)
    }

    /// The number of elements of a list or map.
    pub fn len(&self, field: &FieldDescriptor) -> usize {
        match self.get(field) {
            Some(DynamicValue::List(list)) => list.len(),
            Some(DynamicValue::Map(map)) => map.len(),
            _ => 0,
        }
    }

    /// Appends to a list.
    pub fn push(&mut self, field: &FieldDescriptor, value: DynamicValue) {
        let list =
            self.fields.entry(field.number).or_insert_with(|| DynamicValue::List(Box::default()));
        if let DynamicValue::List(list) = list {
            list.push(value);
        }
    }

    /// Inserts an entry into a map; replaces an entry with the same key.
    pub fn insert(&mut self, field: &FieldDescriptor, key: MapKey, value: DynamicValue) {
        let map =
            self.fields.entry(field.number).or_insert_with(|| DynamicValue::Map(Box::default()));
        if let DynamicValue::Map(map) = map {
            map.insert(key, value);
        }
    }

    /// Converts an entry of a map to its key and value.
    pub fn into_entry(mut self) -> Option<(MapKey, DynamicValue)> {
        let (key, value) = entry_fields(self.descriptor)?;
        let mut take = |field: &FieldDescriptor| {
            self.fields
                .remove(&field.number)
                .unwrap_or_else(|| DynamicValue::default_of(field.kind))
        };
        let key = match take(key) {
            DynamicValue::U64(number) => MapKey::U64(number),
            DynamicValue::String(text) => MapKey::String(text),
            _ => return None,
        };
        Some((key, take(value)))
    }
}

/// The key field and the value field of a map entry.
pub fn entry_fields(
    entry: &'static MessageDescriptor,
) -> Option<(&'static FieldDescriptor, &'static FieldDescriptor)> {
    Some((entry.field_by_number(1)?, entry.field_by_number(2)?))
}

impl DynamicValue {
    /// The default value of a kind.
    pub fn default_of(kind: FieldKind) -> Self {
        match kind {
            FieldKind::Bool => Self::Bool(false),
            FieldKind::Int32 => Self::I32(0),
            FieldKind::Int64 => Self::I64(0),
            FieldKind::Uint32 => Self::U32(0),
            FieldKind::Uint64 => Self::U64(0),
            FieldKind::Float => Self::F32(0.0),
            FieldKind::Double => Self::F64(0.0),
            FieldKind::String => Self::String(String::new()),
            FieldKind::Enum(_) => Self::EnumNumber(0),
            FieldKind::Message(descriptor) => {
                Self::Message(Box::new(DynamicMessage::new(descriptor)))
            }
        }
    }

    /// The default value of a field.
    pub fn default_of_field(field: &FieldDescriptor) -> Self {
        match field.arity {
            Arity::One => Self::default_of(field.kind),
            Arity::List => Self::List(Box::default()),
            Arity::Map => Self::Map(Box::default()),
        }
    }
}
