//! A seeded simulator of the scheduler: the real machine, a made-up world.
//!
//! Clients send, cancel and vanish; they open sequences, end or forget them, use
//! their IDs again and start in the middle. Instances come, take their time, give
//! requests back early, late or to run again, go and die. All of it happens in
//! virtual time, so that a second of work shows hours of life. Every step of the
//! scheduler goes through a [`Harness`], which compares it with a naive scheduler
//! that is obviously right and too slow to serve, and checks what must hold
//! whatever the decision was. The same seed repeats the same run, down to the hash
//! of its trace.
//!
//! Three generators use the harness: [`run`] draws a world from a seed,
//! [`explore`] tries all orders of a few events, and [`Trace::replay`] repeats a
//! recorded trace. A trace that fails is cut down to its essence by
//! [`Trace::shrink`].
//!
//! | part | what it is |
//! |---|---|
//! | `world` | clients and instances, drawn at random |
//! | `driver` | the keys that the server gives to requests and sequences |
//! | `stateless`, `sequences` | for each kind of scheduler: a ledger of what is known from outside, the checks over it, and the naive scheduler |
//! | `forming`, `naive` | the dynamic rules, which both kinds use: as checks, and naively |
//! | `sharing`, `permits` | several schedulers and the rate limiter that they share, and whose permits are where |
//! | `replies` | the order of replies, drawn and checked by itself |
//! | `trace`, `exhaustive` | the other two generators |
//!
//! # What it is not
//!
//! Nothing here is part of the server, and nothing here knows how the scheduler
//! works inside: it sees events, actions, wake-ups and the status page. Where the
//! rules leave the order of simultaneous things open, the checks take any, and the
//! naive scheduler has the real one's. Seeds are worth only what the checkers see,
//! so a list of planted bugs says whether they see enough
//! (`cargo xtask mutants`).
//!
//! # Example
//!
//! ```
//! let outcome = galatea_sim::run(42, &galatea_sim::Config::default()).expect("the scheduler keeps its promises");
//! assert_eq!(outcome, galatea_sim::run(42, &galatea_sim::Config::default()).unwrap());
//! ```
#![forbid(unsafe_code)]

mod batching;
mod check;
mod deed;
mod driver;
mod ensembles;
mod examiner;
mod exhaustive;
mod forming;
mod harness;
mod hash;
mod naive;
mod permits;
mod random;
mod replies;
mod sequences;
mod setup;
mod sharing;
mod specs;
mod stateless;
mod trace;
mod world;

pub use batching::CustomBatching;
pub use deed::Deed;
pub use ensembles::check_ensembles;
pub use exhaustive::{Alphabet, Letter, explore};
pub use harness::{Harness, Reference};
pub use random::Random;
pub use setup::Setup;
pub use sharing::{Shares, check_sharing};
pub use specs::Mode;
pub use trace::Trace;
pub use world::{Config, Outcome, Sight, Tally, Violation, run};
