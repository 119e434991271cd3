//! JSON as the original reads and writes it, without a tree in between.
//!
//! The reader walks the text once and hands out what the caller asks for;
//! the writer appends to a vector of bytes. Both follow RapidJSON with the
//! options that the original sets: `NaN`, `Inf` and `Infinity` are numbers,
//! strings need not be UTF-8 (tensor elements are bytes), and messages name
//! the offset of what was not understood.

mod number;
mod reader;
mod text;
mod writer;

pub(crate) use number::Number;
pub(crate) use reader::{Kind, Reader, depth_exceeded};
pub(crate) use writer::{push_double, push_signed, push_string, push_unsigned};
