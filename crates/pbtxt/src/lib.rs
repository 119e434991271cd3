//! The text format of protocol buffers, as `config.pbtxt` uses it: reading a configuration, and
//! changing single settings of a file.
//!
//! - [`read_config`]: a draft of a configuration. All errors of a file are found in one run
//! - [`ConfigText`]: changes single settings of a file and leaves its other lines as they are
//!
//! The crate knows the schema and the meaning of no setting: whether a model can have a
//! configuration is decided in `config`. It opens no files. Memory for a text is within a small
//! multiple of its length. Only what reads files of configurations uses it, so that a change of
//! an error's text compiles little else.
//!
//! ```
//! use galatea_pbtxt::read_config;
//!
//! let config = read_config("config.pbtxt", "max_batch_size: 8 backend: \"onnxruntime\"")?;
//! assert_eq!(config.max_batch_size(), 8);
//! assert_eq!(read_config("printed", &config.to_pbtxt())?.message(), config.message());
//!
//! let errors = read_config("config.pbtxt", "\nmax_batchsize: 8").unwrap_err();
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

pub use edit::ConfigText;
pub use read::{CONFIG_TEXT_BYTES_MAX, ParsedConfig, parse_config, read_config};

#[cfg(test)]
mod tests;
