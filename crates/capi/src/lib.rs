//! The server as a library: the functions of tritonserver.h that create a server and send requests
//! to it.
//!
//! This crate is a door like HTTP and gRPC: requests arrive as calls, tensors as pointers, and
//! responses are written to buffers that the caller allocates. The crate knows the server only as
//! [`InferenceService`](galatea_infer::InferenceService) and
//! [`ServerControl`](galatea_control::ServerControl). It does *not* create servers: the program
//! that links it [installs](install_server_factory) a function that creates a server from options.
//! The functions that plug-ins call are in `backend-plugin`, and those that both sides share are in
//! [`galatea_c_objects`].
//!
//! Start with `infer.rs`, which converts C requests and hands them to the server.
//!
//! Options are stored as command-line flags, so a single table defines them for both the program
//! and the library.
//!
//! # Ownership
//!
//! - An object belongs to its creator until it is deleted. A request that was handed over with
//!   `TRITONSERVER_ServerInferAsync` belongs to the server until its release callback.
//! - The inputs' memory belongs to the caller and must not change until that callback. Inputs are
//!   read in place: an input with a single segment is never copied.
//! - Outputs are copied once, into the response allocator's buffers.

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]
#![allow(non_snake_case, reason = "exported functions have the headers' names")]

pub mod allocator;
mod borrowed_request;
pub mod calls;
pub mod control;
pub mod exports;
mod gpu_memory;
pub mod infer;
pub mod metric;
pub mod options;
mod ownership;
pub mod request;
pub mod response;
pub mod server;
pub mod trace;

pub use galatea_c_objects::log::install_factory as install_log_factory;
pub use infer::InferAsyncCall;
pub use options::ServerCreateOptions;
pub use server::{
    ReservedServerPointer, RunningServer, ServerFactory, ServerRef, install_server_factory,
    into_server_pointer,
};
