//! Rust declarations of Triton Inference Server's C APIs: the objects, enumerations, callbacks and
//! functions of its four public headers. The constants in this crate specify the API versions.
//!
//! The crate contains no logic. Each function is a *type* with the function's name, so that the
//! compiler checks implementations and calls against its signature. Export lists and checks are
//! generated from the lists of names. Start with `server.rs`.
//!
//! | module | header | purpose |
//! |---|---|---|
//! | [`server`] | tritonserver.h | the server as a library |
//! | [`backend`] | tritonbackend.h | backends and custom batching |
//! | [`cache`] | tritoncache.h | response caches |
//! | [`repoagent`] | tritonrepoagent.h | repository agents |
//!
//! ```
//! use galatea_abi::server::TRITONSERVER_ErrorDelete;
//! use galatea_abi::TRITONSERVER_Error;
//!
//! unsafe extern "C" fn delete(_error: *mut TRITONSERVER_Error) {}
//!
//! let _checked: TRITONSERVER_ErrorDelete = delete;
//! ```
#![forbid(unsafe_code)]
#![no_std]
#![allow(non_camel_case_types, reason = "the names are those of the headers")]
#![allow(missing_docs, reason = "names and meaning are those of the headers")]

pub mod backend;
pub mod cache;
mod callbacks;
mod enums;
mod opaque;
pub mod repoagent;
pub mod server;

pub use callbacks::*;
pub use enums::*;
pub use opaque::*;

/// The version of tritonserver.h.
pub const SERVER_API_VERSION: (u32, u32) = (1, 34);
/// The version of tritonbackend.h.
pub const BACKEND_API_VERSION: (u32, u32) = (1, 19);
/// The version of tritoncache.h.
pub const CACHE_API_VERSION: (u32, u32) = (0, 1);
/// The version of tritonrepoagent.h.
pub const REPOAGENT_API_VERSION: (u32, u32) = (0, 1);

/// Declares a type for each function, and a list of the functions' names.
macro_rules! functions {
    ($(#[$doc:meta])* $list:ident:
     $($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(pub type $name = unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?;)*

        $(#[$doc])*
        pub const $list: &[&str] = &[$(stringify!($name)),*];
    };
}
use functions;
