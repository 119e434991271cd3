//! The server as a library: the functions of tritonserver.h that make a server
//! and send it requests.
//!
//! This is a door like HTTP and gRPC: requests come as calls, tensors as
//! pointers, and responses go to buffers that the caller allocates. It knows the
//! server only as [`InferenceService`](galatea_infer::InferenceService) and
//! [`ServerControl`](galatea_infer::ServerControl); whoever wires the program
//! [installs](install) what makes one out of options.
//!
//! Options are kept as the command line's flags, which is what they are: one
//! table says what each means, for the program and for the library.
//!
//! # Ownership
//!
//! - An object belongs to whoever made it until it is deleted. A request that
//!   was handed over with `TRITONSERVER_ServerInferAsync` belongs to the server
//!   until its release callback.
//! - The memory of inputs stays the caller's and must stay as it is until then.
//!   It is read in place: an input of one piece is never copied.
//! - Outputs are copied once, into the buffers of the response allocator.
#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]
#![allow(non_snake_case, reason = "exported functions have the headers' names")]

pub mod allocator;
pub mod control;
pub mod exports;
mod flight;
pub mod infer;
pub mod metric;
pub mod options;
pub mod request;
pub mod response;
pub mod server;
pub mod trace;

pub use galatea_c_objects::log::install_factory as install_log_factory;
pub use server::{Reserved, RunningServer, ServerMaker, handle, install};
