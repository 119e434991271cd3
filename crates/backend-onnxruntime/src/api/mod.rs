//! A thin safe layer over ONNX Runtime's C API.
//!
//! All of the crate's `unsafe` is here. The blocks rely on these rules:
//!
//! - The library is never unloaded, so its function table lives forever.
//! - Every [`OrtHandle`](handle::OrtHandle) holds a pointer that the table's own constructor
//!   returned, and releases it once, with the function that the API names for it.
//! - The environment is never released, so it outlives everything made in it.
//! - Enumerations that the library returns are read as plain integers, because a newer
//!   library may know values that this crate does not.
//! - Names that the library reads are NUL-terminated and live during the call.

#![allow(unsafe_code, reason = "a C API is called here; each block says why it is sound")]

mod binding;
mod device;
mod element;
mod environment;
mod error;
mod handle;
mod library;
mod memory;
mod op_library;
mod options;
mod session;
mod table;
mod value;

pub(crate) use device::DeviceSession;
pub use environment::LogFunction;
pub(crate) use environment::{GlobalThreads, OrtEnvironment};
pub(crate) use error::c_string;
pub use library::Library;
pub(crate) use op_library::{EntryPoint, open_op_library};
pub(crate) use options::{ExecutionMode, GraphLevel, RunOptions, SessionOptions};
pub(crate) use session::ModelSession;
pub(crate) use value::{OrtTensor, RunOutputs};
