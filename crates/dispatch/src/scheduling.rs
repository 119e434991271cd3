//! The scheduler settings, derived from a model configuration.

use galatea_config::{
    BatchPaddingSettings, DynamicBatching, ModelSpec, QueuePolicy as ConfigPolicy,
    SchedulingChoice, SequenceBatching, SequenceStrategy as ConfigStrategy, TimeoutAction,
};
use galatea_policy::{
    DeadlineBatcherSpec, DynamicBatcherSpec, PaddingSpec, QueuePolicy, SchedulingMode,
    SchedulingSpec, SequenceBatcherSpec, SequenceStrategy,
};

use crate::dispatcher::ReplyOrdering;

const NS_PER_US: u64 = 1_000;

/// Test-only thresholds: nothing is dispatched until this many requests wait; 0 means off.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct HoldThresholds {
    pub(crate) until_queued: u32,
    pub(crate) until_backlogged: u32,
}

/// The scheduler settings that a model's dispatcher uses.
pub fn scheduling_spec_of(spec: &ModelSpec) -> SchedulingSpec {
    scheduling_spec(spec, HoldThresholds::default())
}

/// The scheduler settings for this model.
pub(crate) fn scheduling_spec(spec: &ModelSpec, holds: HoldThresholds) -> SchedulingSpec {
    let mode = match &spec.scheduling {
        SchedulingChoice::Default | SchedulingChoice::Ensemble(_) => SchedulingMode::Default,
        SchedulingChoice::Dynamic(dynamic) => batching_mode(spec, dynamic),
        SchedulingChoice::Sequence(batching) => {
            SchedulingMode::Sequence(sequence_spec(batching, spec.max_batch_size))
        }
    };
    // An ensemble only passes requests on. Its composing models hold them back.
    let until_queued = if spec.ensemble().is_some() { 0 } else { holds.until_queued };
    SchedulingSpec {
        max_batch_size: spec.max_batch_size,
        mode,
        hold_until_queued: until_queued,
        hold_until_backlogged: holds.until_backlogged,
    }
}

/// The reply order that the configuration promises.
pub(crate) fn reply_ordering(spec: &ModelSpec) -> ReplyOrdering {
    let preserved = match &spec.scheduling {
        SchedulingChoice::Default | SchedulingChoice::Ensemble(_) => false,
        SchedulingChoice::Dynamic(dynamic) => dynamic.preserve_ordering,
        SchedulingChoice::Sequence(batching) => match batching.strategy {
            ConfigStrategy::Direct { .. } => false,
            ConfigStrategy::Oldest { preserve_ordering, .. } => preserve_ordering,
        },
    };
    if preserved { ReplyOrdering::Preserved } else { ReplyOrdering::Free }
}

/// The dynamic batcher, or the deadline batcher in its place.
fn batching_mode(spec: &ModelSpec, dynamic: &DynamicBatching) -> SchedulingMode {
    let budget = |padding: &BatchPaddingSettings| padding.budget.unwrap_or(u64::MAX);
    let padding = spec.own.padding.as_ref().map(|padding| PaddingSpec { budget: budget(padding) });
    let queue = DynamicBatcherSpec { padding, ..dynamic_spec(dynamic) };
    match spec.own.latency_objective_microseconds {
        None => SchedulingMode::Dynamic(queue),
        Some(0) => SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns: u64::MAX, queue }),
        Some(objective) => {
            let objective_ns = objective.saturating_mul(NS_PER_US);
            SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns, queue })
        }
    }
}

fn dynamic_spec(dynamic: &DynamicBatching) -> DynamicBatcherSpec {
    DynamicBatcherSpec {
        preferred_batch_sizes: dynamic.preferred_batch_sizes.clone(),
        max_queue_delay_ns: dynamic.max_queue_delay_microseconds.saturating_mul(NS_PER_US),
        priority_levels: dynamic.priority_levels,
        default_priority_level: dynamic.default_priority_level,
        default_queue_policy: queue_policy(&dynamic.default_queue_policy),
        priority_queue_policies: dynamic
            .priority_queue_policies
            .iter()
            .map(|(level, policy)| (*level, queue_policy(policy)))
            .collect(),
        padding: None,
    }
}

fn sequence_spec(batching: &SequenceBatching, max_batch_size: u32) -> SequenceBatcherSpec {
    let strategy = match &batching.strategy {
        ConfigStrategy::Direct { max_queue_delay_microseconds, minimum_slot_utilization } => {
            SequenceStrategy::Direct {
                max_queue_delay_ns: max_queue_delay_microseconds.saturating_mul(NS_PER_US),
                minimum_ready_slots: ready_slots(*minimum_slot_utilization, max_batch_size),
            }
        }
        ConfigStrategy::Oldest {
            max_candidate_sequences,
            preferred_batch_sizes,
            max_queue_delay_microseconds,
            preserve_ordering: _,
        } => SequenceStrategy::Oldest {
            max_candidate_sequences: *max_candidate_sequences,
            preferred_batch_sizes: preferred_batch_sizes.clone(),
            max_queue_delay_ns: max_queue_delay_microseconds.saturating_mul(NS_PER_US),
        },
    };
    SequenceBatcherSpec {
        strategy,
        max_sequence_idle_ns: batching.max_sequence_idle_microseconds.saturating_mul(NS_PER_US),
        iterative: batching.iterative,
    }
}

/// The smallest number of ready slots that reaches the minimum utilization; 0 if none is set.
///
/// As in Triton, the quotient is compared in single precision: 0.3 of 10 slots is 3, although 10
/// times 0.3 is slightly more.
fn ready_slots(minimum_utilization: f32, max_batch_size: u32) -> u32 {
    if minimum_utilization <= 0.0 {
        return 0;
    }
    let slots = max_batch_size.max(1);
    let reaches = |ready: u32| ready as f32 / slots as f32 >= minimum_utilization;
    // This is a binary search, because the batch size may be huge.
    let (mut too_few, mut enough) = (0, slots);
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if reaches(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    enough
}

fn queue_policy(policy: &ConfigPolicy) -> QueuePolicy {
    QueuePolicy {
        timeout_action: match policy.timeout_action {
            TimeoutAction::Reject => galatea_policy::TimeoutAction::Reject,
            TimeoutAction::Delay => galatea_policy::TimeoutAction::Delay,
        },
        default_timeout_ns: policy.default_timeout_microseconds.saturating_mul(NS_PER_US),
        allow_timeout_override: policy.allow_timeout_override,
        max_queue_size: policy.max_queue_size,
    }
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    #[test]
    fn microseconds_become_nanoseconds() {
        let mut batching = SequenceBatching {
            max_sequence_idle_microseconds: 1,
            strategy: ConfigStrategy::Direct {
                max_queue_delay_microseconds: 2,
                minimum_slot_utilization: 0.5,
            },
            controls: Vec::new(),
            states: Vec::new(),
            iterative: true,
        };
        let mut expected = SequenceBatcherSpec {
            strategy: SequenceStrategy::Direct {
                max_queue_delay_ns: 2_000,
                minimum_ready_slots: 2,
            },
            max_sequence_idle_ns: 1_000,
            iterative: true,
        };
        assert_eq!(sequence_spec(&batching, 4), expected);
        batching.strategy = ConfigStrategy::Oldest {
            max_candidate_sequences: 7,
            preferred_batch_sizes: vec![2],
            max_queue_delay_microseconds: 3,
            preserve_ordering: true,
        };
        expected.strategy = SequenceStrategy::Oldest {
            max_candidate_sequences: 7,
            preferred_batch_sizes: vec![2],
            max_queue_delay_ns: 3_000,
        };
        assert_eq!(sequence_spec(&batching, 4), expected);
    }

    #[test]
    fn an_objective_turns_deadline_batching_on() {
        let mode = |parameter: &str| {
            let text = format!(
                "backend: 'b' max_batch_size: 4 dynamic_batching {{ priority_levels: 2 \
                 default_priority_level: 1 }} {parameter}"
            );
            let mut draft = parse_config_draft("f", &text).unwrap();
            draft.resolve_name_and_backend("m", &[]).unwrap();
            let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
            scheduling_spec(&spec, HoldThresholds::default()).mode
        };
        let parameter = |value: &str| {
            format!(
                "parameters {{ key: 'latency_objective_us' value {{ string_value: '{value}' }} }}"
            )
        };
        assert!(matches!(mode(""), SchedulingMode::Dynamic(_)));
        for (value, expected) in [("5", 5_000), ("0", u64::MAX)] {
            let SchedulingMode::Deadline(spec) = mode(&parameter(value)) else { panic!("{value}") };
            assert_eq!((spec.objective_ns, spec.queue.priority_levels), (expected, 2));
        }
    }

    #[test]
    fn the_smallest_number_of_slots_that_reaches_the_utilization() {
        let check = |utilization, slots, expected| {
            assert_eq!(ready_slots(utilization, slots), expected, "{utilization} of {slots}");
        };
        check(0.0, 8, 0);
        check(0.001, 8, 1);
        check(0.5, 8, 4);
        check(0.5, 7, 4);
        check(0.3, 10, 3);
        check(0.7, 10, 7);
        check(1.0, 8, 8);
        check(1.0, 0, 1);
        check(0.5, 1, 1);
        check(0.5, 1 << 24, 1 << 23);
    }
}
