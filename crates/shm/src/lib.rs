//! Regions of shared memory that clients register for their tensors.
//!
//! [`SharedRegions`] opens and maps them, and hands out parts of them as
//! [`ForeignRegion`](galatea_tensor::ForeignRegion)s, which keep their mapping. An unregistered
//! region stays mapped for as long as a request uses it. As in Triton, it is listed and keeps its
//! name until then.
//!
//! # What a client may do, and why it does no harm
//!
//! A client has its region mapped as well. It may write to the region, and shorten the underlying
//! object, at any moment.
//!
//! - **Writes.** Nothing in the server borrows a region as a slice, and nothing reads a value in it
//!   twice. The contents leave a region through a single copy, which runs in assembly (`copy`), so
//!   that the compiler assumes nothing about it. Everything that is checked (lengths of strings,
//!   booleans, shapes) is checked in that copy, and backends compute with it. The exception is data
//!   that a backend repeats unread: it is copied once, from region to region.
//! - **Shortening.** The kernel raises SIGBUS in a thread that touches a page that no longer
//!   exists. Only the copy touches regions. The SIGBUS handler makes the copy end early if the
//!   fault is at exactly that instruction, and passes on every other fault. Only that request
//!   fails.
//!
//! Backends never compute in a region itself: a kernel that finds an index within bounds, or sorts
//! by a value, would read it again after the client has changed it.
//!
//! # Memory of GPUs
//!
//! A region may also be in the memory of a GPU (`cuda`). Its contents are copied in and out as
//! well; each copy has a stream to itself and is waited for with an event of its own.
//!
//! # What it is not
//!
//! The crate knows no protocol, and nothing about the memory of Triton's stub processes, whose
//! names it refuses (`key`). Unnamed memory that the server shares with its own workers is copied
//! in the same way ([`SharedMemory`]).

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
