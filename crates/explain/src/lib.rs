//! The explanation of a request: the facts about its way that its threads gather, for a client that
//! asks why it took as long as it did.
//!
//! - [`Explanation`]: gathers the facts of one request. It rides on the request's trace
//! - [`Facts`]: when a request passed which point, its batch, and whom it waited for
//! - [`WaitClock`]: how long the requests of a queue wait for what
//!
//! This crate gathers, and judges nothing: verdict and text are made by `verdict`, of which it gets
//! functions. Facts and clocks are values whose times are arguments; only an [`Explanation`] has a
//! lock and, for the requests that a request makes, reads the clock.

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
    CauseText, ExplainingObserver, Explanation, ExplanationText, ExplanationWriter, MainCause,
};
pub use facts::{BatchFacts, Detail, Facts, Mark, Queued, STEPS_MAX, Stage};
pub use waits::{QueueWaits, Wait, WaitClock, WaitTimes};
