//! Schema-driven access to configuration messages, field by field: JSON, printing in the text
//! format, and errors with their positions in a file.
//!
//! - [`parse_json`], [`to_json`]: JSON, as defined by Protocol Buffers
//! - [`to_pbtxt`]: the text format, as printed by the Protocol Buffers library
//! - [`dynamic`]: messages as trees of values, which parsers fill in
//! - [`Diagnostic`]: an error with its position, a field, the expected value and a suggestion
//!
//! The crate knows the schema but not the meaning of any setting: `config` decides whether a
//! configuration is valid for a model, and `pbtxt` parses the text format. It opens no files. The
//! memory for a text is limited to a small multiple of its length.
//!
//! ```
//! use galatea_config_message::{parse_json, model_config_to_json, to_pbtxt};
//!
//! let config = parse_json("override", r#"{"maxBatchSize": 8}"#)?;
//! assert_eq!(config.max_batch_size, 8);
//! assert_eq!(to_pbtxt(&config), "max_batch_size: 8\n");
//! # let _ = model_config_to_json(&config);
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
    BoundedText, ConfigErrors, DIAGNOSTICS_MAX, Diagnostic, Diagnostics, Excerpt, Position,
    TritonDetectionStage,
};
pub use json::model_config_to_json;
pub use json_input::parse_json;
pub use print::to_pbtxt;
pub use source::{FieldSpans, SourceMap, SourceText, Span};
pub use suggest::{nearest_enum_value, nearest_name};
