//! The backend `onnxruntime`: executes ONNX models with ONNX Runtime's shared
//! library, which is opened at run time and called through its C API.
//!
//! - [`Library`] opens the library that it is given a path of. Where that path
//!   comes from is the server's business; no library is linked or shipped.
//! - [`OnnxRuntimeBackend`] loads models, completes configurations from them
//!   and refuses configurations that they contradict.
//! - An instance joins the requests of a batch. A request that is a batch of
//!   its own is not copied if its bytes lie where their type may be read, and
//!   outputs of a fixed-size type are handed on as slices of the tensors that
//!   the library made.
//!
//! What this is not: it makes no batches, keeps no queue and has no thread of
//! its own (the library has; the settings say how many). Sequences, ragged
//! batches and tensors in GPU memory are not its business yet and are refused.
//!
//! All `unsafe` code is in the module `api`.

mod accelerators;
mod api;
mod backend;
mod complete;
mod instance;
mod model;
mod parameters;
mod settings;
mod signature;

pub use api::Library;
pub use backend::{BackendOptions, LogFunction, OnnxRuntimeBackend};
