//! Concurrency tools that the standard library lacks: named locks, an inbox that wakes its reader
//! once, the single-driver pattern, and the state of I/O threads.
//!
//! This crate knows nothing about requests, models or protocols, and uses none of the other crates.
//! It runs no threads and, except in [`testing`], reads no clock.
//!
//! - [`Lock`] and [`Condvar`] replace `std::sync::Mutex` and `Condvar`.
//! - [`Inbox`] is a queue with a single reader, a task or a thread.
//! - [`DriverSlot`] lets one thread drive a machine while others only add work.
//! - [`io_thread`] keeps state about the current thread: the wake-ups that it has deferred
//!   ([`WakeBatch`]), and the time that it may spend on work that other threads would otherwise do
//!   ([`InlineBudget`]).
//! - [`sync`] provides the standard library's threads, mutexes and atomics, or loom's in models.
//! - [`testing`] lets tests wait for conditions.
//!
//! ```
//! use galatea_stdx::Lock;
//!
//! let names = Lock::new(Vec::new());
//! names.lock("add a name").push("first");
//! assert_eq!(*names.lock("read the names"), ["first"]);
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

pub mod driver_slot;
pub mod inbox;
pub mod io_thread;
pub mod lock;
mod numbers;
pub mod sync;
pub mod testing;

#[cfg(all(test, loom_models))]
mod models;

pub use driver_slot::DriverSlot;
pub use inbox::{Inbox, InboxClosed};
pub use io_thread::{InlineBudget, IoThreadGuard, WakeBatch, run_foreign_code, wake_batch};
pub use lock::{Condvar, Guard, Lock};
pub use numbers::len64;
