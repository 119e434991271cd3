//! The backend `openvino`: executes models with OpenVINO's shared library, which is opened at run
//! time and called through its C API.
//!
//! - [`Library`] opens the library at a path. The server finds the path; no library is linked or
//!   shipped. Several versions can be open at the same time.
//! - [`OpenVinoBackend`] loads models, completes configurations from them, and refuses
//!   configurations that contradict their model. Start reading in `backend` and `source`.
//! - `session` executes a model for one instance, with an infer request of its own. What every
//!   runtime does with a session is in the crate `runtime`.
//! - `signature` compares a configuration with its model by the rules of Triton's backend;
//!   `parameters` are those of that backend.
//! - `network` reads a model's file: `layouts` finds batch dimensions in it, and `predictable`
//!   decides if the server may execute it inline.
//!
//! # What it is not
//!
//! The backend forms no batches, holds no queue and starts no threads; the library starts threads,
//! and the parameters determine how many.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod api;
mod backend;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod layouts;
mod network;
mod parameters;
mod predictable;
mod session;
mod signature;
mod source;

pub use api::Library;
pub use backend::{BackendOptions, OpenVinoBackend};
