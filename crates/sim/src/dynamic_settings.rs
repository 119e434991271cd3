//! The dynamic batcher's settings: drawn at random, and written to and read from a trace.
//!
//! A setting that is a number or a flag is a row of [`PLAIN`] and a draw in [`random_settings`].

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use galatea_policy::{DynamicBatcherSpec, QueuePolicy, TimeoutAction};

use crate::random::Random;
use crate::setup::SchedulerSetup;
use crate::trace::fields::LineFields;

/// A setting that is one number in a trace's first line; a flag is 0 or 1.
struct PlainSetting {
    name: &'static str,
    get: fn(&DynamicBatcherSpec) -> u64,
    set: fn(&mut DynamicBatcherSpec, u64),
}

/// All plain settings, in trace order. A trace that predates a setting lacks it and uses the
/// default.
const PLAIN: [PlainSetting; 3] = [
    PlainSetting {
        name: "delay",
        get: |settings| settings.max_queue_delay_ns,
        set: |settings, value| settings.max_queue_delay_ns = value,
    },
    PlainSetting {
        name: "levels",
        get: |settings| settings.priority_levels,
        set: |settings, value| settings.priority_levels = value,
    },
    PlainSetting {
        name: "default",
        get: |settings| settings.default_priority_level,
        set: |settings, value| settings.default_priority_level = value,
    },
];

/// Draws the settings of a batcher with this maximum batch size.
pub(crate) fn random_settings(random: &mut Random, max: u32) -> DynamicBatcherSpec {
    let priority_levels = random.pick(&[0, 0, 0, 1, 2, 3, u64::MAX]);
    let mut priority_queue_policies = BTreeMap::new();
    for level in 1..=priority_levels.min(3) {
        if random.percent(40) {
            priority_queue_policies.insert(level, random_policy(random));
        }
    }
    DynamicBatcherSpec {
        preferred_batch_sizes: random_preferred(random, max),
        max_queue_delay_ns: random_delay(random),
        priority_levels,
        default_priority_level: random.between(1, priority_levels.clamp(1, 3)),
        default_queue_policy: random_policy(random),
        priority_queue_policies,
        padding: None,
    }
}

pub(crate) fn random_preferred(random: &mut Random, max: u32) -> Vec<u32> {
    let count = if random.percent(40) { 0 } else { random.between(1, 3) };
    (0..count).map(|_| random.between_u32(0, max.saturating_add(1))).collect()
}

pub(crate) fn random_delay(random: &mut Random) -> u64 {
    match random.between(0, 9) {
        0..=3 => 0,
        4..=8 => random.between(1, 40),
        _ => u64::MAX,
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

/// Writes the rest of the first line, and a line for each queue policy.
pub(crate) fn write(
    formatter: &mut Formatter<'_>,
    setup: &SchedulerSetup,
    settings: &DynamicBatcherSpec,
) -> fmt::Result {
    for PlainSetting { name, get, .. } in PLAIN {
        write!(formatter, " {name}={}", get(settings))?;
    }
    if let Some(custom) = setup.custom {
        write!(formatter, " weight={}", custom.limit)?;
    }
    write_preferred(formatter, &settings.preferred_batch_sizes)?;
    writeln!(formatter)?;
    write_policy(formatter, 0, &settings.default_queue_policy)?;
    let policies = &settings.priority_queue_policies;
    policies.iter().try_for_each(|(level, policy)| write_policy(formatter, *level, policy))
}

/// Reads the output of [`write()`], except the queue policies.
pub(crate) fn read(fields: &LineFields<'_>) -> Result<DynamicBatcherSpec, String> {
    let preferred_batch_sizes = fields.all("preferred")?;
    let mut settings = DynamicBatcherSpec { preferred_batch_sizes, ..Default::default() };
    for PlainSetting { name, set, .. } in PLAIN {
        if let Some(value) = fields.optional(name)? {
            set(&mut settings, value);
        }
    }
    Ok(settings)
}

/// Reads the line of a queue policy.
pub(crate) fn add_policy(settings: &mut DynamicBatcherSpec, line: &str) -> Result<(), String> {
    match LineFields::new(line).one("level")? {
        0 => settings.default_queue_policy = read_policy(line)?,
        level => drop(settings.priority_queue_policies.insert(level, read_policy(line)?)),
    }
    Ok(())
}

pub(crate) fn write_preferred(formatter: &mut Formatter<'_>, sizes: &[u32]) -> fmt::Result {
    sizes.iter().try_for_each(|size| write!(formatter, " preferred={size}"))
}

fn write_policy(formatter: &mut Formatter<'_>, level: u64, policy: &QueuePolicy) -> fmt::Result {
    let action = match policy.timeout_action {
        TimeoutAction::Reject => "reject",
        TimeoutAction::Delay => "delay",
    };
    let QueuePolicy { default_timeout_ns, allow_timeout_override, max_queue_size, .. } = policy;
    let may_override = u8::from(*allow_timeout_override);
    writeln!(
        formatter,
        "policy {action} level={level} timeout={default_timeout_ns} override={may_override} size={max_queue_size}"
    )
}

fn read_policy(line: &str) -> Result<QueuePolicy, String> {
    let fields = LineFields::new(line);
    Ok(QueuePolicy {
        timeout_action: match line.split_whitespace().nth(1) {
            Some("reject") => TimeoutAction::Reject,
            Some("delay") => TimeoutAction::Delay,
            _ => return Err(format!("{line:?} has no known action")),
        },
        default_timeout_ns: fields.one("timeout")?,
        allow_timeout_override: fields.flag("override")?,
        max_queue_size: fields.one("size")?,
    })
}

#[cfg(test)]
mod tests {
    use galatea_policy::{SchedulingMode, SchedulingSpec};

    use super::*;
    use crate::trace::SchedulerTrace;

    fn trace(settings: DynamicBatcherSpec) -> SchedulerTrace {
        let mode = SchedulingMode::Dynamic(settings);
        let (hold_until_queued, hold_until_backlogged) = (0, 0);
        let spec =
            SchedulingSpec { max_batch_size: 8, mode, hold_until_queued, hold_until_backlogged };
        SchedulerTrace { setup: spec.into(), steps: Vec::new() }
    }

    #[test]
    fn a_trace_has_every_setting_that_is_drawn() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            let written = trace(random_settings(&mut random, 8));
            let read = written.to_string().parse::<SchedulerTrace>().unwrap();
            assert_eq!(read, written, "{written}");
        }
    }

    #[test]
    fn settings_that_a_trace_lacks_have_their_defaults() {
        let read = "spec dynamic max=8 hold=0".parse::<SchedulerTrace>().unwrap();
        assert_eq!(read, trace(DynamicBatcherSpec::default()));
    }
}
