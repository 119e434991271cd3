//! Specifications at random: small numbers, so that times and sizes coincide,
//! and now and then the largest there are.

use std::collections::BTreeMap;

use galatea_policy::{DynamicSpec, QueuePolicy, SchedulingMode, SchedulingSpec, TimeoutAction};

use crate::random::Random;

pub(crate) fn random_spec(random: &mut Random) -> SchedulingSpec {
    let max_batch_size = random.pick(&[0, 1, 2, 3, 4, 4, 8, 8, 16, 64]);
    let mode = if random.percent(12) {
        SchedulingMode::Default
    } else {
        SchedulingMode::Dynamic(random_settings(random, max_batch_size.max(1)))
    };
    let hold_until_queued = if random.percent(10) { random.between_u32(1, 10) } else { 0 };
    SchedulingSpec { max_batch_size, mode, hold_until_queued }
}

fn random_settings(random: &mut Random, max: u32) -> DynamicSpec {
    let preferred = if random.percent(40) { 0 } else { random.between(1, 3) };
    let priority_levels = random.pick(&[0, 0, 0, 1, 2, 3, u64::MAX]);
    let mut priority_queue_policies = BTreeMap::new();
    for level in 1..=priority_levels.min(3) {
        if random.percent(40) {
            priority_queue_policies.insert(level, random_policy(random));
        }
    }
    DynamicSpec {
        preferred_batch_sizes: (0..preferred)
            .map(|_| random.between_u32(0, max.saturating_add(1)))
            .collect(),
        max_queue_delay_ns: match random.between(0, 9) {
            0..=3 => 0,
            4..=8 => random.between(1, 40),
            _ => u64::MAX,
        },
        priority_levels,
        default_priority_level: random.between(1, priority_levels.clamp(1, 3)),
        default_queue_policy: random_policy(random),
        priority_queue_policies,
    }
}

fn random_policy(random: &mut Random) -> QueuePolicy {
    QueuePolicy {
        timeout_action: random.pick(&[TimeoutAction::Reject, TimeoutAction::Delay]),
        default_timeout_ns: match random.between(0, 9) {
            0..=3 => 0,
            4..=8 => random.between(1, 60),
            _ => u64::MAX - random.between(0, 300),
        },
        allow_timeout_override: random.percent(60),
        max_queue_size: random.pick(&[0, 0, 0, 1, 2, 5, 20]),
    }
}
