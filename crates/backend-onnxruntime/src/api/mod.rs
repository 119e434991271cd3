//! A thin safe layer over ONNX Runtime's C API.
//!
//! All of the crate's `unsafe` is here. The rules that the blocks rely on:
//!
//! - The library is never unloaded, so its function table lives for ever.
//! - Every `Owned` pointer was returned by the table's own constructor and is
//!   released once, by the function that the API names for it.
//! - The environment is never released, so it outlives everything made in it.
//! - Enumerations that the library returns are read as plain integers: a
//!   newer library may know values that this crate does not.
//! - Names that the library reads are NUL-terminated and live during the call.

#![allow(unsafe_code, reason = "a C API is called here; each block says why it is sound")]

mod arena;
mod element;
mod environment;
mod error;
mod library;
mod op_library;
mod options;
mod owned;
mod region;
mod session;
mod value;

pub(crate) use arena::Arena;
pub(crate) use element::ValueType;
pub(crate) use environment::{Environment, GlobalThreads};
pub(crate) use error::c_string;
pub use library::Library;
pub(crate) use op_library::{EntryPoint, open_op_library};
pub(crate) use options::{ExecutionMode, GraphLevel, RunOptions, SessionOptions, Switch};
pub(crate) use region::Region;
pub(crate) use session::{Session, TensorInfo};
pub(crate) use value::{Output, OutputData, Value};
