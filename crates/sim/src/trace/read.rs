//! Parses a trace.

use std::str::FromStr;

use galatea_policy::{
    InstanceId, RequestInfo, RequestKey, RequestRelease, SchedulerEvent, SchedulingMode,
    SchedulingSpec, SequenceBatcherSpec, SequenceKey, SequencePosition, SequenceStrategy,
    ShapeClassId, Time,
};

use super::SchedulerTrace;
use super::fields::LineFields;
use super::write::Key;
use crate::custom_batching::WeightLimitBatching;
use crate::dynamic_settings;
use crate::setup::SchedulerSetup;

impl FromStr for SchedulerTrace {
    type Err = String;

    /// Parses the output of `Display`. Empty lines and lines with # are ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .peekable();
        let mut setup = read_setup(lines.next().ok_or("an empty trace")?)?;
        while let Some(line) = lines.next_if(|line| line.starts_with("policy ")) {
            let SchedulingMode::Dynamic(settings) = &mut setup.spec.mode else {
                return Err(format!("{line:?}: no levels"));
            };
            dynamic_settings::add_policy(settings, line)?;
        }
        Ok(SchedulerTrace { setup, steps: lines.map(read_step).collect::<Result<_, _>>()? })
    }
}

impl FromStr for Key {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (place, generation) = text.split_once('.').unwrap_or((text, "0"));
        let (place, generation): (u32, u32) = (place.parse()?, generation.parse()?);
        Ok(Key(u64::from(generation) << 32 | u64::from(place)))
    }
}

fn read_setup(line: &str) -> Result<SchedulerSetup, String> {
    let fields = LineFields::new(line);
    let mode = match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["spec", "default", ..] => SchedulingMode::Default,
        ["spec", "dynamic", ..] => SchedulingMode::Dynamic(dynamic_settings::read(&fields)?),
        ["spec", "direct", ..] => sequence_mode(
            &fields,
            SequenceStrategy::Direct {
                max_queue_delay_ns: fields.one("delay")?,
                minimum_ready_slots: fields.one("minimum")?,
            },
        )?,
        ["spec", "oldest", ..] => sequence_mode(
            &fields,
            SequenceStrategy::Oldest {
                max_candidate_sequences: fields.one("candidates")?,
                preferred_batch_sizes: fields.all("preferred")?,
                max_queue_delay_ns: fields.one("delay")?,
            },
        )?,
        _ => return Err(format!("{line:?} is not a specification")),
    };
    let spec = SchedulingSpec {
        max_batch_size: fields.one("max")?,
        mode,
        hold_until_queued: fields.one("hold")?,
        hold_until_backlogged: fields.optional("backlog")?.unwrap_or(0),
    };
    Ok(SchedulerSetup {
        spec,
        custom: fields.optional("weight")?.map(|limit| WeightLimitBatching { limit }),
    })
}

fn sequence_mode(
    fields: &LineFields<'_>,
    strategy: SequenceStrategy,
) -> Result<SchedulingMode, String> {
    Ok(SchedulingMode::Sequence(SequenceBatcherSpec {
        strategy,
        max_sequence_idle_ns: fields.one("idle")?,
        iterative: fields.flag("iterative")?,
    }))
}

fn read_step(line: &str) -> Result<(Time, SchedulerEvent), String> {
    let fields = LineFields::new(line);
    let (time, rest) = line.split_once(' ').ok_or_else(|| format!("{line:?} has no event"))?;
    let time = Time(time.parse().map_err(|_| format!("{line:?} has no time"))?);
    let instance = || fields.one("id").map(InstanceId);
    let event = match rest.split_whitespace().next() {
        Some("request") => SchedulerEvent::Enqueue(read_request(&fields)?),
        Some("cancel") => SchedulerEvent::Cancel(read_key(&fields)?),
        Some("released") => SchedulerEvent::Released {
            key: read_key(&fields)?,
            release: if fields.flag("again")? {
                RequestRelease::Reschedule
            } else {
                RequestRelease::Done
            },
        },
        Some("free") => SchedulerEvent::LaneFree(instance()?),
        Some("add") => SchedulerEvent::AddInstance(instance()?),
        Some("remove") => SchedulerEvent::RemoveInstance(instance()?),
        Some("grant") => SchedulerEvent::PermitGranted(instance()?),
        Some("delay") => SchedulerEvent::PermitDelayed(instance()?),
        Some("drain") => SchedulerEvent::Drain,
        Some("tick") => SchedulerEvent::Tick,
        _ => return Err(format!("{line:?} is not a step")),
    };
    Ok((time, event))
}

fn read_key(fields: &LineFields<'_>) -> Result<RequestKey, String> {
    fields.one("id").map(|Key(key)| RequestKey(key))
}

fn read_request(fields: &LineFields<'_>) -> Result<RequestInfo, String> {
    let sequence = match fields.optional("sequence")? {
        Some(Key(sequence)) => Some(SequencePosition {
            sequence: SequenceKey(sequence),
            start: fields.flag("start")?,
            end: fields.flag("end")?,
        }),
        None => None,
    };
    Ok(RequestInfo {
        key: read_key(fields)?,
        batch_size: fields.one("rows")?,
        shape_class: ShapeClassId(fields.one("key")?),
        priority: fields.one("priority")?,
        deadline: Time::MAX,
        length: 0,
        timeout_ns: fields.one("timeout")?,
        sequence,
    })
}
