//! The `openvino` backend, which executes models with OpenVINO's shared library. The library is
//! opened at run time and called through its C API.
//!
//! - [`Library`] opens the library at a path that the server has found. No library is linked or
//!   shipped. Several versions can be open at the same time.
//! - [`OpenVinoBackend`] loads models, completes configurations from them, and refuses
//!   configurations that contradict their model. `backend` and `source` are the best places to
//!   start reading.
//! - `session` executes a model for an instance, with its own infer request. The crate
//!   `runtime` implements the parts that all runtimes share.
//! - `signature` compares a configuration with its model by the rules of Triton's backend;
//!   `parameters` reads that backend's parameters.
//! - `import` executes models that the backends of other frameworks hand over.
//! - `network` reads a model's file: `layouts` finds batch dimensions in it, and `predictable`
//!   decides whether the server may execute it inline.
//! - `variables_index` checks a file of a `SavedModel` that could end the process.
//!
//! # What it is not
//!
//! The backend doesn't form batches, keep a queue or start threads. The library starts threads,
//! whose number the parameters determine.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod api;
mod backend;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod import;
mod layouts;
mod network;
mod parameters;
mod predictable;
mod session;
mod signature;
mod source;
mod variables_index;

pub use api::Library;
pub use backend::{BackendOptions, OpenVinoBackend};
