//! Random ensembles: graphs, requests to them and gates before their steps, compared with a
//! naive implementation.

mod graphs;
mod naive;
mod world;

use crate::check::Check;
use crate::random::Random;

/// Runs the ensembles of a seed: invalid graphs, and requests to a valid one.
///
/// # Errors
///
/// The rule that was broken, with the events before.
pub fn check_ensembles(seed: u64) -> Check {
    let mut random = Random::new(seed);
    graphs::check_refusals(&mut random)?;
    let spec = graphs::draw(&mut random);
    world::run(&spec, &mut random)
}
