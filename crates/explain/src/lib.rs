//! Request explanations: facts gathered along a request's path, for clients that ask why it took so
//! long.
//!
//! - [`LatencyExplanation`]: gathers the facts of one request, and rides on the request's trace
//! - [`RequestFacts`]: the request's milestones, its batch, and the requests it waited for
//! - [`QueueWaitTracker`]: the wait times of queued requests, by reason
//!
//! This crate only gathers facts. The `verdict` crate turns them into verdicts and text, and the
//! program passes that crate's functions to this one. Facts and clocks are plain values that
//! receive times as arguments. Only an [`LatencyExplanation`] has a lock, and it reads the clock only for
//! requests made by its request.

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
    CauseText, ExplainingObserver, LatencyCauseFinder, LatencyExplanation, LatencyExplanationText,
    LatencyExplanationWriter,
};
pub use facts::{
    BatchFacts, DetailLevel, Milestone, QueueSnapshot, RequestFacts, RequestStage, STEPS_MAX,
};
pub use waits::{QueueWaitTotals, QueueWaitTracker, WaitReason, WaitTimes};
