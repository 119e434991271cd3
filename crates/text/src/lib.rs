//! Text models: reads the directory of a sentence-transformers model, a cross-encoder or a
//! classifier, converts texts to tokens, and converts a network's outputs to embeddings or scores.
//!
//! - [`TextDescription`] contains what the directory and the settings say about a model: its
//!   [`TextTask`] and its [`Prompts`]. `model` is the best place to start reading.
//! - [`TextModel`] adds the tokenizer, and converts a text, or a pair of texts, to a [`TokenRow`].
//! - [`TextSettings`] are the parameters of a configuration whose names start with `text_`.
//! - [`plan_runs`] divides rows of different lengths into runs with little padding.
//! - [`PoolingSettings`], dense layers and [`Activation`] convert the rows of an output.
//!
//! # What it is not
//!
//! The crate opens no file: [`TextModelFiles`] reads the directory. It executes no network, and
//! knows no server. Files may be hostile: reading one produces an error or a model. The library
//! that interprets `tokenizer.json` can panic; `encoder` converts a panic to an error.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod activation;
mod dense;
mod directory;
mod encoder;
mod error;
mod floats;
mod json_object;
mod model;
#[cfg(test)]
mod model_tests;
mod modules;
mod pooling;
mod prompts;
mod runs;
mod safetensors;
mod settings;

pub use activation::Activation;
pub use dense::DenseSettings;
pub use directory::TextModelFiles;
pub use encoder::{Overflow, TokenRow};
pub use error::TextModelError;
pub use floats::widen_half;
pub use model::{EmbeddingTask, TextDescription, TextModel, TextTask, check_size};
pub use pooling::{PoolingMode, PoolingSettings, keep_dimensions, normalize};
pub use prompts::{Prompts, UnknownPrompt};
pub use runs::{RunLimits, plan_runs};
pub use settings::{TaskKind, TextSettings};
