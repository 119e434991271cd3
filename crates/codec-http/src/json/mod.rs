//! A JSON reader that behaves like Triton's and builds no tree.
//!
//! The reader walks the text once and returns the values that the caller
//! requests. It follows RapidJSON with Triton's options: `NaN`, `Inf` and `Infinity` are numbers, strings need not be
//! UTF-8 because tensor elements are bytes, and messages name the offset of an
//! error.

mod cursor;
mod number;
mod reader;
mod text;

pub(crate) use cursor::JsonReader;
pub(crate) use galatea_codec::json::{
    push_json_f64, push_json_i64, push_json_string, push_json_u64,
};
pub(crate) use number::Number;
pub(crate) use reader::{JsonType, depth_exceeded};
