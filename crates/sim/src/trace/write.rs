//! Renders a trace.

use std::fmt::{self, Display, Formatter};

use galatea_policy::{
    RequestInfo, RequestRelease, SchedulerEvent, SchedulingMode, SequenceBatcherSpec,
    SequencePosition, SequenceStrategy, Time,
};

use super::SchedulerTrace;
use crate::dynamic_settings;
use crate::setup::SchedulerSetup;

impl Display for SchedulerTrace {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write_setup(formatter, &self.setup)?;
        self.steps.iter().try_for_each(|(now, event)| write_step(formatter, *now, event))
    }
}

fn write_setup(formatter: &mut Formatter<'_>, setup: &SchedulerSetup) -> fmt::Result {
    let spec = &setup.spec;
    let kind = match &spec.mode {
        SchedulingMode::Default => "default",
        SchedulingMode::Dynamic(_) => "dynamic",
        SchedulingMode::Deadline(_) => unreachable!("deadlines have a world of their own"),
        SchedulingMode::Sequence(SequenceBatcherSpec { strategy, .. }) => match strategy {
            SequenceStrategy::Direct { .. } => "direct",
            SequenceStrategy::Oldest { .. } => "oldest",
        },
    };
    let (max, hold) = (spec.max_batch_size, spec.hold_until_queued);
    write!(formatter, "spec {kind} max={max} hold={hold}")?;
    match &spec.mode {
        SchedulingMode::Default | SchedulingMode::Deadline(_) => writeln!(formatter),
        SchedulingMode::Dynamic(settings) => dynamic_settings::write(formatter, setup, settings),
        SchedulingMode::Sequence(settings) => {
            write!(formatter, " backlog={}", spec.hold_until_backlogged)?;
            write_sequence(formatter, settings)
        }
    }
}

fn write_sequence(formatter: &mut Formatter<'_>, settings: &SequenceBatcherSpec) -> fmt::Result {
    let SequenceBatcherSpec { strategy, max_sequence_idle_ns, iterative } = settings;
    let iterative = u8::from(*iterative);
    write!(formatter, " idle={max_sequence_idle_ns} iterative={iterative}")?;
    match strategy {
        SequenceStrategy::Direct { max_queue_delay_ns, minimum_ready_slots } => {
            write!(formatter, " delay={max_queue_delay_ns} minimum={minimum_ready_slots}")?;
        }
        SequenceStrategy::Oldest {
            max_candidate_sequences,
            preferred_batch_sizes,
            max_queue_delay_ns,
        } => {
            write!(formatter, " delay={max_queue_delay_ns} candidates={max_candidate_sequences}")?;
            dynamic_settings::write_preferred(formatter, preferred_batch_sizes)?;
        }
    }
    writeln!(formatter)
}

fn write_step(formatter: &mut Formatter<'_>, now: Time, event: &SchedulerEvent) -> fmt::Result {
    write!(formatter, "{} ", now.0)?;
    match event {
        SchedulerEvent::Enqueue(info) => write_request(formatter, info),
        SchedulerEvent::Cancel(key) => writeln!(formatter, "cancel id={}", Key(key.0)),
        SchedulerEvent::Released { key, release } => {
            let again = u8::from(*release == RequestRelease::Reschedule);
            writeln!(formatter, "released id={} again={again}", Key(key.0))
        }
        SchedulerEvent::LaneFree(instance) => writeln!(formatter, "free id={}", instance.0),
        SchedulerEvent::AddInstance(instance) => writeln!(formatter, "add id={}", instance.0),
        SchedulerEvent::RemoveInstance(instance) => writeln!(formatter, "remove id={}", instance.0),
        SchedulerEvent::PermitGranted(instance) => writeln!(formatter, "grant id={}", instance.0),
        SchedulerEvent::PermitDelayed(instance) => writeln!(formatter, "delay id={}", instance.0),
        SchedulerEvent::Drain => writeln!(formatter, "drain"),
        SchedulerEvent::Tick => writeln!(formatter, "tick"),
    }
}

fn write_request(formatter: &mut Formatter<'_>, info: &RequestInfo) -> fmt::Result {
    let RequestInfo { key, batch_size, shape_class, priority, timeout_ns, sequence, .. } = info;
    write!(
        formatter,
        "request id={} rows={batch_size} key={} priority={priority} timeout={timeout_ns}",
        Key(key.0),
        shape_class.0
    )?;
    if let Some(SequencePosition { sequence, start, end }) = sequence {
        let (start, end) = (u8::from(*start), u8::from(*end));
        write!(formatter, " sequence={} start={start} end={end}", Key(sequence.0))?;
    }
    writeln!(formatter)
}

/// A key, written as its index and generation.
pub(super) struct Key(pub(super) u64);

impl Display for Key {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let (index, generation) = (self.0 & u64::from(u32::MAX), self.0 >> 32);
        match generation {
            0 => write!(formatter, "{index}"),
            _ => write!(formatter, "{index}.{generation}"),
        }
    }
}
