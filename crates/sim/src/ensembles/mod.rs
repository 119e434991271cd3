//! Random ensembles: graphs, their requests and the gates in front of their steps, compared with a
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
/// Returns the broken rule with the preceding events.
pub fn fuzz_ensembles(seed: u64) -> Check {
    let mut random = Random::new(seed);
    graphs::check_refusals(&mut random)?;
    let spec = graphs::draw(&mut random);
    world::run(&spec, &mut random)
}
