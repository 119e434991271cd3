//! The schemas of requests, as tables, and the validation with the errors that Triton's frontend
//! sends.
//!
//! That frontend describes its requests to pydantic, so the rules and texts are pydantic's: for
//! example, a number may be sent as a string, and a union tries each member and reports the errors
//! of all of them.

mod check;
mod coerce;
mod errors;

pub(crate) use check::check;
pub use errors::ErrorList;
pub(crate) use errors::{Issue, Problem, Step};

use crate::json::JsonValue;

/// The schema of a value.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Schema {
    Text,
    Int {
        min: Option<i64>,
        max: Option<i64>,
    },
    Float {
        min: Option<f64>,
        max: Option<f64>,
    },
    Bool,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// One of these strings, which pydantic calls a literal.
    Literal(&'static [&'static str]),
    /// A URL.
    Url,
    Any,
    List {
        element: &'static Schema,
        min: Option<usize>,
        max: Option<usize>,
    },
    /// An object whose members all have this schema.
    Map(&'static Schema),
    ObjectForm(&'static ObjectForm),
    /// `null`, or a value with this schema.
    Nullable(&'static Schema),
    /// The first member that matches; errors name the members.
    Union(&'static [(&'static str, Schema)]),
    /// A value with the first schema, or the second. Triton's frontend knows only the second, and
    /// errors are those of the second.
    Beyond(&'static Self, &'static Self),
    /// A value, such as a list or text, with at least one item.
    NotEmpty(&'static Schema),
}

/// An object with fields.
#[derive(Debug)]
pub(crate) struct ObjectForm {
    pub(crate) fields: &'static [Field],
    pub(crate) extra: Extra,
}

/// The treatment of members that aren't fields.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    Ignored,
    Forbidden,
    Kept,
}

/// A field of an object.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) schema: Schema,
    pub(crate) default: Default,
}

/// The value of a field that the client omits. As with pydantic, it is not validated.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Default {
    Required,
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'static str),
}

impl Default {
    fn value(self) -> Option<JsonValue> {
        Some(match self {
            Self::Required => return None,
            Self::Null => JsonValue::Null,
            Self::Bool(value) => JsonValue::Bool(value),
            Self::Int(value) => JsonValue::Int(value),
            Self::Float(value) => JsonValue::Float(value),
            Self::Text(value) => JsonValue::text(value),
        })
    }
}

impl Field {
    /// A required field.
    pub(crate) const fn required(name: &'static str, schema: Schema) -> Self {
        Self { name, schema, default: Default::Required }
    }

    /// An optional field.
    pub(crate) const fn optional(name: &'static str, schema: Schema, default: Default) -> Self {
        Self { name, schema, default }
    }
}
