//! What both sides of the C APIs share: the objects that are known to C by their
//! address, and the exported functions that belong to no server and no backend.
//!
//! - [`handle`] makes addresses that can be told from released and foreign ones.
//! - [`guard`] is what every exported function runs in: a panic becomes an error.
//! - [`error`], [`message`], [`parameter`], [`buffer_attributes`], [`names`] and
//!   [`log`] hold the objects and their functions.
//! - [`clock`] turns times into C's and back, [`trace`] finds a trace of C again, and
//!   [`output_query`] is a question of backends to whoever made a request with C.
//!
//! # Unsafe code
//!
//! Every exported function trusts its caller with what C can't express: that
//! pointers to be written are valid, that texts end in a zero byte, and that an
//! object is not released by one thread while another uses it. What can be
//! checked is checked: null, objects of another kind, and released objects give
//! an error and a line in the log.

#![allow(unsafe_code, reason = "a C API is made of it; each block says why it is sound")]
#![allow(non_snake_case, reason = "exported functions have the headers' names")]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

pub mod buffer_attributes;
pub mod clock;
pub mod error;
pub mod exports;
pub mod guard;
pub mod handle;
pub mod log;
pub mod message;
pub mod names;
pub mod output_query;
pub mod parameter;
pub mod text;
pub mod trace;

pub use guard::guard;
