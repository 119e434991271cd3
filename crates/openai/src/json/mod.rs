//! JSON parsed and formatted as in Python, because clients see the resulting errors and numbers.

mod parse;
mod value;
mod write;

pub(crate) use parse::{Bounds, JsonError, openers, parse, parse_first, parse_text, values_max};
pub use value::{JsonValue, Object};
pub(crate) use write::{push_compact, push_indented, push_spaced, push_string, python_float};
