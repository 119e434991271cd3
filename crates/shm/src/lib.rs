//! Shared memory regions that clients register for their tensors.
//!
//! [`ShmRegistry`] opens and maps regions, and hands out parts of them as
//! [`ForeignRegion`](galatea_tensor::ForeignRegion)s, which keep the mapping alive. An unregistered
//! region stays mapped for as long as a request uses it. As in Triton, it is listed and keeps its
//! name until then.
//!
//! # What a client may do, and why it does no harm
//!
//! A client also maps its region. It may write to the region or shorten the underlying object at
//! any time.
//!
//! - **Writes.** The server never borrows a region as a slice and never reads a value in a region
//!   twice. The contents leave a region through a single copy (`copy`), which is implemented in
//!   assembly so that the compiler assumes nothing about the memory. All checks (string lengths,
//!   booleans, shapes) apply to that copy, and backends compute with it. The exception is data that
//!   a backend returns without reading it: it is copied once, from region to region.
//! - **Shortening.** The kernel raises SIGBUS in a thread that accesses a page that no longer
//!   exists. Only the copy accesses regions. The SIGBUS handler ends the copy early if the fault is
//!   at exactly that instruction, and passes on all other faults. Only the affected request fails.
//!
//! Backends never compute directly on a region: a kernel that checks an index against its bounds,
//! or sorts by a value, would read it again after the client has changed it.
//!
//! # Memory of GPUs
//!
//! A region may also be in GPU memory (`cuda`). Its contents are also copied in and out. Each copy
//! has exclusive use of a stream and is waited for with its own event.
//!
//! # What it is not
//!
//! The crate knows no protocol, and doesn't handle the memory of Triton's stub processes, whose
//! names it rejects (`key`). Anonymous memory that the server shares with its own workers is copied
//! in the same way ([`ProcessSharedMemory`]).

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

pub use memory::ProcessSharedMemory;
pub use registry::ShmRegistry;
