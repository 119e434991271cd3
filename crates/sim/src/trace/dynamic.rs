//! Writing and reading of the dynamic batcher's settings in a trace.

use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

use galatea_policy::{DynamicBatcherSpec, QueuePolicy, TimeoutAction};

use super::fields::LineFields;
use crate::setup::SchedulerSetup;

/// Writes the rest of the first line, and a line for each queue policy.
pub(super) fn write(
    formatter: &mut Formatter<'_>,
    setup: &SchedulerSetup,
    settings: &DynamicBatcherSpec,
) -> fmt::Result {
    let DynamicBatcherSpec { max_queue_delay_ns, priority_levels, default_priority_level, .. } =
        settings;
    write!(formatter, " delay={max_queue_delay_ns} levels={priority_levels}")?;
    write!(formatter, " default={default_priority_level}")?;
    if let Some(custom) = setup.custom {
        write!(formatter, " weight={}", custom.limit)?;
    }
    write_preferred(formatter, &settings.preferred_batch_sizes)?;
    writeln!(formatter)?;
    write_policy(formatter, 0, &settings.default_queue_policy)?;
    let policies = &settings.priority_queue_policies;
    policies.iter().try_for_each(|(level, policy)| write_policy(formatter, *level, policy))
}

/// Reads the output of [`write()`], except the queue policies. Settings missing from older traces get
/// their defaults here.
pub(super) fn read(fields: &LineFields<'_>) -> Result<DynamicBatcherSpec, String> {
    Ok(DynamicBatcherSpec {
        preferred_batch_sizes: fields.all("preferred")?,
        max_queue_delay_ns: fields.one("delay")?,
        priority_levels: fields.one("levels")?,
        default_priority_level: fields.one("default")?,
        default_queue_policy: QueuePolicy::default(),
        priority_queue_policies: BTreeMap::new(),
        padding: None,
    })
}

/// Reads the line of a queue policy.
pub(super) fn add_policy(settings: &mut DynamicBatcherSpec, line: &str) -> Result<(), String> {
    match LineFields::new(line).one("level")? {
        0 => settings.default_queue_policy = read_policy(line)?,
        level => drop(settings.priority_queue_policies.insert(level, read_policy(line)?)),
    }
    Ok(())
}

pub(super) fn write_preferred(formatter: &mut Formatter<'_>, sizes: &[u32]) -> fmt::Result {
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
