//! A seeded simulator for the values in `galatea-policy`: it runs the real scheduler in a simulated
//! world.
//!
//! Simulated clients send requests, cancel them and disconnect. They open sequences, end or forget
//! them, reuse their IDs, and send requests without a START. Instances are added, execute batches,
//! release requests early, late or for another iteration, and are removed. Time is virtual, so a
//! second of real time covers hours.
//!
//! Each step of the scheduler goes through a [`Harness`]. The harness compares the decisions with
//! those of a naive scheduler, which is simple enough to be trusted but too slow for serving, and
//! checks the rules that apply to every decision. The same seed reproduces the same run, down to
//! the hash of its trace.
//!
//! Three generators use the harness: [`run`] draws a world from a seed, [`explore`] tries all
//! orders of a few events, and [`SchedulerTrace::replay`] repeats a recorded trace.
//! [`SchedulerTrace::shrink`] shortens a failing trace.
//!
//! # Where to begin
//!
//! Read `harness.rs` first, then `stateless/oracle.rs` and `stateless/checks.rs`.
//!
//! | part | content |
//! |---|---|
//! | `world` | random clients and instances |
//! | `keys` | the keys that the server assigns to requests and sequences |
//! | `stateless`, `sequences` | for each kind of scheduler: a ledger of what is visible from outside, the checks on it, and the naive scheduler |
//! | `dynamic_rules` | the rules of dynamic batching, which both kinds use: as checks, and naively |
//! | `dynamic_settings` | its settings: drawn, written and read |
//! | `sharing`, `permit_ledger` | several schedulers with one rate limiter, and the state of their permits |
//! | `ensembles` | requests to random ensembles |
//! | `replies` | random orders of replies |
//! | `coalescing` | equal requests that share executions |
//! | `residency` | models that don't all fit into memory: a random world, and a comparison of ways to choose victims |
//! | `shares` | tenants that share a model's compute, and limits per second |
//! | `workers` | random lives of worker processes |
//! | `timed` | requests with deadlines, of unequal lengths or both, whose executions cost what they cost |
//! | `padding_gain` | padded batches beside executions one by one |
//! | `goodput` | the deadline batcher beside hand-tuned rules of the dynamic batcher |
//! | `trace`, `exhaustive` | the other two generators |
//!
//! # What it is not
//!
//! This crate isn't part of the server and doesn't know the scheduler's internals: it sees only
//! events, actions, wake-ups and the status. Where the rules leave the order of simultaneous
//! actions open, the checks accept any order, while the naive scheduler uses the order of the real
//! one. Seeds prove only as much as the checks detect, so the planted bugs in `mutants/` test the
//! checks (`cargo run -p galatea-sim --bin mutants`).
//!
//! # Example
//!
//! ```
//! let outcome = galatea_sim::run(42, &galatea_sim::SimulationConfig::default()).expect("the rules hold");
//! assert_eq!(outcome, galatea_sim::run(42, &galatea_sim::SimulationConfig::default()).unwrap());
//! ```
#![forbid(unsafe_code)]

mod check;
mod checker;
mod coalescing;
mod custom_batching;
mod decision;
mod dynamic_rules;
mod dynamic_settings;
mod ensembles;
mod exhaustive;
mod goodput;
mod harness;
mod hash;
mod keys;
mod padding_gain;
mod permit_ledger;
mod random;
mod random_setup;
mod replies;
mod residency;
mod sequences;
mod setup;
mod shares;
mod sharing;
mod stateless;
mod timed;
mod trace;
mod workers;
mod world;

pub use custom_batching::WeightLimitBatching;
pub use decision::SchedulerDecision;
pub use ensembles::fuzz_ensembles;
pub use exhaustive::{EventAlphabet, RequestTemplate, explore};
pub use goodput::{ArrivalLaw, CostCurve, GoodputComparison, GoodputExperiment};
pub use harness::{Harness, OracleMode};
pub use padding_gain::{ArrivalPattern, PaddingComparison, PaddingExperiment};
pub use random::Random;
pub use random_setup::SchedulerMode;
pub use residency::{ModelTrace, ResidencyComparison, compare_residency, fuzz_residency};
pub use setup::SchedulerSetup;
pub use shares::{check_shares, fuzz_shares, fuzz_tenant_limits};
pub use sharing::{ContendedBatchCounts, fuzz_rate_limiter};
pub use timed::{DeadlineOutcomes, fuzz_deadlines, fuzz_padded_deadlines, fuzz_padding};
pub use trace::SchedulerTrace;
pub use workers::fuzz_workers;
pub use world::{CoverageCounts, CoverageEvent, RunResult, SimulationConfig, Violation, run};
