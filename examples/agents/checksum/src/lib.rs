//! A repository agent that compares a model's files with checksums in its configuration,
//! and refuses to load the model if they differ.
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
//! It uses only the declarations of the server's C interface, as any agent in Rust can, and
//! *no* other crate of the server. `checksum` makes the decision; `agent` has the functions
//! that the server calls.

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]

// It calls functions of the server, so a test program can't be linked with it.
#[cfg(not(test))]
mod agent;
mod checksum;
