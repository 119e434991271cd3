//! A thin safe layer over TensorFlow's C API.
//!
//! All of the crate's `unsafe` is here. The blocks rely on these rules:
//!
//! - The library is never unloaded, so its functions live forever.
//! - Every object is deleted once, by its owner, with the function that the API names for it.
//! - A tensor counts references to its memory. The library may keep a reference after a run: a
//!   variable or an output may share the memory of an input. Therefore, memory that a tensor refers
//!   to belongs to the tensor, which frees it together with the last reference.
//! - The library writes to a tensor's memory only if it allocated the memory and holds the last
//!   reference to it. Three kinds of operators are exceptions: operators of reference variables,
//!   operators that update their inputs in place, and those of operator libraries. `GraphFacts`
//!   finds them. Inputs are copied if their graph may write to them, and outputs are copied if
//!   their graph may overwrite them.
//! - Any thread may use a session, and several threads may run it concurrently.
//! - Enumerations are passed as plain integers, because a newer library may know values that this
//!   crate does not.

#![allow(unsafe_code, reason = "a C API is called here; each block says why it is sound")]

mod buffer;
mod functions;
mod library;
mod messages;
mod outputs;
mod session;
mod status;
mod string_array;
mod strings;
mod tensor;

pub use library::Library;
pub use messages::{LOG_LEVEL_VARIABLE, choose_warnings_and_errors};
pub(crate) use outputs::TfOutputs;
pub(crate) use session::{GraphSession, TensorName};
pub(crate) use tensor::TfTensor;
