//! Tests all orders of a few events.

use std::collections::BTreeMap;

use galatea_policy::{
    DynamicBatcherSpec, QueuePolicy, SchedulingMode, SchedulingSpec, TimeoutAction,
};
use galatea_sim::{EventAlphabet, OracleMode, RequestTemplate, explore};

#[track_caller]
fn check(mode: SchedulingMode, max_batch_size: u32, alphabet: &EventAlphabet, depth: u32) {
    let spec =
        SchedulingSpec { max_batch_size, mode, hold_until_queued: 0, hold_until_backlogged: 0 };
    match explore(&spec, alphabet, depth) {
        Ok(steps) => {
            assert!(steps > 10_000, "only {steps} steps: the alphabet is too small to say much")
        }
        Err(failure) => panic!("{}\n{}", failure.1, failure.0.shrink(OracleMode::Oracle)),
    }
}

#[test]
fn the_default_scheduler() {
    let alphabet = EventAlphabet {
        requests: vec![RequestTemplate::without_sequence(2, 0, 0, 0)],
        cancels: true,
        instances: 2,
        drains: true,
        reschedules: false,
    };
    check(SchedulingMode::Default, 4, &alphabet, 7);
}

#[test]
fn sizes_and_shape_classes_with_a_delay() {
    let alphabet = EventAlphabet {
        requests: [(1, 0), (2, 0), (3, 0), (1, 1)]
            .map(|(rows, key)| RequestTemplate::without_sequence(rows, key, 0, 0))
            .to_vec(),
        instances: 1,
        ..EventAlphabet::default()
    };
    for preferred_batch_sizes in [vec![], vec![2], vec![3, 2]] {
        let settings = DynamicBatcherSpec {
            preferred_batch_sizes,
            max_queue_delay_ns: 3,
            ..DynamicBatcherSpec::default()
        };
        check(SchedulingMode::Dynamic(settings), 4, &alphabet, 7);
    }
}

#[test]
fn timeouts_with_a_delay() {
    let alphabet = EventAlphabet {
        requests: vec![
            RequestTemplate::without_sequence(1, 0, 0, 0),
            RequestTemplate::without_sequence(2, 0, 0, 2),
        ],
        cancels: true,
        instances: 1,
        drains: true,
        reschedules: false,
    };
    for timeout_action in [TimeoutAction::Reject, TimeoutAction::Delay] {
        let policy = QueuePolicy {
            timeout_action,
            default_timeout_ns: 3,
            allow_timeout_override: true,
            max_queue_size: 3,
        };
        let settings = DynamicBatcherSpec {
            preferred_batch_sizes: vec![2, 4],
            max_queue_delay_ns: 4,
            default_queue_policy: policy,
            ..DynamicBatcherSpec::default()
        };
        check(SchedulingMode::Dynamic(settings), 4, &alphabet, 7);
    }
}

#[test]
fn levels_with_different_policies() {
    let alphabet = EventAlphabet {
        requests: [1, 2, 3]
            .map(|priority| RequestTemplate::without_sequence(1, 0, priority, 0))
            .to_vec(),
        cancels: true,
        instances: 1,
        drains: false,
        reschedules: false,
    };
    let delayed = QueuePolicy {
        timeout_action: TimeoutAction::Delay,
        default_timeout_ns: 2,
        ..QueuePolicy::default()
    };
    let rejected =
        QueuePolicy { default_timeout_ns: 3, max_queue_size: 2, ..QueuePolicy::default() };
    let settings = DynamicBatcherSpec {
        max_queue_delay_ns: 5,
        priority_levels: 2,
        default_priority_level: 2,
        default_queue_policy: rejected,
        priority_queue_policies: BTreeMap::from([(1, delayed)]),
        ..DynamicBatcherSpec::default()
    };
    check(SchedulingMode::Dynamic(settings), 3, &alphabet, 7);
}
