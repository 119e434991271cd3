//! The `pytorch` backend, which executes models with PyTorch's shared library. The library is
//! opened at run time and called through its C interface.
//!
//! - [`Library`] opens the library at a path that the server has found. No library is linked or
//!   shipped.
//! - [`PyTorchBackend`] loads models, and refuses configurations that contradict their model.
//!   [`WithoutNativeModels`] refuses compiled models, which are native code.
//! - `aoti` executes compiled models (`model.pt2`). `package` reads their files, `call_spec` reads
//!   the names of their tensors, and `isa` compares the CPU with the one that a model was compiled
//!   for.
//! - `torchscript` executes TorchScript models (`model.pt`), through a C++ shim that is compiled
//!   for the installed release of PyTorch.
//! - [`TorchWorkers`] loads models that only a program in Python can execute; `worker` describes
//!   them to it.
//! - `configured` lists the tensors in a configuration, which has to describe them because the
//!   model doesn't.
//! - `parameters` reads the same parameters as Triton's backend.
//! - [`describe`] writes a configuration for a file that has none.
//!
//! # What it is not
//!
//! The backend doesn't form batches, keep a queue or start threads. The library starts threads,
//! whose number the parameters determine.
//!
//! All `unsafe` code is in the module `api`.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod aoti;
mod api;
mod backend;
mod call_spec;
mod describe;
mod element;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod isa;
mod native_models;
mod package;
mod parameters;
mod torchscript;
mod worker;

pub use api::Library;
pub use backend::{PyTorchBackend, TorchOptions};
pub use describe::{FileDescription, describe};
pub use native_models::{NativeModelRefusal, WithoutNativeModels};
pub use worker::TorchWorkers;
