//! Ensembles at random: graphs, requests on their way through them and gates
//! before their steps, compared with what is obviously right.

mod graphs;
mod naive;
mod world;

use crate::check::Check;
use crate::random::Random;

/// Lives through the ensembles of a seed: which graphs are refused, and requests
/// to one that isn't.
///
/// # Errors
///
/// The promise that was broken, with what led there.
pub fn check_ensembles(seed: u64) -> Check {
    let mut random = Random::new(seed);
    graphs::check_refusals(&mut random)?;
    let spec = graphs::draw(&mut random);
    world::live(&spec, &mut random)
}
