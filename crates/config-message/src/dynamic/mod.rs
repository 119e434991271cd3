//! Dynamic messages: trees of values, typed by descriptors instead of generated code, for parsing
//! and printing field by field.

mod wire;

use std::collections::BTreeMap;

use galatea_protocol::schema::{FieldCardinality, FieldDescriptor, FieldKind, MessageDescriptor};

/// The maximum number of objects in a JSON configuration, such as inputs, instance groups and
/// ensemble steps. An empty object takes three bytes of JSON and hundreds of bytes of memory.
const CONFIG_MESSAGES_MAX: usize = 1 << 16;

/// A counter that limits the number of messages in a text: an empty message takes three bytes of
/// text and hundreds of bytes of memory.
#[derive(Debug)]
pub struct MessageLimiter {
    read: usize,
    /// The limit.
    pub most: usize,
}

/// The position of a message relative to the limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MessageLimitCheck {
    /// The message is within the limit.
    Within,
    /// The message is the first beyond the limit, which must be reported.
    First,
    /// An earlier message already exceeded the limit.
    Beyond,
}

impl MessageLimiter {
    /// A lower bound for the text of a non-empty message: even `{key:"a" value:""}` is longer.
    const BYTES_MIN: usize = 16;
    /// The number of messages that any text may have, regardless of its length.
    const FREE: usize = 1 << 10;

    /// Creates a counter for this text.
    #[must_use]
    pub fn for_text(text: &str) -> Self {
        let most = Self::FREE.saturating_add(text.len() / Self::BYTES_MIN);
        Self { read: 0, most: most.min(CONFIG_MESSAGES_MAX) }
    }

    /// Counts the next message.
    pub fn add(&mut self) -> MessageLimitCheck {
        self.read = self.read.saturating_add(1);
        match self.read.saturating_sub(self.most) {
            0 => MessageLimitCheck::Within,
            1 => MessageLimitCheck::First,
            _ => MessageLimitCheck::Beyond,
        }
    }
}

/// A message and the fields that are set.
#[derive(Clone, Debug)]
pub struct DynamicMessage {
    descriptor: &'static MessageDescriptor,
    /// The values by field number.
    fields: BTreeMap<u32, DynamicValue>,
}

/// A field value. The type is small, because a list may have one value for every two bytes of a
/// configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum DynamicValue {
    /// A boolean.
    Bool(bool),
    /// A signed 32-bit number.
    I32(i32),
    /// A signed 64-bit number.
    I64(i64),
    /// An unsigned 32-bit number.
    U32(u32),
    /// An unsigned 64-bit number.
    U64(u64),
    /// A 32-bit floating-point number.
    F32(f32),
    /// A 64-bit floating-point number.
    F64(f64),
    /// A string.
    String(String),
    /// The number of an enumeration value.
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
    /// A string.
    String(String),
}

impl PartialEq for DynamicMessage {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.descriptor, other.descriptor) && self.fields == other.fields
    }
}

impl DynamicMessage {
    /// Creates an empty message.
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
    pub fn has_other_oneof_field(&self, field: &FieldDescriptor) -> bool {
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

    /// Inserts a map entry, replacing any entry with the same key.
    pub fn insert(&mut self, field: &FieldDescriptor, key: MapKey, value: DynamicValue) {
        let map =
            self.fields.entry(field.number).or_insert_with(|| DynamicValue::Map(Box::default()));
        if let DynamicValue::Map(map) = map {
            map.insert(key, value);
        }
    }

    /// Converts a map entry to its key and value.
    pub fn into_map_entry(mut self) -> Option<(MapKey, DynamicValue)> {
        let (key, value) = map_entry_fields(self.descriptor)?;
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
pub fn map_entry_fields(
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
            FieldCardinality::One => Self::default_of(field.kind),
            FieldCardinality::List => Self::List(Box::default()),
            FieldCardinality::Map => Self::Map(Box::default()),
        }
    }
}
