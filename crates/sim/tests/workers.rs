//! Tests random lifecycles of worker processes.

use galatea_sim::fuzz_workers;

#[test]
fn lives_of_random_workers_keep_the_rules() {
    for seed in 0..20_000 {
        fuzz_workers(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}
