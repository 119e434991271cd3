//! Parsed values.

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonValue {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A 64-bit integer.
    Int(i64),
    /// Any other integer, as digits.
    BigInt(Box<str>),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A string.
    Text(Box<str>),
    /// An array.
    List(Vec<JsonValue>),
    /// An object.
    Object(Object),
}

/// The members of an object, in the order in which their names first appeared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    members: Vec<(Box<str>, JsonValue)>,
}

impl Object {
    /// Creates an object from members with distinct names.
    pub(crate) const fn from_members(members: Vec<(Box<str>, JsonValue)>) -> Self {
        Self { members }
    }

    /// Appends a member with a new name.
    pub(crate) fn push(&mut self, name: &str, value: JsonValue) {
        self.members.push((name.into(), value));
    }

    /// Appends an element to the member with this name, which is a list, or is created as one.
    pub(crate) fn push_to_list(&mut self, name: &str, element: JsonValue) {
        match self.members.iter_mut().find(|(given, _)| &**given == name) {
            Some((_, JsonValue::List(elements))) => elements.push(element),
            Some((_, other)) => *other = JsonValue::List(vec![element]),
            None => self.push(name, JsonValue::List(vec![element])),
        }
    }

    /// Returns the value of the member with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&JsonValue> {
        self.members.iter().find(|(given, _)| &**given == name).map(|(_, value)| value)
    }

    /// The members, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &JsonValue)> {
        self.members.iter().map(|(name, value)| (&**name, value))
    }
}

impl JsonValue {
    /// Creates a string.
    pub(crate) fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// Returns the contents of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the integer, if it fits into 64 bits.
    #[must_use]
    pub const fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the boolean.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the elements of an array.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns the members of an object.
    #[must_use]
    pub const fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Returns true for `null`.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}
