//! The backend `pytorch`: executes models with PyTorch's shared library, which is opened at run
//! time and called through its C interface.
//!
//! - [`Library`] opens the library at a path. The server finds the path; no library is linked or
//!   shipped.
//! - [`PyTorchBackend`] loads models, and refuses configurations that contradict their model.
//!   [`WithoutNativeModels`] refuses compiled models, which are native code.
//! - `aoti` executes compiled models (`model.pt2`). `package` reads their files, `call_spec` the
//!   names of their tensors, and `isa` compares the CPU with the one that a model was compiled for.
//! - `torchscript` executes models of TorchScript (`model.pt`), through a shim in C++ that is compiled
//!   for the installed release of PyTorch.
//! - `configured` lists the tensors of a configuration, which describes them in place of the model.
//! - `parameters` are those of Triton's backend.
//!
//! # What it is not
//!
//! The backend forms no batches, holds no queue and starts no threads; the library starts threads,
//! and the parameters determine how many.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod aoti;
mod api;
mod backend;
mod call_spec;
mod configured;
mod element;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod isa;
mod native_models;
mod package;
mod parameters;
mod torchscript;

pub use api::Library;
pub use backend::{PyTorchBackend, TorchOptions};
pub use native_models::WithoutNativeModels;
