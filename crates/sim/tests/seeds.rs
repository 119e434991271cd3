//! Runs a few thousand seeds. Each seed gives a different world, and the same seed always gives the
//! same world.

use galatea_policy::FailReason;
use galatea_sim::{
    ContendedBatchCounts, CoverageCounts, CoverageEvent, Harness, OracleMode, SchedulerMode,
    SchedulerTrace, SimulationConfig, fuzz_rate_limiter, run,
};

fn run_seeds(mode: SchedulerMode, seeds: u64, requests: u64) -> (u64, u64, CoverageCounts) {
    let config = SimulationConfig { requests, mode: Some(mode), ..SimulationConfig::default() };
    let (mut events, mut completed, mut counts) = (0, 0, CoverageCounts::default());
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
fn check(mode: SchedulerMode, seeds: u64, occurrences: &[CoverageEvent]) {
    let (events, completed, counts) = run_seeds(mode, seeds, 80);
    assert!(events > seeds * 80, "{events} events");
    assert!(completed > seeds * 20, "{completed} requests ran");
    for occurrence in occurrences {
        assert!(counts.of(*occurrence) > seeds / 4, "{occurrence:?} is too rare: {counts}");
    }
}

const FAILURES: [CoverageEvent; 2] =
    [CoverageEvent::Failure(FailReason::Cancelled), CoverageEvent::Failure(FailReason::Draining)];

const ITERATIONS: [CoverageEvent; 1] = [CoverageEvent::Failure(FailReason::RescheduledTooLate)];

const SEQUENCES: [CoverageEvent; 8] = [
    CoverageEvent::LoneBatch,
    CoverageEvent::SharedBatch,
    CoverageEvent::Start,
    CoverageEvent::Middle,
    CoverageEvent::End,
    CoverageEvent::SequenceEnded,
    CoverageEvent::Failure(FailReason::MissingStart),
    CoverageEvent::Failure(FailReason::SequenceTimeoutExpired),
];

#[test]
fn the_default_scheduler_keeps_the_rules() {
    check(SchedulerMode::Default, 300, &FAILURES);
}

#[test]
fn the_dynamic_batcher_keeps_the_rules() {
    check(SchedulerMode::Dynamic, 3000, &FAILURES);
    let timeouts = [FailReason::QueueFull, FailReason::TimeoutExpired].map(CoverageEvent::Failure);
    check(SchedulerMode::Dynamic, 1000, &timeouts);
}

#[test]
fn direct_sequences_keep_the_rules() {
    check(SchedulerMode::Direct, 2000, &SEQUENCES);
    check(
        SchedulerMode::Direct,
        500,
        &[CoverageEvent::Padding, CoverageEvent::Failure(FailReason::NoSequence)],
    );
}

#[test]
fn oldest_sequences_keep_the_rules() {
    check(SchedulerMode::Oldest, 2000, &SEQUENCES);
}

#[test]
fn iterative_sequences_keep_the_rules() {
    let occurrences = [
        CoverageEvent::Start,
        CoverageEvent::Middle,
        CoverageEvent::SharedBatch,
        CoverageEvent::SequenceEnded,
    ];
    check(SchedulerMode::Iterative, 1000, &occurrences);
    check(SchedulerMode::Iterative, 500, &FAILURES);
    check(SchedulerMode::Iterative, 500, &ITERATIONS);
}

/// A rate limiter that grants permits immediately makes no difference.
#[test]
fn permits_granted_at_once_change_no_decision() {
    for mode in [
        SchedulerMode::Default,
        SchedulerMode::Dynamic,
        SchedulerMode::Direct,
        SchedulerMode::Oldest,
        SchedulerMode::Iterative,
    ] {
        let reference = OracleMode::OracleWithPermits;
        let config = SimulationConfig { requests: 80, mode: Some(mode), reference };
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
        fuzz_rate_limiter(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}

#[test]
fn a_model_of_priority_two_executes_half_as_many() {
    assert_eq!(ContendedBatchCounts::measure([1, 1]), Ok(ContendedBatchCounts(600, 599)));
    for (priorities, parts) in [([1, 2], 2), ([1, 5], 5)] {
        let ContendedBatchCounts(first, second) =
            ContendedBatchCounts::measure(priorities).expect("the rules hold");
        assert!(first.abs_diff(second * parts) <= parts, "{first} and {second}");
    }
}

/// Long runs, in which queues grow and much state is deleted.
#[test]
fn long_runs_end_without_state() {
    for mode in [
        SchedulerMode::Dynamic,
        SchedulerMode::Direct,
        SchedulerMode::Oldest,
        SchedulerMode::Iterative,
    ] {
        run_seeds(mode, 8, 3000);
    }
}

#[test]
fn the_same_seed_repeats_the_run() {
    let config = SimulationConfig::default();
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
        let trace: SchedulerTrace = text.parse().expect("a trace");
        let mut harness = Harness::new(&trace.setup, OracleMode::Oracle);
        for (now, event) in &trace.steps {
            assert!(harness.allows(*now, event), "{event:?} is impossible at {now:?} in\n{text}");
            harness.step(*now, *event).unwrap_or_else(|message| panic!("{message}, in\n{text}"));
        }
        assert_eq!(
            trace.to_string().parse::<SchedulerTrace>().as_ref(),
            Ok(&trace),
            "a trace equals its text"
        );
    }
}
