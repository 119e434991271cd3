//! The backend `onnxruntime`: executes ONNX models with ONNX Runtime's shared library, which
//! is opened at run time and called through its C API.
//!
//! - [`Library`] opens the library at a path. The server finds the path; no library is linked
//!   or shipped.
//! - [`OnnxRuntimeBackend`] loads models, completes configurations from them, and refuses
//!   configurations that contradict their model. Start reading in `backend` and `source`.
//! - `source` opens the sessions of a model, and `session` executes one for an instance. What
//!   every runtime does with them is in the crate `runtime`: joining requests, states of sequences,
//!   ragged inputs, splitting outputs.
//! - Libraries with operators (`op_libraries`) are registered with each session of the models that
//!   name them. They are never closed.
//! - `graph` decides whether a model may execute inline.
//!
//! # What it is not
//!
//! The backend forms no batches, holds no queue and starts no threads; the library starts threads,
//! and the settings determine how many.
//!
//! # GPUs
//!
//! An instance on a GPU has a session and a stream of its own, as in Triton (`api::device`). The
//! execution providers and their options (`accelerators`), the library's descriptions of a GPU's
//! memory (`api::memory`) and bindings to it (`api::binding`) are here. `failure` recognizes the
//! errors after which a GPU is lost.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod accelerators;
mod api;
mod backend;
mod failure;
mod graph;
mod op_libraries;
mod session;
mod settings;
mod source;

pub use api::{Library, LogFunction};
pub use backend::{BackendOptions, OnnxRuntimeBackend};
