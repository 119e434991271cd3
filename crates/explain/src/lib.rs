//! The explanation of a request: the facts that its threads gather along its path, for a client
//! that asks why it took as long as it did.
//!
//! - [`Explanation`]: gathers the facts of one request. It rides on the request's trace
//! - [`RequestFacts`]: the times at which a request passed each point, its batch, and the requests it
//!   waited for
//! - [`WaitClock`]: the times that queued requests wait, by reason
//!
//! This crate gathers facts and judges nothing: the crate `verdict` makes verdicts and text, and
//! the program passes its functions to this crate. Facts and clocks are values whose times are
//! arguments; only an [`Explanation`] has a lock and, for the requests that a request makes, reads
//! the clock.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod explanation;
mod facts;
#[cfg(test)]
mod tests;
mod waits;

pub use explanation::{
    CauseText, ExplainingObserver, Explanation, ExplanationText, ExplanationWriter, MainCauseFinder,
};
pub use facts::{
    BatchFacts, DetailLevel, Milestone, QueueSnapshot, RequestFacts, STEPS_MAX, Stage,
};
pub use waits::{QueueWaits, WaitClock, WaitReason, WaitTimes};
