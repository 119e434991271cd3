//! All orders of a few events, for specifications small enough to try them all.

use galatea_policy::{BatchKey, Event, InstanceId, RequestKey, SchedulingSpec, Ticket, Time};

use crate::harness::{Harness, Reference};
use crate::trace::Trace;

/// What may happen at each point.
#[derive(Clone, Debug, Default)]
pub struct Alphabet {
    /// Requests that may arrive, any number of times; their keys are made up.
    pub tickets: Vec<Ticket>,
    /// Whether requests may be cancelled: the first and the last that came.
    pub cancels: bool,
    /// Instances that may come, go and finish.
    pub instances: u32,
    /// Whether the model may unload.
    pub drains: bool,
}

impl Alphabet {
    /// A request of so many rows.
    pub fn ticket(batch_size: u32, batch_key: u32, priority: u64, timeout_ns: u64) -> Ticket {
        Ticket {
            key: RequestKey(0),
            batch_size,
            batch_key: BatchKey(batch_key),
            priority,
            timeout_ns,
        }
    }

    fn choices(&self, arrived: u64) -> Vec<Choice> {
        let ticket = |ticket: &Ticket| {
            Choice::Now(Event::Enqueue(Ticket { key: RequestKey(arrived), ..*ticket }))
        };
        let mut choices: Vec<Choice> = self.tickets.iter().map(ticket).collect();
        if self.cancels && arrived > 0 {
            choices.push(Choice::Now(Event::Cancel(RequestKey(0))));
            choices.push(Choice::Now(Event::Cancel(RequestKey(arrived - 1))));
        }
        for id in (0..self.instances).map(InstanceId) {
            choices.extend(
                [Event::AddInstance(id), Event::RemoveInstance(id), Event::LaneFree(id)]
                    .map(Choice::Now),
            );
        }
        if self.drains {
            choices.push(Choice::Now(Event::Drain));
        }
        choices.extend([Choice::AlmostWake, Choice::Wake]);
        choices
    }
}

#[derive(Copy, Clone, Debug)]
enum Choice {
    Now(Event),
    /// A tick just before the scheduler wants to wake.
    AlmostWake,
    /// A tick when the scheduler wants to wake.
    Wake,
}

/// Tries all sequences of `depth` events, with instance 0 there from the start.
/// Returns how many steps that took, or a trace that fails, and why.
pub fn explore(
    spec: &SchedulingSpec,
    alphabet: &Alphabet,
    depth: u32,
) -> Result<u64, Box<(Trace, String)>> {
    let mut explorer =
        Explorer { alphabet, trace: Trace { spec: spec.clone(), steps: Vec::new() }, steps: 0 };
    let mut harness = Harness::new(spec, Reference::Oracle);
    let result = explorer.take(&mut harness, Time(0), Event::AddInstance(InstanceId(0)));
    match result.and_then(|()| explorer.go_deeper(&harness, depth, 0)) {
        Ok(()) => Ok(explorer.steps),
        Err(message) => Err(Box::new((explorer.trace, message))),
    }
}

struct Explorer<'alphabet> {
    alphabet: &'alphabet Alphabet,
    trace: Trace,
    steps: u64,
}

impl Explorer<'_> {
    fn go_deeper(&mut self, harness: &Harness, depth: u32, arrived: u64) -> Result<(), String> {
        if depth == 0 {
            return Ok(());
        }
        for choice in self.alphabet.choices(arrived) {
            let now = harness.now();
            let (time, event) = match (choice, harness.next_wakeup()) {
                (Choice::Now(event), _) => (now, event),
                (Choice::Wake, Some(wakeup)) => (wakeup, Event::Tick),
                (Choice::AlmostWake, Some(wakeup)) if wakeup.0 > now.0 + 1 => {
                    (Time(wakeup.0 - 1), Event::Tick)
                }
                (Choice::AlmostWake | Choice::Wake, _) => continue,
            };
            if !harness.allows(&event) {
                continue;
            }
            let mut branch = harness.clone();
            self.take(&mut branch, time, event)?;
            let came = u64::from(matches!(event, Event::Enqueue(_)));
            self.go_deeper(&branch, depth - 1, arrived + came)?;
            self.trace.steps.pop();
        }
        Ok(())
    }

    fn take(&mut self, harness: &mut Harness, time: Time, event: Event) -> Result<(), String> {
        self.trace.steps.push((time, event));
        self.steps += 1;
        harness.step(time, event).map(drop)
    }
}
