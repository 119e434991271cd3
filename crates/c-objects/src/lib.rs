//! The common foundation for both sides of the C interface: objects that C refers to by address,
//! and exported functions that belong to neither a server nor a backend.
//!
//! This crate is *not* a server and hosts no plug-ins: `capi` contains the functions of
//! tritonserver.h that require a server, and `backend-plugin` contains those that plug-ins call.
//!
//! Start with [`handle`], which turns an address into an object.
//!
//! - [`handle`] creates addresses, and detects released and foreign ones.
//! - [`mod@guard`] wraps every exported function and turns a panic into an error.
//! - [`error`], [`message`], [`parameter`], [`buffer_attributes`] and [`log`] contain the objects;
//!   [`names`] contains the names of enumeration values.
//! - [`mod@pointer`] reads and writes through C's pointers.
//! - [`list`] accesses lists through C's counts and indices.
//! - [`clock`] converts times, [`trace`] recognizes C traces, and [`output_query`] asks the C API
//!   caller where an output would be placed.
//! - [`exports`] lists the exported functions.
//!
//! ```
//! use galatea_c_objects::error::{into_c, take_c_error};
//! use galatea_infer::Status;
//!
//! let error = into_c(Status::not_found("no such model"));
//! // SAFETY: the error was just made, and is not used afterwards.
//! let status = unsafe { take_c_error(error) }.unwrap_err();
//! assert_eq!(status.message(), "no such model");
//! ```
//!
//! # Unsafe code
//!
//! Every exported function relies on its caller for what C can't express: out pointers are valid
//! for writes, strings are NUL-terminated, and no thread releases an object while another thread is
//! using it. Everything else is checked: null pointers, objects of the wrong kind and released
//! objects result in an error and a log line. The compiler checks every exported function against
//! its declaration in `abi`.

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]
#![allow(non_snake_case, reason = "exported functions have the headers' names")]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

pub mod buffer_attributes;
pub mod clock;
pub mod error;
pub mod error_functions;
pub mod exports;
pub mod guard;
pub mod handle;
pub mod list;
pub mod log;
pub mod log_functions;
pub mod message;
pub mod names;
pub mod output_query;
pub mod parameter;
pub mod pointer;
pub mod trace;

pub use guard::catch_panic;
