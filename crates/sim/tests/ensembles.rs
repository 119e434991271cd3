//! Ensembles at random: the machine keeps its promises.

use galatea_sim::check_ensembles;

#[test]
fn requests_go_their_way_through_ensembles() {
    for seed in 0..20_000 {
        check_ensembles(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}
