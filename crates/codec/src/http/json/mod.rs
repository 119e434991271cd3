//! A JSON reader and writer that behave like Triton's and build no tree.
//!
//! The reader walks the text once and returns the values that the caller
//! requests. The writer appends to a vector of bytes. Both follow RapidJSON with
//! Triton's options: `NaN`, `Inf` and `Infinity` are numbers, strings need not be
//! UTF-8 because tensor elements are bytes, and messages name the offset of an
//! error.

mod cursor;
mod double;
mod number;
mod reader;
mod text;
mod writer;

pub(crate) use cursor::JsonReader;
pub(crate) use number::Number;
pub(crate) use reader::{JsonType, depth_exceeded};
pub(crate) use writer::{push_double, push_signed, push_string, push_unsigned};
