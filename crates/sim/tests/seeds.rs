//! Some thousand lives, each different; the same again for the same seed.

use galatea_sim::{Config, Reference, Trace, run};

const SEEDS: u64 = 6000;

#[test]
fn the_scheduler_keeps_its_promises_in_every_life() {
    let config = Config { requests: 80, ..Config::default() };
    let (mut events, mut completed, mut failed) = (0, 0, 0);
    for seed in 0..SEEDS {
        match run(seed, &config) {
            Ok(outcome) => {
                events += outcome.events;
                completed += outcome.completed;
                failed += outcome.failed;
            }
            Err(violation) => panic!("{violation}\n{}", violation.trace.shrink(config.reference)),
        }
    }
    // Worlds in which nothing runs, or nothing fails, would prove little.
    assert!(events > SEEDS * 100, "{events} events");
    assert!(completed > SEEDS * 20, "{completed} requests ran");
    assert!(failed > SEEDS * 10, "{failed} requests failed");
}

/// Long lives, where queues grow and much is forgotten.
#[test]
fn long_lives_end_as_empty_as_they_began() {
    for seed in 0..20 {
        let config = Config { requests: 5000, ..Config::default() };
        run(seed, &config).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn the_same_seed_lives_the_same_life() {
    let config = Config::default();
    for seed in 0..200 {
        let hash = |seed| run(seed, &config).map(|outcome| outcome.trace_hash).expect("it holds");
        assert_eq!(hash(seed), hash(seed));
        assert_ne!(hash(seed), hash(seed + 1));
    }
}

/// Traces that once showed a bug, in the scheduler or in what checks it.
#[test]
fn recorded_traces_hold() {
    let traces = [
        include_str!("traces/cancelled_out_of_custom_batch.trace"),
        include_str!("traces/moved_back_reaches_preferred.trace"),
        include_str!("traces/rejected_when_the_delay_ends.trace"),
    ];
    for text in traces {
        let trace: Trace = text.parse().expect("a trace");
        trace
            .replay(Reference::Oracle)
            .unwrap_or_else(|(step, message)| panic!("after {step} steps: {message}"));
        assert_eq!(trace.to_string().parse::<Trace>().as_ref(), Ok(&trace), "a trace is its text");
    }
}
