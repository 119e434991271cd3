//! From a model's configuration to what its scheduler needs to know.

use galatea_config::{ModelSpec, QueuePolicy as ConfigPolicy, SchedulingChoice, TimeoutAction};
use galatea_policy::{DynamicSpec, QueuePolicy, SchedulingMode, SchedulingSpec};

const NS_PER_US: u64 = 1_000;

/// The scheduler's settings for this model.
pub(crate) fn scheduling_spec(spec: &ModelSpec, hold_until_queued: u32) -> SchedulingSpec {
    let mode = match &spec.scheduling {
        SchedulingChoice::Default => SchedulingMode::Default,
        SchedulingChoice::Dynamic(dynamic) => SchedulingMode::Dynamic(DynamicSpec {
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
        }),
        SchedulingChoice::Sequence(_) => unreachable!("the configuration refuses it still"),
    };
    SchedulingSpec {
        max_batch_size: spec.max_batch_size,
        mode,
        hold_until_queued,
        hold_until_backlogged: 0,
    }
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
