//! A thin safe layer over OpenVINO's C API.
//!
//! All of the crate's `unsafe` is here. The blocks rely on these rules:
//!
//! - The library is never unloaded, so its functions live forever.
//! - Every [`Handle`](handle::Handle) contains a pointer that one of the library's constructors
//!   returned. It frees the pointer once, with the function that the API specifies for it.
//! - The library's objects hold reference counts on what they need: a compiled model may outlive
//!   its core, an infer request its compiled model, and a tensor its infer request.
//! - Enumerations are passed as plain integers, because a newer library may know values that this
//!   crate does not.
//! - Names that the library reads are NUL-terminated and live for the duration of the call.

#![allow(unsafe_code, reason = "a C API is called here; each block says why it is sound")]

mod core;
mod element;
mod functions;
mod handle;
mod library;
mod model;
mod preprocess;
mod request;
mod shape;
mod tensor;

pub(crate) use self::core::{CompiledModel, Core};
pub use library::Library;
pub(crate) use model::{Model, Port, TypeChange, VARIABLE_RANK};
pub(crate) use request::{BatchRows, InferRequest};
pub(crate) use shape::OvDimension;
pub(crate) use tensor::{OvOutputs, OvTensor};
