//! A JSON writer that behaves like Triton's and builds no tree.
//!
//! The writer appends to a byte vector, in the format of RapidJSON with Triton's options: `NaN` and
//! `Infinity` are numbers, and strings need not be UTF-8, because tensor elements are bytes.

mod double;
mod plain;
mod writer;

pub use plain::unescaped_prefix_length;
pub use writer::{push_json_array, push_json_f64, push_json_i64, push_json_string, push_json_u64};
