//! Several schedulers and the rate limiter that they share: who gets a permit is
//! compared with a naive limiter, and nobody may get what is not there.

mod checks;
mod naive;
mod world;

pub use self::world::{Shares, check_sharing};
