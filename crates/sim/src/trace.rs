//! A recorded trace: what happened when, as text and back, repeated and cut down.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use galatea_policy::{
    BatchKey, DynamicSpec, Event, InstanceId, QueuePolicy, RequestKey, SchedulingMode,
    SchedulingSpec, Ticket, Time, TimeoutAction,
};

use crate::harness::{Harness, Reference};

/// A specification and the events that followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// What the scheduler was built from.
    pub spec: SchedulingSpec,
    /// Events in the order of steps.
    pub steps: Vec<(Time, Event)>,
}

impl Trace {
    /// Repeats the trace. Events that no longer make sense, because others were
    /// cut out, are passed over. Returns the trace's hash, or the number of
    /// steps until a promise was broken, and which.
    pub fn replay(&self, reference: Reference) -> Result<u64, (usize, String)> {
        let mut harness = Harness::new(&self.spec, reference);
        for (index, (now, event)) in self.steps.iter().enumerate() {
            if !harness.allows(event) {
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| harness.step(*now, *event)));
            match result {
                Ok(Ok(_)) => {}
                Ok(Err(message)) => return Err((index + 1, message)),
                Err(panic) => return Err((index + 1, panic_text(&panic))),
            }
        }
        Ok(harness.trace_hash())
    }

    /// A shorter trace that fails too, whatever the promise; `self` if none is
    /// found or it does not fail.
    pub fn shrink(&self, reference: Reference) -> Trace {
        let mut best = self.clone();
        let mut chunk = best.steps.len();
        while chunk > 0 {
            if let Err((steps, _)) = best.replay(reference) {
                best.steps.truncate(steps);
            }
            let mut start = 0;
            while start < best.steps.len() {
                let mut shorter = best.clone();
                shorter.steps.drain(start..(start + chunk).min(best.steps.len()));
                if shorter.replay(reference).is_err() {
                    best = shorter;
                } else {
                    start += chunk;
                }
            }
            chunk /= 2;
        }
        best
    }
}

pub(crate) fn panic_text(panic: &Box<dyn Any + Send>) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the scheduler panicked: {}", text.unwrap_or("without words"))
}

impl Display for Trace {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let SchedulingSpec { max_batch_size, mode, hold_until_queued } = &self.spec;
        match mode {
            SchedulingMode::Default => {
                writeln!(formatter, "spec default max={max_batch_size} hold={hold_until_queued}")?
            }
            SchedulingMode::Dynamic(settings) => {
                write!(formatter, "spec dynamic max={max_batch_size} hold={hold_until_queued}")?;
                write!(
                    formatter,
                    " delay={} levels={}",
                    settings.max_queue_delay_ns, settings.priority_levels
                )?;
                write!(formatter, " default={}", settings.default_priority_level)?;
                settings
                    .preferred_batch_sizes
                    .iter()
                    .try_for_each(|size| write!(formatter, " preferred={size}"))?;
                writeln!(formatter)?;
                write_policy(formatter, 0, &settings.default_queue_policy)?;
                let policies = &settings.priority_queue_policies;
                policies
                    .iter()
                    .try_for_each(|(level, policy)| write_policy(formatter, *level, policy))?;
            }
        }
        self.steps.iter().try_for_each(|(now, event)| write_step(formatter, *now, event))
    }
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

fn write_step(formatter: &mut Formatter<'_>, now: Time, event: &Event) -> fmt::Result {
    write!(formatter, "{} ", now.0)?;
    match event {
        Event::Enqueue(Ticket { key, batch_size, batch_key, priority, timeout_ns }) => writeln!(
            formatter,
            "request id={} rows={batch_size} key={} priority={priority} timeout={timeout_ns}",
            key.0, batch_key.0
        ),
        Event::Cancel(key) => writeln!(formatter, "cancel id={}", key.0),
        Event::LaneFree(instance) => writeln!(formatter, "free id={}", instance.0),
        Event::AddInstance(instance) => writeln!(formatter, "add id={}", instance.0),
        Event::RemoveInstance(instance) => writeln!(formatter, "remove id={}", instance.0),
        Event::Drain => writeln!(formatter, "drain"),
        Event::Tick => writeln!(formatter, "tick"),
    }
}

/// A line's `name=number` fields.
struct Fields<'line> {
    line: &'line str,
    fields: Vec<(&'line str, &'line str)>,
}

impl<'line> Fields<'line> {
    fn new(line: &'line str) -> Self {
        Fields {
            line,
            fields: line.split_whitespace().filter_map(|word| word.split_once('=')).collect(),
        }
    }

    fn all<T: FromStr>(&self, name: &str) -> Result<Vec<T>, String> {
        let wrong = |_| format!("{name} is not such a number in {:?}", self.line);
        self.fields
            .iter()
            .filter(|field| field.0 == name)
            .map(|field| field.1.parse().map_err(wrong))
            .collect()
    }

    fn one<T: FromStr>(&self, name: &str) -> Result<T, String> {
        self.all(name)?.pop().ok_or_else(|| format!("{name} is missing in {:?}", self.line))
    }
}

impl FromStr for Trace {
    type Err = String;

    /// Reads what `Display` wrote. Empty lines and lines with # say nothing.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .peekable();
        let mut spec = read_spec(lines.next().ok_or("an empty trace")?)?;
        while let Some(line) = lines.next_if(|line| line.starts_with("policy ")) {
            let SchedulingMode::Dynamic(settings) = &mut spec.mode else {
                return Err(format!("{line:?}: no levels"));
            };
            match Fields::new(line).one("level")? {
                0 => settings.default_queue_policy = read_policy(line)?,
                level => drop(settings.priority_queue_policies.insert(level, read_policy(line)?)),
            }
        }
        Ok(Trace { spec, steps: lines.map(read_step).collect::<Result<_, _>>()? })
    }
}

fn read_spec(line: &str) -> Result<SchedulingSpec, String> {
    let fields = Fields::new(line);
    let mode = match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["spec", "default", ..] => SchedulingMode::Default,
        ["spec", "dynamic", ..] => SchedulingMode::Dynamic(DynamicSpec {
            preferred_batch_sizes: fields.all("preferred")?,
            max_queue_delay_ns: fields.one("delay")?,
            priority_levels: fields.one("levels")?,
            default_priority_level: fields.one("default")?,
            default_queue_policy: QueuePolicy::default(),
            priority_queue_policies: BTreeMap::new(),
        }),
        _ => return Err(format!("{line:?} is not a specification")),
    };
    Ok(SchedulingSpec {
        max_batch_size: fields.one("max")?,
        mode,
        hold_until_queued: fields.one("hold")?,
    })
}

fn read_policy(line: &str) -> Result<QueuePolicy, String> {
    let fields = Fields::new(line);
    Ok(QueuePolicy {
        timeout_action: match line.split_whitespace().nth(1) {
            Some("reject") => TimeoutAction::Reject,
            Some("delay") => TimeoutAction::Delay,
            _ => return Err(format!("{line:?} has no known action")),
        },
        default_timeout_ns: fields.one("timeout")?,
        allow_timeout_override: fields.one::<u8>("override")? != 0,
        max_queue_size: fields.one("size")?,
    })
}

fn read_step(line: &str) -> Result<(Time, Event), String> {
    let fields = Fields::new(line);
    let (time, rest) = line.split_once(' ').ok_or_else(|| format!("{line:?} has no event"))?;
    let time = Time(time.parse().map_err(|_| format!("{line:?} has no time"))?);
    let instance = || fields.one("id").map(InstanceId);
    let event = match rest.split_whitespace().next() {
        Some("request") => Event::Enqueue(Ticket {
            key: RequestKey(fields.one("id")?),
            batch_size: fields.one("rows")?,
            batch_key: BatchKey(fields.one("key")?),
            priority: fields.one("priority")?,
            timeout_ns: fields.one("timeout")?,
        }),
        Some("cancel") => Event::Cancel(RequestKey(fields.one("id")?)),
        Some("free") => Event::LaneFree(instance()?),
        Some("add") => Event::AddInstance(instance()?),
        Some("remove") => Event::RemoveInstance(instance()?),
        Some("drain") => Event::Drain,
        Some("tick") => Event::Tick,
        _ => return Err(format!("{line:?} is not a step")),
    };
    Ok((time, event))
}
