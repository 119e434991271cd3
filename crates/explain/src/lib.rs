//! Why a request took as long as it did: the facts that were gathered on its way, and what is
//! said of them.
//!
//! - [`Facts`]: when a request passed which point, its batch, and whom it waited for
//! - [`WaitClock`]: how long the requests of a queue wait for what
//! - [`Verdict`]: the main cause, decided from the facts alone
//! - [`text`]: the explanation as JSON and as the header `Server-Timing`
//!
//! This crate decides and formats. It has no thread, clock, lock or I/O; times are arguments.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod cause;
mod facts;
#[cfg(test)]
mod tests;
pub mod text;
mod waits;

pub use cause::{Cause, Verdict, overall};
pub use facts::{BatchFacts, Detail, Facts, Mark, Queued, STEPS_MAX, Stage};
pub use waits::{QueueWaits, Wait, WaitClock, WaitTimes};
