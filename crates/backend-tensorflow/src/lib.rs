//! The `tensorflow` backend, which executes `SavedModels` and frozen graphs with TensorFlow's
//! shared library. The library is opened at run time and called through its C API.
//!
//! - [`Library`] opens the library at a path that the server has found. No library is linked or
//!   shipped.
//! - [`TensorFlowBackend`] loads models, completes the configurations of `SavedModels`, and refuses
//!   configurations that contradict their model. `backend` and `source` are the best places to
//!   start reading.
//! - `messages` and `saved_model` read a model's files without the library: the signatures of a
//!   `SavedModel` and the nodes of a graph. `validation` and `completion` compare and complete
//!   configurations by Triton's rules, with Triton's error texts.
//! - `choice` chooses the runtime that executes a model: the library, or another runtime that reads
//!   graphs. `portability` finds what only the library can execute, in a configuration and in the
//!   part of a graph that `reach` finds. `predictable` decides from that part whether an I/O thread
//!   may execute the model. `imported` hands the other models over.
//! - `session` executes a model for an instance. The crate `runtime` implements the parts that all
//!   runtimes share.
//!
//! # What it is not
//!
//! The backend doesn't form batches, keep a queue or start threads. The library starts threads,
//! whose number the parameters determine. The backend uses no GPU.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod accelerators;
mod api;
mod backend;
mod choice;
mod completion;
mod element;
mod graph;
mod imported;
mod init_ops;
mod messages;
mod model_format;
mod node_devices;
mod op_libraries;
mod parameters;
mod portability;
mod predictable;
mod reach;
mod saved_model;
mod session;
mod session_config;
mod source;
mod validation;

pub use api::{LOG_LEVEL_VARIABLE, Library, choose_warnings_and_errors};
pub use backend::{BackendOptions, GraphRuntimes, LogFunction, TensorFlowBackend};
