//! Messages as trees of values, whose type is a table and not code: what reading and
//! printing field by field needs.

mod wire;

use std::collections::BTreeMap;

use galatea_protocol::schema::{Arity, FieldDescriptor, Kind, MessageDescriptor};

/// A message: what was set in it.
#[derive(Clone, Debug)]
pub(crate) struct DynamicMessage {
    descriptor: &'static MessageDescriptor,
    /// By the fields' numbers.
    fields: BTreeMap<u32, DynamicValue>,
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DynamicValue {
    Bool(bool),
    I32(i32),
    I64(i64),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
    String(String),
    EnumNumber(i32),
    Message(DynamicMessage),
    List(Vec<Self>),
    Map(BTreeMap<MapKey, Self>),
}

/// What an entry of a map is found by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MapKey {
    U64(u64),
    String(String),
}

impl PartialEq for DynamicMessage {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.descriptor, other.descriptor) && self.fields == other.fields
    }
}

impl DynamicMessage {
    /// An empty message.
    pub(crate) const fn new(descriptor: &'static MessageDescriptor) -> Self {
        Self { descriptor, fields: BTreeMap::new() }
    }

    pub(crate) const fn descriptor(&self) -> &'static MessageDescriptor {
        self.descriptor
    }

    /// What was set.
    pub(crate) fn get(&self, field: &FieldDescriptor) -> Option<&DynamicValue> {
        self.fields.get(&field.number)
    }

    /// Sets the value of a field that has one, or all those of another.
    pub(crate) fn set(&mut self, field: &FieldDescriptor, value: DynamicValue) {
        self.fields.insert(field.number, value);
    }

    /// Whether a field of this choice is set.
    pub(crate) fn has_choice(&self, choice: &str) -> bool {
        let mut fields = self.descriptor.fields.iter();
        fields.any(|field| field.choice == Some(choice) && self.get(field).is_some())
    }

    /// How many elements or entries a list or map has.
    pub(crate) fn len(&self, field: &FieldDescriptor) -> usize {
        match self.get(field) {
            Some(DynamicValue::List(list)) => list.len(),
            Some(DynamicValue::Map(map)) => map.len(),
            _ => 0,
        }
    }

    /// Appends to a list.
    pub(crate) fn push(&mut self, field: &FieldDescriptor, value: DynamicValue) {
        let list =
            self.fields.entry(field.number).or_insert_with(|| DynamicValue::List(Vec::new()));
        if let DynamicValue::List(list) = list {
            list.push(value);
        }
    }

    /// Puts an entry into a map; the last one with a key counts.
    pub(crate) fn insert(&mut self, field: &FieldDescriptor, key: MapKey, value: DynamicValue) {
        let map =
            self.fields.entry(field.number).or_insert_with(|| DynamicValue::Map(BTreeMap::new()));
        if let DynamicValue::Map(map) = map {
            map.insert(key, value);
        }
    }

    /// The key and the value of an entry of a map.
    pub(crate) fn into_entry(mut self) -> Option<(MapKey, DynamicValue)> {
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

/// The fields of an entry of a map: the key and the value.
pub(crate) fn entry_fields(
    entry: &'static MessageDescriptor,
) -> Option<(&'static FieldDescriptor, &'static FieldDescriptor)> {
    Some((entry.field_by_number(1)?, entry.field_by_number(2)?))
}

impl DynamicValue {
    /// The value that one of this kind has if nothing else is said.
    pub(crate) const fn default_of(kind: Kind) -> Self {
        match kind {
            Kind::Bool => Self::Bool(false),
            Kind::Int32 => Self::I32(0),
            Kind::Int64 => Self::I64(0),
            Kind::Uint32 => Self::U32(0),
            Kind::Uint64 => Self::U64(0),
            Kind::Float => Self::F32(0.0),
            Kind::Double => Self::F64(0.0),
            Kind::String => Self::String(String::new()),
            Kind::Enum(_) => Self::EnumNumber(0),
            Kind::Message(descriptor) => Self::Message(DynamicMessage::new(descriptor)),
        }
    }

    /// What a field holds that was not set.
    pub(crate) const fn default_of_field(field: &FieldDescriptor) -> Self {
        match field.arity {
            Arity::One => Self::default_of(field.kind),
            Arity::List => Self::List(Vec::new()),
            Arity::Map => Self::Map(BTreeMap::new()),
        }
    }
}
