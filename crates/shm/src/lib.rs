//! The regions of shared memory that clients register for their tensors.
//!
//! [`SharedRegions`] opens and maps them, and hands out parts of them as
//! [`ForeignRegion`](galatea_tensor::ForeignRegion)s, which keep their mapping. A region that
//! is unregistered stays mapped as long as a request uses it, and as in Triton is listed and has
//! its name until then.
//!
//! # What a client may do, and why it does no harm
//!
//! A client has its region mapped too. It may write to it, and shorten the object under it,
//! at any moment.
//!
//! - **Writes.** Nothing in the server borrows a region as a slice, and nothing reads a value
//!   in it twice. Content leaves a region by one copy, which runs in assembly (`copy`), so
//!   that the compiler assumes nothing about it. All that is checked (lengths of strings,
//!   booleans, shapes) is checked in that copy, and backends compute with it. Without a copy
//!   goes only what a backend repeats unread: then one copy goes from region to region.
//! - **Shortening.** The kernel raises SIGBUS in who touches a page that isn't there any more.
//!   Only the copy touches regions. The handler of SIGBUS lets the copy end early if the fault
//!   is at exactly that instruction, and passes every other fault on. The request fails, and
//!   no other does.
//!
//! Backends never compute in a region itself: a kernel that finds an index within bounds, or
//! sorts by a value, would read it again after the client changed it.
//!
//! # Memory of GPUs
//!
//! A region may also be in the memory of a GPU (`cuda`). Its content goes in and out by copies
//! too, each on a stream that it has for itself and waited for by an event of its own.
//!
//! # What it is not
//!
//! The crate knows no protocol, and nothing of the memory of Triton's stub processes, whose names
//! it refuses (`key`). Memory that the server shares with its own workers, which has no name, is
//! copied in the same way ([`SharedMemory`]).

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]

mod copy;
mod cuda;
mod key;
mod mapping;
mod memory;
mod registry;
#[cfg(test)]
mod tests;

pub use memory::SharedMemory;
pub use registry::SharedRegions;
