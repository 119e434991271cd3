//! Random ensembles.

use galatea_sim::fuzz_ensembles;

#[test]
fn runs_of_random_ensembles_keep_the_rules() {
    for seed in 0..20_000 {
        fuzz_ensembles(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}
