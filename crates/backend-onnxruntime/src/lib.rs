//! The `onnxruntime` backend, which executes ONNX models with ONNX Runtime's shared library. The
//! library is opened at run time and called through its C API.
//!
//! - [`OrtLibrary`] opens the library at a path that the server has found. No library is linked or
//!   shipped.
//! - [`OnnxRuntimeBackend`] loads models, completes configurations from them, and refuses
//!   configurations that contradict their model. `backend` and `source` are the best places to
//!   start reading.
//! - `source` opens a model's sessions, and `session` executes one for an instance. The crate
//!   `runtime` implements the parts that all runtimes share: joining requests, sequence states,
//!   ragged inputs and splitting outputs.
//! - Operator libraries (`op_libraries`) are registered with each session of the models that
//!   specify them. They are never closed.
//! - `graph` decides whether a model may execute inline.
//!
//! # What it is not
//!
//! The backend doesn't form batches, keep a queue or start threads. The library starts threads,
//! whose number the settings determine.
//!
//! # GPUs
//!
//! As in Triton, each GPU instance has its own session and stream (`api::device`). This crate also
//! contains the execution providers and their options (`accelerators`), the library's descriptions
//! of GPU memory (`api::memory`) and bindings to it (`api::binding`). `failure` recognizes the
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

pub use api::{LogFunction, OrtLibrary};
pub use backend::{BackendOptions, OnnxRuntimeBackend};
