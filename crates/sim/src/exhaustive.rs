//! All orders of a few events, for specifications small enough to try them all.

use galatea_policy::{
    BatchEntry, BatchKey, Event, InstanceId, Release, RequestInfo, RequestKey, SchedulingSpec,
    SequencePosition, Time,
};

use crate::deed::Deed;
use crate::driver::{CorrelationId, Names, Reuse};
use crate::harness::{Harness, Reference};
use crate::setup::Setup;
use crate::trace::Trace;

/// What may happen at each point.
#[derive(Clone, Debug, Default)]
pub struct Alphabet {
    /// Requests that may arrive, any number of times; their keys are made up.
    pub requests: Vec<Letter>,
    /// Whether requests may be cancelled: the first and the last that came.
    pub cancels: bool,
    /// Instances that may come, go and finish.
    pub instances: u32,
    /// Whether the model may unload.
    pub drains: bool,
    /// Whether backends may want a request again.
    pub reschedules: bool,
}

/// A request that may arrive.
#[derive(Copy, Clone, Debug)]
pub struct Letter {
    ticket: RequestInfo,
    words: Words,
}

/// What a request says of its sequence.
#[derive(Copy, Clone, Debug)]
enum Words {
    Nothing,
    Step { id: CorrelationId, start: bool, end: bool },
    Iterative,
}

impl Letter {
    /// A request of so many rows that belongs to no sequence.
    pub fn request(batch_size: u32, batch_key: u32, priority: u64, timeout_ns: u64) -> Letter {
        let ticket = RequestInfo {
            key: RequestKey(0),
            batch_size,
            batch_key: BatchKey(batch_key),
            priority,
            timeout_ns,
            sequence: None,
        };
        Letter { ticket, words: Words::Nothing }
    }

    /// A request of the sequence with that correlation ID. The flags are `^` for
    /// START and `$` for END.
    pub fn step(id: u64, flags: &str) -> Letter {
        let (start, end) = (flags.contains('^'), flags.contains('$'));
        let words = Words::Step { id: CorrelationId(id), start, end };
        Letter { words, ..Letter::request(1, 0, 0, 0) }
    }

    /// An iterative request.
    pub fn iterative() -> Letter {
        Letter { words: Words::Iterative, ..Letter::request(1, 0, 0, 0) }
    }

    /// The same with a time limit of its own.
    #[must_use]
    pub fn timeout(self, timeout_ns: u64) -> Letter {
        Letter { ticket: RequestInfo { timeout_ns, ..self.ticket }, ..self }
    }

    /// The same with another batch key.
    #[must_use]
    pub fn batch_key(self, batch_key: u32) -> Letter {
        Letter { ticket: RequestInfo { batch_key: BatchKey(batch_key), ..self.ticket }, ..self }
    }
}

#[derive(Copy, Clone, Debug)]
enum Choice {
    Send(Letter),
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
    let setup = Setup::from(spec.clone());
    let mut point = Point {
        harness: Harness::new(&setup, Reference::Oracle),
        names: Names::default(),
        executing: Vec::new(),
        arrived: 0,
    };
    let mut explorer = Explorer { alphabet, trace: Trace { setup, steps: Vec::new() }, steps: 0 };
    let result = explorer.take(&mut point, Time(0), Event::AddInstance(InstanceId(0)));
    match result.and_then(|()| explorer.go_deeper(&point, depth)) {
        Ok(()) => Ok(explorer.steps),
        Err(message) => Err(Box::new((explorer.trace, message))),
    }
}

/// Where a sequence of events has led to.
#[derive(Clone, Debug)]
struct Point {
    harness: Harness,
    names: Names,
    /// Steps of sequences that were not given back.
    executing: Vec<RequestKey>,
    arrived: u64,
}

impl Point {
    fn choices(&self, alphabet: &Alphabet) -> Vec<Choice> {
        let mut choices: Vec<Choice> =
            alphabet.requests.iter().copied().map(Choice::Send).collect();
        let mut events = Vec::new();
        if alphabet.cancels && self.arrived > 0 {
            events.push(Event::Cancel(RequestKey(0)));
            events.push(Event::Cancel(RequestKey(self.arrived - 1)));
        }
        for key in &self.executing {
            events.push(Event::Released { key: *key, release: Release::Done });
            if alphabet.reschedules {
                events.push(Event::Released { key: *key, release: Release::Reschedule });
            }
        }
        for id in (0..alphabet.instances).map(InstanceId) {
            events.extend([Event::AddInstance(id), Event::RemoveInstance(id), Event::LaneFree(id)]);
        }
        if alphabet.drains {
            events.push(Event::Drain);
        }
        choices.extend(events.into_iter().map(Choice::Now));
        choices.extend([Choice::AlmostWake, Choice::Wake]);
        choices
    }

    /// What the choice means here, and when it happens; nothing if it can't.
    fn event(&mut self, choice: Choice) -> Option<(Time, Event)> {
        let now = self.harness.now();
        match (choice, self.harness.next_wakeup()) {
            (Choice::Send(letter), _) => Some((now, Event::Enqueue(self.ticket(letter)))),
            (Choice::Now(event), _) => Some((now, event)),
            (Choice::Wake, Some(wakeup)) => Some((wakeup, Event::Tick)),
            (Choice::AlmostWake, Some(wakeup)) if wakeup.0 > now.0 + 1 => {
                Some((Time(wakeup.0 - 1), Event::Tick))
            }
            (Choice::AlmostWake | Choice::Wake, _) => None,
        }
    }

    fn ticket(&mut self, letter: Letter) -> RequestInfo {
        let reuse = Reuse::OtherGeneration;
        let sequence = match letter.words {
            Words::Nothing => None,
            Words::Step { id, start, end } => {
                Some(SequencePosition { sequence: self.names.intern(id, reuse), start, end })
            }
            Words::Iterative => {
                let sequence = self.names.anonymous(reuse);
                Some(SequencePosition { sequence, start: true, end: false })
            }
        };
        self.arrived += 1;
        RequestInfo { key: RequestKey(self.arrived - 1), sequence, ..letter.ticket }
    }

    fn take_note(&mut self, deed: &Deed) {
        match deed {
            Deed::Run { entries, .. } => self.executing.extend(entries.iter().filter_map(step)),
            Deed::Closed(sequence) => self.names.close(*sequence),
            Deed::Ended(sequence) => self.names.end(*sequence),
            Deed::Fail(..) | Deed::Removed(_) | Deed::Drained => {}
        }
    }
}

/// The request, if it will be given back.
fn step(entry: &BatchEntry) -> Option<RequestKey> {
    match entry {
        BatchEntry::Step(step) => Some(step.key),
        BatchEntry::Request(_) | BatchEntry::Padding => None,
    }
}

struct Explorer<'alphabet> {
    alphabet: &'alphabet Alphabet,
    trace: Trace,
    steps: u64,
}

impl Explorer<'_> {
    fn go_deeper(&mut self, point: &Point, depth: u32) -> Result<(), String> {
        if depth == 0 {
            return Ok(());
        }
        for choice in point.choices(self.alphabet) {
            let mut branch = point.clone();
            let Some((time, event)) = branch.event(choice) else { continue };
            if !branch.harness.allows(time, &event) {
                continue;
            }
            self.take(&mut branch, time, event)?;
            self.go_deeper(&branch, depth - 1)?;
            self.trace.steps.pop();
        }
        Ok(())
    }

    fn take(&mut self, point: &mut Point, time: Time, event: Event) -> Result<(), String> {
        self.trace.steps.push((time, event));
        self.steps += 1;
        if let Event::Released { key, .. } = event {
            point.executing.retain(|executing| *executing != key);
        }
        point.harness.step(time, event)?.iter().for_each(|deed| point.take_note(deed));
        Ok(())
    }
}
