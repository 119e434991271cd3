//! Checks the rules for requests with different lengths and deadlines, for the loads of many seeds.
//! Once costs are known, at most one in a thousand admitted requests may be late.

#[test]
fn the_rules_hold_for_padded_batches_with_deadlines() {
    let (mut executed, mut late) = (0, 0);
    for seed in 0..150 {
        let promises = galatea_sim::fuzz_padded_deadlines(seed)
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        executed += promises.executed;
        late += promises.late;
    }
    assert!(executed > 10_000, "only {executed} were executed");
    assert!(late * 1000 <= executed, "{late} of {executed} are late");
}
