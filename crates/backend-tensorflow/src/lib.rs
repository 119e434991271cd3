//! The `tensorflow` backend, which executes `SavedModels` and frozen graphs with TensorFlow's
//! shared library. The library is opened at run time and called through its C API.
//!
//! - `messages` and `saved_model` read a model's files without the library: the signatures of a
//!   `SavedModel` and the nodes of a graph. `validation` and `completion` compare and complete
//!   configurations by Triton's rules and in its words.
//!
//! # What it is not
//!
//! The backend doesn't form batches, keep a queue or start threads. The library starts threads,
//! whose number the parameters determine. It uses no GPU.

#![expect(dead_code, reason = "the sessions, which use these modules, follow")]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod accelerators;
mod completion;
mod element;
mod graph;
mod init_ops;
mod messages;
mod model_format;
mod parameters;
mod saved_model;
mod session_config;
mod validation;
