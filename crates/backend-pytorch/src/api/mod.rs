//! A thin safe layer over PyTorch's C interface.
//!
//! All of the crate's `unsafe` is here. The blocks rely on these rules:
//!
//! - The library is never unloaded, so its functions live forever. A model's library is unloaded
//!   only after its container and all outputs that refer to it.
//! - A tensor handle is owned by a [`TensorHandle`] or, after a call that takes ownership, by the
//!   library.
//! - Functions of the C interface catch C++ exceptions and return a status other than 0.
//! - Enumerations are passed as plain integers, because a newer library may know values that this
//!   crate does not.
//! - Strings that the library reads are NUL-terminated and live for the duration of the call.
//!   Strings that it returns live as long as its container.

#![allow(unsafe_code, reason = "a C interface is called here; each block says why it is sound")]

mod container;
mod functions;
mod library;
mod module;
mod outputs;
mod tensor;
mod weights;

pub(crate) use container::Container;
pub use library::Library;
pub(crate) use module::{Argument, ArgumentKind, FileAccess, InputValue, ScriptModule, Shim};
pub(crate) use outputs::TorchOutputs;
pub(crate) use tensor::BorrowedTensor;
pub(crate) use weights::AlignedBytes;
