//! Some thousand lives, each different; the same again for the same seed.

use galatea_policy::FailReason;
use galatea_sim::{
    Config, Harness, Mode, Reference, Shares, Sight, Tally, Trace, check_sharing, run,
};

fn live(mode: Mode, seeds: u64, requests: u64) -> (u64, u64, Tally) {
    let config = Config { requests, mode: Some(mode), ..Config::default() };
    let (mut events, mut completed, mut tally) = (0, 0, Tally::default());
    for seed in 0..seeds {
        match run(seed, &config) {
            Ok(outcome) => {
                events += outcome.events;
                completed += outcome.completed;
                tally.add(&outcome.tally);
            }
            Err(violation) => panic!("{violation}\n{}", violation.trace.shrink(config.reference)),
        }
    }
    (events, completed, tally)
}

/// Worlds in which nothing runs, or nothing fails, would prove little.
#[track_caller]
fn check(mode: Mode, seeds: u64, sights: &[Sight]) {
    let (events, completed, tally) = live(mode, seeds, 80);
    assert!(events > seeds * 80, "{events} events");
    assert!(completed > seeds * 20, "{completed} requests ran");
    for sight in sights {
        assert!(tally.of(*sight) > seeds / 4, "{sight:?} too seldom: {tally}");
    }
}

const FAILURES: [Sight; 2] =
    [Sight::Failure(FailReason::Cancelled), Sight::Failure(FailReason::Draining)];

const SEQUENCES: [Sight; 8] = [
    Sight::LoneBatch,
    Sight::SharedBatch,
    Sight::Start,
    Sight::Middle,
    Sight::End,
    Sight::SequenceEnded,
    Sight::Failure(FailReason::MissingStart),
    Sight::Failure(FailReason::SequenceTimeoutExpired),
];

#[test]
fn the_default_scheduler_keeps_its_promises() {
    check(Mode::Default, 300, &FAILURES);
}

#[test]
fn the_dynamic_batcher_keeps_its_promises() {
    check(Mode::Dynamic, 3000, &FAILURES);
    let timeouts = [FailReason::QueueFull, FailReason::TimeoutExpired].map(Sight::Failure);
    check(Mode::Dynamic, 1000, &timeouts);
}

#[test]
fn direct_sequences_keep_their_promises() {
    check(Mode::Direct, 2000, &SEQUENCES);
    check(Mode::Direct, 500, &[Sight::Padding, Sight::Failure(FailReason::NoSequence)]);
}

#[test]
fn oldest_sequences_keep_their_promises() {
    check(Mode::Oldest, 2000, &SEQUENCES);
}

#[test]
fn iterative_sequences_keep_their_promises() {
    let sights = [Sight::Start, Sight::Middle, Sight::SharedBatch, Sight::SequenceEnded];
    check(Mode::Iterative, 1000, &sights);
    check(Mode::Iterative, 500, &FAILURES);
}

/// A rate limiter that grants at once makes no difference.
#[test]
fn permits_that_come_at_once_change_nothing() {
    for mode in [Mode::Default, Mode::Dynamic, Mode::Direct, Mode::Oldest, Mode::Iterative] {
        let reference = Reference::OracleWithPermits;
        let config = Config { requests: 80, mode: Some(mode), reference };
        for seed in 0..500 {
            if let Err(violation) = run(seed, &config) {
                panic!("{violation}\n{}", violation.trace.shrink(reference));
            }
        }
    }
}

#[test]
fn schedulers_that_share_resources_keep_their_promises() {
    for seed in 0..5000 {
        check_sharing(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}

#[test]
fn a_model_of_priority_two_executes_half_as_many() {
    assert_eq!(Shares::of([1, 1]), Ok(Shares(600, 599)));
    for (priorities, parts) in [([1, 2], 2), ([1, 5], 5)] {
        let Shares(first, second) = Shares::of(priorities).expect("promises are kept");
        assert!(first.abs_diff(second * parts) <= parts, "{first} and {second}");
    }
}

/// Long lives, where queues grow and much is forgotten.
#[test]
fn long_lives_end_as_empty_as_they_began() {
    for mode in [Mode::Dynamic, Mode::Direct, Mode::Oldest, Mode::Iterative] {
        live(mode, 8, 3000);
    }
}

#[test]
fn the_same_seed_lives_the_same_life() {
    let config = Config::default();
    for seed in 0..200 {
        let hash = |seed| match run(seed, &config) {
            Ok(outcome) => outcome.trace_hash,
            Err(violation) => panic!("{violation}"),
        };
        assert_eq!(hash(seed), hash(seed));
        assert_ne!(hash(seed), hash(seed + 1));
    }
}

/// Traces that once showed a bug, in the scheduler or in what checks it, and
/// corners where the rules could be read in two ways.
#[test]
fn recorded_traces_hold() {
    let traces = [
        include_str!("traces/cancelled_out_of_custom_batch.trace"),
        include_str!("traces/fails_when_a_slot_gets_free.trace"),
        include_str!("traces/moved_back_reaches_preferred.trace"),
        include_str!("traces/padding_behind_what_fits.trace"),
        include_str!("traces/rejected_when_the_delay_ends.trace"),
        include_str!("traces/released_after_its_sequence.trace"),
    ];
    for text in traces {
        let trace: Trace = text.parse().expect("a trace");
        let mut harness = Harness::new(&trace.setup, Reference::Oracle);
        for (now, event) in &trace.steps {
            assert!(harness.allows(*now, event), "{event:?} makes no sense at {now:?} in\n{text}");
            harness.step(*now, *event).unwrap_or_else(|message| panic!("{message}, in\n{text}"));
        }
        assert_eq!(trace.to_string().parse::<Trace>().as_ref(), Ok(&trace), "a trace is its text");
    }
}
