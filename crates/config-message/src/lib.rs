//! The message of a configuration by its schema, field by field: its JSON, its print in the text
//! format, and the errors in it with their places in a file.
//!
//! - [`parse_json`], [`to_json`]: JSON, as protocol buffers define it
//! - [`to_pbtxt`]: the text format, as their library prints it
//! - [`dynamic`]: messages as trees of values, which readers fill
//! - [`Diagnostic`]: an error with its position, a field, the expected value and a suggestion
//!
//! The crate knows the schema and the meaning of no setting: whether a model can have a
//! configuration is decided in `config`, and the text format is read in `pbtxt`. It opens no
//! files. Memory for a text is within a small multiple of its length.
//!
//! ```
//! use galatea_config_message::{parse_json, to_json, to_pbtxt};
//!
//! let config = parse_json("override", r#"{"maxBatchSize": 8}"#)?;
//! assert_eq!(config.max_batch_size, 8);
//! assert_eq!(to_pbtxt(&config), "max_batch_size: 8\n");
//! # let _ = to_json(&config);
//! # Ok::<(), galatea_config_message::ConfigErrors>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod diagnostic;
pub mod dynamic;
mod json;
mod json_input;
mod json_text;
mod print;
mod source;
mod suggest;

pub use diagnostic::{
    BoundedText, ConfigErrors, DIAGNOSTICS_MAX, Diagnostic, Diagnostics, Excerpt, Position, Stage,
};
pub use json::to_json;
pub use json_input::parse_json;
pub use print::to_pbtxt;
pub use source::{SourceMap, SourceText, Span, Spans};
pub use suggest::{nearest, nearest_value};
