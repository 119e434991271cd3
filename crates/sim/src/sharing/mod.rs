//! Several schedulers that share one rate limiter. The granted permits are compared with those of a
//! naive limiter and must not exceed the resources.

mod checks;
mod naive;
mod world;

pub use self::world::{ContendedBatchCounts, fuzz_rate_limiter};
