//! Tests all orders of a few events with sequences.

use galatea_policy::{SchedulingMode, SchedulingSpec, SequenceBatcherSpec, SequenceStrategy};
use galatea_sim::{EventAlphabet, OracleMode, RequestTemplate, explore};

fn direct(max_queue_delay_ns: u64, minimum_ready_slots: u32) -> SequenceStrategy {
    SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots }
}

fn oldest(max_candidate_sequences: u32, max_queue_delay_ns: u64) -> SequenceStrategy {
    let preferred_batch_sizes = vec![2];
    SequenceStrategy::Oldest { max_candidate_sequences, preferred_batch_sizes, max_queue_delay_ns }
}

fn spec(max_batch_size: u32, strategy: SequenceStrategy, idle_ns: u64) -> SchedulingSpec {
    let settings =
        SequenceBatcherSpec { strategy, max_sequence_idle_ns: idle_ns, iterative: false };
    SchedulingSpec {
        max_batch_size,
        mode: SchedulingMode::Sequence(settings),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    }
}

#[track_caller]
fn check(spec: &SchedulingSpec, alphabet: &EventAlphabet, depth: u32) {
    match explore(spec, alphabet, depth) {
        Ok(steps) => {
            assert!(steps > 10_000, "only {steps} steps: the alphabet is too small to say much")
        }
        Err(failure) => panic!("{}\n{}", failure.1, failure.0.shrink(OracleMode::Oracle)),
    }
}

/// Two IDs and one slot, with starts, ends, restarts, requests without a START, the backlog and its
/// timeouts.
#[test]
fn two_sequences_share_one_slot() {
    let alphabet = EventAlphabet {
        requests: vec![
            RequestTemplate::sequence_step(1, "^"),
            RequestTemplate::sequence_step(1, "$"),
            RequestTemplate::sequence_step(2, "^$").with_timeout(2),
            RequestTemplate::sequence_step(2, ""),
        ],
        cancels: true,
        instances: 1,
        ..EventAlphabet::default()
    };
    for strategy in [direct(0, 0), oldest(1, 2)] {
        check(&spec(1, strategy, 3), &alphabet, 6);
    }
}

/// Two slots, one instance and different shape classes.
#[test]
fn two_slots_wait_for_each_other() {
    let alphabet = EventAlphabet {
        requests: vec![
            RequestTemplate::sequence_step(1, "^"),
            RequestTemplate::sequence_step(2, "^"),
            RequestTemplate::sequence_step(2, "$").with_shape_class(1),
            RequestTemplate::sequence_step(3, "^$"),
        ],
        instances: 1,
        ..EventAlphabet::default()
    };
    for strategy in [direct(3, 2), oldest(2, 3)] {
        check(&spec(2, strategy, 0), &alphabet, 6);
    }
}

#[test]
fn instances_are_added_and_removed_and_the_model_unloads() {
    let alphabet = EventAlphabet {
        requests: vec![
            RequestTemplate::sequence_step(1, "^"),
            RequestTemplate::sequence_step(1, "$"),
            RequestTemplate::sequence_step(2, "^"),
        ],
        instances: 2,
        drains: true,
        ..EventAlphabet::default()
    };
    for strategy in [direct(0, 0), oldest(1, 0)] {
        check(&spec(1, strategy, 2), &alphabet, 6);
    }
}

#[test]
fn iterations() {
    let alphabet = EventAlphabet {
        requests: vec![RequestTemplate::iterative(), RequestTemplate::iterative().with_timeout(2)],
        cancels: true,
        instances: 1,
        drains: true,
        reschedules: true,
    };
    for strategy in [direct(0, 0), oldest(2, 2)] {
        let mut spec = spec(2, strategy, 3);
        if let SchedulingMode::Sequence(settings) = &mut spec.mode {
            settings.iterative = true;
        }
        check(&spec, &alphabet, 6);
    }
}

#[test]
fn the_test_hook_holds_for_slots_and_backlog() {
    let alphabet = EventAlphabet {
        requests: vec![
            RequestTemplate::sequence_step(1, "^"),
            RequestTemplate::sequence_step(2, "^$"),
            RequestTemplate::sequence_step(3, "^$").with_timeout(2),
        ],
        cancels: true,
        instances: 2,
        drains: true,
        reschedules: false,
    };
    for (hold_until_queued, hold_until_backlogged) in [(2, 0), (0, 2), (1, 1)] {
        let held =
            SchedulingSpec { hold_until_queued, hold_until_backlogged, ..spec(1, direct(0, 0), 3) };
        check(&held, &alphabet, 5);
    }
}
