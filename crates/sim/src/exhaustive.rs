//! All orders of a few events, for specifications that are small enough to try them all.

use galatea_policy::{
    BatchEntry, InstanceId, RequestInfo, RequestKey, RequestRelease, SchedulerEvent,
    SchedulingSpec, SequencePosition, ShapeClassId, Time,
};

use crate::decision::SchedulerDecision;
use crate::harness::{Harness, OracleMode};
use crate::keys::{CorrelationId, CorrelationIds, Reuse};
use crate::setup::SchedulerSetup;
use crate::trace::SchedulerTrace;

/// The events to try in each state.
#[derive(Clone, Debug, Default)]
pub struct EventAlphabet {
    /// Requests that may arrive any number of times. Their keys are assigned automatically.
    pub requests: Vec<RequestTemplate>,
    /// True if the first and last requests may be cancelled.
    pub cancels: bool,
    /// The number of instances that may be added, removed and freed.
    pub instances: u32,
    /// True if the model may unload.
    pub drains: bool,
    /// True if backends may reschedule a request.
    pub reschedules: bool,
}

/// A request that may arrive.
#[derive(Copy, Clone, Debug)]
pub struct RequestTemplate {
    info: RequestInfo,
    sequence: SequenceFields,
}

/// The sequence of a request.
#[derive(Copy, Clone, Debug)]
enum SequenceFields {
    None,
    Step { id: CorrelationId, start: bool, end: bool },
    Iterative,
}

impl RequestTemplate {
    /// Creates a request without a sequence.
    pub fn without_sequence(
        batch_size: u32,
        shape_class: u32,
        priority: u64,
        timeout_ns: u64,
    ) -> RequestTemplate {
        let info = RequestInfo {
            key: RequestKey(0),
            batch_size,
            shape_class: ShapeClassId(shape_class),
            priority,
            deadline: Time::MAX,
            length: 0,
            timeout_ns,
            sequence: None,
        };
        RequestTemplate { info, sequence: SequenceFields::None }
    }

    /// Creates a request of the sequence with this correlation ID. The flags are `^` for START and
    /// `$` for END.
    pub fn sequence_step(id: u64, flags: &str) -> RequestTemplate {
        let (start, end) = (flags.contains('^'), flags.contains('$'));
        let sequence = SequenceFields::Step { id: CorrelationId(id), start, end };
        RequestTemplate { sequence, ..RequestTemplate::without_sequence(1, 0, 0, 0) }
    }

    /// Creates an iterative request.
    pub fn iterative() -> RequestTemplate {
        RequestTemplate {
            sequence: SequenceFields::Iterative,
            ..RequestTemplate::without_sequence(1, 0, 0, 0)
        }
    }

    /// Returns the same request with its own timeout.
    #[must_use]
    pub fn with_timeout(self, timeout_ns: u64) -> RequestTemplate {
        RequestTemplate { info: RequestInfo { timeout_ns, ..self.info }, ..self }
    }

    /// Returns the same request with another shape class.
    #[must_use]
    pub fn with_shape_class(self, shape_class: u32) -> RequestTemplate {
        RequestTemplate {
            info: RequestInfo { shape_class: ShapeClassId(shape_class), ..self.info },
            ..self
        }
    }
}

#[derive(Copy, Clone, Debug)]
enum Branch {
    Send(RequestTemplate),
    Step(SchedulerEvent),
    /// A tick just before the scheduler's wake-up.
    BeforeWakeup,
    /// A tick at the scheduler's wake-up.
    Wakeup,
}

/// Tries all event sequences of length `depth`, with instance 0 present from the start. Returns the
/// number of steps, or a failing trace and its message.
pub fn explore(
    spec: &SchedulingSpec,
    alphabet: &EventAlphabet,
    depth: u32,
) -> Result<u64, Box<(SchedulerTrace, String)>> {
    let setup = SchedulerSetup::from(spec.clone());
    let mut state = ExploredState {
        harness: Harness::new(&setup, OracleMode::Oracle),
        correlation_ids: CorrelationIds::default(),
        executing: Vec::new(),
        arrived: 0,
    };
    let mut explorer =
        Explorer { alphabet, trace: SchedulerTrace { setup, steps: Vec::new() }, steps: 0 };
    let result = explorer.step(&mut state, Time(0), SchedulerEvent::AddInstance(InstanceId(0)));
    match result.and_then(|()| explorer.explore(&state, depth)) {
        Ok(()) => Ok(explorer.steps),
        Err(message) => Err(Box::new((explorer.trace, message))),
    }
}

/// The state after a number of events.
#[derive(Clone, Debug)]
struct ExploredState {
    harness: Harness,
    correlation_ids: CorrelationIds,
    /// Sequence steps that haven't been released.
    executing: Vec<RequestKey>,
    arrived: u64,
}

impl ExploredState {
    fn choices(&self, alphabet: &EventAlphabet) -> Vec<Branch> {
        let mut choices: Vec<Branch> =
            alphabet.requests.iter().copied().map(Branch::Send).collect();
        let mut events = Vec::new();
        if alphabet.cancels && self.arrived > 0 {
            events.push(SchedulerEvent::Cancel(RequestKey(0)));
            events.push(SchedulerEvent::Cancel(RequestKey(self.arrived - 1)));
        }
        for key in &self.executing {
            events.push(SchedulerEvent::Released { key: *key, release: RequestRelease::Done });
            if alphabet.reschedules {
                events.push(SchedulerEvent::Released {
                    key: *key,
                    release: RequestRelease::Reschedule,
                });
            }
        }
        for id in (0..alphabet.instances).map(InstanceId) {
            events.extend([
                SchedulerEvent::AddInstance(id),
                SchedulerEvent::RemoveInstance(id),
                SchedulerEvent::LaneFree(id),
            ]);
        }
        if alphabet.drains {
            events.push(SchedulerEvent::Drain);
        }
        choices.extend(events.into_iter().map(Branch::Step));
        choices.extend([Branch::BeforeWakeup, Branch::Wakeup]);
        choices
    }

    /// Returns the event for a choice and its time; `None` if the choice is impossible.
    fn event(&mut self, choice: Branch) -> Option<(Time, SchedulerEvent)> {
        let now = self.harness.now();
        match (choice, self.harness.next_wakeup()) {
            (Branch::Send(template), _) => {
                Some((now, SchedulerEvent::Enqueue(self.request_info(template))))
            }
            (Branch::Step(event), _) => Some((now, event)),
            (Branch::Wakeup, Some(wakeup)) => Some((wakeup, SchedulerEvent::Tick)),
            (Branch::BeforeWakeup, Some(wakeup)) if wakeup.0 > now.0 + 1 => {
                Some((Time(wakeup.0 - 1), SchedulerEvent::Tick))
            }
            (Branch::BeforeWakeup | Branch::Wakeup, _) => None,
        }
    }

    fn request_info(&mut self, template: RequestTemplate) -> RequestInfo {
        let reuse = Reuse::OtherGeneration;
        let sequence = match template.sequence {
            SequenceFields::None => None,
            SequenceFields::Step { id, start, end } => Some(SequencePosition {
                sequence: self.correlation_ids.intern(id, reuse),
                start,
                end,
            }),
            SequenceFields::Iterative => {
                let sequence = self.correlation_ids.anonymous(reuse);
                Some(SequencePosition { sequence, start: true, end: false })
            }
        };
        self.arrived += 1;
        RequestInfo { key: RequestKey(self.arrived - 1), sequence, ..template.info }
    }

    fn apply(&mut self, decision: &SchedulerDecision) {
        match decision {
            SchedulerDecision::Execute { entries, .. } => {
                self.executing.extend(entries.iter().filter_map(step))
            }
            SchedulerDecision::SequenceClosed(sequence) => self.correlation_ids.close(*sequence),
            SchedulerDecision::SequenceEnded(sequence) => self.correlation_ids.end(*sequence),
            SchedulerDecision::Fail(..)
            | SchedulerDecision::InstanceRemoved(_)
            | SchedulerDecision::Drained => {}
        }
    }
}

/// Returns the request, if it will be released.
fn step(entry: &BatchEntry) -> Option<RequestKey> {
    match entry {
        BatchEntry::Step(step) => Some(step.key),
        BatchEntry::Request(_) | BatchEntry::Padding => None,
    }
}

struct Explorer<'alphabet> {
    alphabet: &'alphabet EventAlphabet,
    trace: SchedulerTrace,
    steps: u64,
}

impl Explorer<'_> {
    fn explore(&mut self, state: &ExploredState, depth: u32) -> Result<(), String> {
        if depth == 0 {
            return Ok(());
        }
        for choice in state.choices(self.alphabet) {
            let mut branch = state.clone();
            let Some((time, event)) = branch.event(choice) else { continue };
            if !branch.harness.allows(time, &event) {
                continue;
            }
            self.step(&mut branch, time, event)?;
            self.explore(&branch, depth - 1)?;
            self.trace.steps.pop();
        }
        Ok(())
    }

    fn step(
        &mut self,
        state: &mut ExploredState,
        time: Time,
        event: SchedulerEvent,
    ) -> Result<(), String> {
        self.trace.steps.push((time, event));
        self.steps += 1;
        if let SchedulerEvent::Released { key, .. } = event {
            state.executing.retain(|executing| *executing != key);
        }
        state.harness.step(time, event)?.iter().for_each(|decision| state.apply(decision));
        Ok(())
    }
}
