//! A thin, safe layer over ONNX Runtime's C API.
//!
//! This module contains all of the crate's `unsafe` code, which relies on these rules:
//!
//! - The library is never unloaded, so its function table lives forever.
//! - Every [`OrtHandle`](handle::OrtHandle) owns a pointer that one of the table's constructors
//!   returned. It releases the pointer once, with the function that the API specifies for it.
//! - The environment is never released, so it outlives everything that is created in it.
//! - Enumerations that the library returns are read as plain integers, because a newer library may
//!   know values that this crate does not.
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
pub use library::OrtLibrary;
pub(crate) use op_library::{EntryPoint, open_op_library};
pub(crate) use options::{ExecutionMode, GraphLevel, RunOptions, SessionOptions};
pub(crate) use session::ModelSession;
pub(crate) use value::{OrtTensor, RunOutputs};
