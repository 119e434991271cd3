//! The `text` backend: models whose inputs are texts and whose outputs are embeddings or scores.
//!
//! Another backend, such as `onnxruntime`, loads and executes the network. This backend converts
//! texts to the network's inputs and the network's outputs to embeddings or scores. The network has
//! its own configuration, which clients don't see.
//!
//! - `backend` is the interface to the engine. It completes and loads models.
//! - `interface` defines the inputs and outputs that clients see, and compares them with the
//!   configuration.
//! - `network` derives the network's configuration, and finds out which inputs and output it has.
//! - `options` reads the parameters of a request.
//! - `instance` executes batches: it converts all texts, sorts them by length, and divides them
//!   into runs with little padding. `run` executes one run.
//!
//! The crate `text` reads the model's directory, converts texts to tokens, and pools vectors.
//!
//! # What it is not
//!
//! The backend doesn't call a library, form batches, keep a queue or start threads.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![cfg_attr(test, allow(clippy::indexing_slicing))]

mod backend;
mod files;
mod instance;
mod interface;
mod network;
mod options;
mod run;
mod served;
#[cfg(test)]
mod tests;

pub use backend::{NetworkBackend, TextBackend};
