//! Checks the rules for requests with deadlines, for the loads of many seeds.

#[test]
fn the_rules_hold_for_requests_with_deadlines() {
    for seed in 0..2_000 {
        galatea_sim::fuzz_deadlines(seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}
