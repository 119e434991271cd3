//! The Protocol Buffers text format, as used by `config.pbtxt`: reads a configuration and changes
//! individual settings in a file.
//!
//! - [`parse_config_draft`]: reads a configuration draft. One run finds all errors in a file
//! - [`PbtxtEditor`]: changes individual settings in a file and preserves its other lines
//!
//! The crate knows the schema but not the meaning of any setting: `config` decides whether a
//! configuration is valid for a model. It opens no files. The memory for a text is limited to a
//! small multiple of its length. Only code that reads configuration files depends on this crate, so
//! changing an error message recompiles little else.
//!
//! ```
//! use galatea_pbtxt::parse_config_draft;
//!
//! let config = parse_config_draft("config.pbtxt", "max_batch_size: 8 backend: \"onnxruntime\"")?;
//! assert_eq!(config.max_batch_size(), 8);
//! assert_eq!(parse_config_draft("printed", &config.to_pbtxt())?.message(), config.message());
//!
//! let errors = parse_config_draft("config.pbtxt", "\nmax_batchsize: 8").unwrap_err();
//! let shown = errors.to_string();
//! assert!(shown.starts_with("config.pbtxt:2:1: "), "{shown}");
//! assert!(shown.ends_with("(did you mean 'max_batch_size'?)"), "{shown}");
//! # Ok::<(), galatea_config::ConfigErrors>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod edit;
mod lexer;
mod literal;
mod parser;
mod read;
mod scalar;

pub use edit::PbtxtEditor;
pub use read::{CONFIG_TEXT_BYTES_MAX, ParsedConfig, parse_config, parse_config_draft};

#[cfg(test)]
mod tests;
