//! Verdicts on why a request took as long as it did, based on the facts that `explain` gathers.
//!
//! - [`LatencyVerdict`]: the main cause, decided from the facts only
//! - [`text()`]: the explanation as JSON and as the `Server-Timing` header
//! - [`model_main_cause_text`]: the main cause over all requests of a model
//!
//! This crate decides and formats. It has no threads, clocks, locks or I/O, and gathers nothing.
//! Doors and dispatchers don't use it: the program hands them its functions, so changing a
//! verdict's wording recompiles none of them.

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
#[cfg(test)]
mod tests;
mod text;

use galatea_explain::{CauseText, WaitTimes};

pub use cause::{LatencyCause, LatencyVerdict, main_cause_of_model};
pub use text::text;

/// Describes the main cause over all requests of a model; see [`main_cause_of_model`].
#[must_use]
pub fn model_main_cause_text(waits: &WaitTimes, execution_ns: u64) -> CauseText {
    let (cause, _) = main_cause_of_model(waits, execution_ns);
    CauseText { name: cause.name(), words: cause.description() }
}
