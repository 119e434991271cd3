//! Checks the rules for requests with different lengths, for the loads of many seeds.

#[test]
fn the_rules_hold_for_requests_of_unequal_lengths() {
    for seed in 0..150 {
        galatea_sim::fuzz_padding(seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}
