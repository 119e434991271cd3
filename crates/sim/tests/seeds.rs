//! A few thousand seeds: each gives a different world, and the same seed gives the same one.

use galatea_policy::FailReason;
use galatea_sim::{
    BatchShares, Config, Harness, Mode, Occurrence, OccurrenceCounts, Reference, Trace,
    check_sharing, run,
};

fn run_seeds(mode: Mode, seeds: u64, requests: u64) -> (u64, u64, OccurrenceCounts) {
    let config = Config { requests, mode: Some(mode), ..Config::default() };
    let (mut events, mut completed, mut counts) = (0, 0, OccurrenceCounts::default());
    for seed in 0..seeds {
        match run(seed, &config) {
            Ok(outcome) => {
                events += outcome.events;
                completed += outcome.completed;
                counts.add(&outcome.occurrences);
            }
            Err(violation) => panic!("{violation}\n{}", violation.trace.shrink(config.reference)),
        }
    }
    (events, completed, counts)
}

/// Checks that requests execute and fail. Worlds in which either never happens would prove little.
#[track_caller]
fn check(mode: Mode, seeds: u64, occurrences: &[Occurrence]) {
    let (events, completed, counts) = run_seeds(mode, seeds, 80);
    assert!(events > seeds * 80, "{events} events");
    assert!(completed > seeds * 20, "{completed} requests ran");
    for occurrence in occurrences {
        assert!(counts.of(*occurrence) > seeds / 4, "{occurrence:?} is too rare: {counts}");
    }
}

const FAILURES: [Occurrence; 2] =
    [Occurrence::Failure(FailReason::Cancelled), Occurrence::Failure(FailReason::Draining)];

const ITERATIONS: [Occurrence; 1] = [Occurrence::Failure(FailReason::RescheduledTooLate)];

const SEQUENCES: [Occurrence; 8] = [
    Occurrence::LoneBatch,
    Occurrence::SharedBatch,
    Occurrence::Start,
    Occurrence::Middle,
    Occurrence::End,
    Occurrence::SequenceEnded,
    Occurrence::Failure(FailReason::MissingStart),
    Occurrence::Failure(FailReason::SequenceTimeoutExpired),
];

#[test]
fn the_default_scheduler_keeps_the_rules() {
    check(Mode::Default, 300, &FAILURES);
}

#[test]
fn the_dynamic_batcher_keeps_the_rules() {
    check(Mode::Dynamic, 3000, &FAILURES);
    let timeouts = [FailReason::QueueFull, FailReason::TimeoutExpired].map(Occurrence::Failure);
    check(Mode::Dynamic, 1000, &timeouts);
}

#[test]
fn direct_sequences_keep_the_rules() {
    check(Mode::Direct, 2000, &SEQUENCES);
    check(Mode::Direct, 500, &[Occurrence::Padding, Occurrence::Failure(FailReason::NoSequence)]);
}

#[test]
fn oldest_sequences_keep_the_rules() {
    check(Mode::Oldest, 2000, &SEQUENCES);
}

#[test]
fn iterative_sequences_keep_the_rules() {
    let occurrences =
        [Occurrence::Start, Occurrence::Middle, Occurrence::SharedBatch, Occurrence::SequenceEnded];
    check(Mode::Iterative, 1000, &occurrences);
    check(Mode::Iterative, 500, &FAILURES);
    check(Mode::Iterative, 500, &ITERATIONS);
}

/// A rate limiter that grants permits immediately makes no difference.
#[test]
fn permits_granted_at_once_change_no_decision() {
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
fn schedulers_that_share_resources_keep_the_rules() {
    for seed in 0..5000 {
        check_sharing(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}

#[test]
fn a_model_of_priority_two_executes_half_as_many() {
    assert_eq!(BatchShares::of([1, 1]), Ok(BatchShares(600, 599)));
    for (priorities, parts) in [([1, 2], 2), ([1, 5], 5)] {
        let BatchShares(first, second) = BatchShares::of(priorities).expect("the rules hold");
        assert!(first.abs_diff(second * parts) <= parts, "{first} and {second}");
    }
}

/// Long runs, in which queues grow and much state is deleted.
#[test]
fn long_runs_end_without_state() {
    for mode in [Mode::Dynamic, Mode::Direct, Mode::Oldest, Mode::Iterative] {
        run_seeds(mode, 8, 3000);
    }
}

#[test]
fn the_same_seed_repeats_the_run() {
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

/// Traces that once revealed a bug in the scheduler or in its checks, and cases where the rules
/// could be interpreted in two ways.
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
            assert!(harness.allows(*now, event), "{event:?} is impossible at {now:?} in\n{text}");
            harness.step(*now, *event).unwrap_or_else(|message| panic!("{message}, in\n{text}"));
        }
        assert_eq!(
            trace.to_string().parse::<Trace>().as_ref(),
            Ok(&trace),
            "a trace equals its text"
        );
    }
}
