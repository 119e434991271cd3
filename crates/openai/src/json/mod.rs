//! JSON as Python reads and writes it, because clients see its errors and its numbers.

mod parse;
mod value;
mod write;

pub(crate) use parse::{Bounds, JsonError, parse, values_max};
pub use value::{JsonValue, Object};
pub(crate) use write::{push_compact, push_indented, push_spaced, push_string, python_float};
