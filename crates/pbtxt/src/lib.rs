//! The text format of protocol buffers, as `config.pbtxt` uses it, and the JSON form of the same
//! messages: reading, printing and changing, field by field after the schema.
//!
//! - [`parse_config`], [`to_pbtxt`]: the text format. All errors of a file are found in one run
//! - [`parse_json`], [`to_json`]: JSON, as protocol buffers define it
//! - [`ConfigText`]: changes single settings of a file and leaves its other lines as they are
//! - [`Diagnostic`]: an error with its position, a field, the expected value and a suggestion
//!
//! The crate knows the schema and the meaning of no setting: whether a model can have a
//! configuration is decided in `config`. It opens no files. Memory for a text is within a small
//! multiple of its length.
//!
//! ```
//! use galatea_pbtxt::{SourceText, parse_config, to_json, to_pbtxt};
//!
//! let source = SourceText::new("config.pbtxt", "max_batch_size: 8 backend: \"onnxruntime\"");
//! let config = parse_config(&source)?.message;
//! assert_eq!(config.max_batch_size, 8);
//! assert_eq!(parse_config(&SourceText::new("printed", &to_pbtxt(&config)))?.message, config);
//!
//! let errors = parse_config(&SourceText::new("config.pbtxt", "\nmax_batchsize: 8")).unwrap_err();
//! let shown = errors.to_string();
//! assert!(shown.starts_with("config.pbtxt:2:1: "), "{shown}");
//! assert!(shown.ends_with("(did you mean 'max_batch_size'?)"), "{shown}");
//! # let _ = to_json(&config);
//! # Ok::<(), galatea_pbtxt::ConfigErrors>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod diagnostic;
mod dynamic;
mod json;
mod json_input;
mod json_text;
mod source;
mod suggest;
mod text;

pub use diagnostic::{
    BoundedText, ConfigErrors, Diagnostic, Diagnostics, Excerpt, Position, Stage,
};
pub use json::to_json;
pub use json_input::parse_json;
pub use source::{SourceMap, SourceText, Spans};
pub use suggest::nearest;
pub use text::{CONFIG_TEXT_BYTES_MAX, ConfigText, ParsedConfig, parse_config, to_pbtxt};
