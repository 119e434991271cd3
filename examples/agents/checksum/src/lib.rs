//! A repository agent that lets only those models be loaded whose files are what the
//! configuration says they are.
//!
//! ```text
//! model_repository_agents {
//!   agents {
//!     name: "checksum"
//!     parameters { key: "MD5:1/model.onnx" value: "d41d8cd98f00b204e9800998ecf8427e" }
//!   }
//! }
//! ```
//!
//! It uses nothing of the server but the declarations of its C interface, as any agent
//! in Rust can. `checksum` holds what is to be decided, `agent` how the server asks.

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]

// Its functions are the server's, so that no program of its own can be linked with it.
#[cfg(not(test))]
mod agent;
mod checksum;
