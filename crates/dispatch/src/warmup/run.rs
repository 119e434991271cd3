//! Samples on their way through one instance.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use galatea_backend::{Instance, LogLevel};
use galatea_infer::{
    FailureReason, InferenceRequest, PendingRequest, Reply, RequestObserver, RequestTimes,
    ResponseSender, SequenceFlags, SequenceOwner, StateTensor, Status,
};
use galatea_policy::RequestKey;

use super::{Sample, Warmup, failed};
use crate::LogSink;
use crate::assembly::{Assembly, Row};

/// How often a request may be given back to be executed again: a backend that
/// wants more never ends.
const EXECUTIONS_MAX: u32 = 1 << 20;

/// What warming an instance up needs.
pub(crate) struct Warming<'a> {
    pub(crate) warmup: &'a Warmup,
    pub(crate) assembly: Option<&'a Assembly>,
    /// Who counts the requests.
    pub(crate) observer: &'a Arc<dyn RequestObserver>,
    pub(crate) log: &'a LogSink,
}

/// What becomes of a request that an instance got.
enum Event {
    /// A reply came.
    Replied { error: Option<Status>, is_final: bool },
    /// The backend gave it up.
    Released,
    /// The backend wants to execute it again.
    Again(Box<Returned>),
}

struct Returned {
    key: u64,
    request: PendingRequest,
    states: Vec<StateTensor>,
}

/// Takes the requests of sequences back.
#[derive(Debug)]
struct Owner {
    events: Sender<Event>,
    /// Inputs that were added to each request.
    added_inputs: usize,
}

impl SequenceOwner for Owner {
    fn released(&self, _key: u64, _states: Vec<StateTensor>) {
        let _ = self.events.send(Event::Released);
    }

    fn rescheduled(&self, key: u64, mut request: PendingRequest, states: Vec<StateTensor>) {
        let inputs = request.inputs_mut();
        inputs.truncate(inputs.len().saturating_sub(self.added_inputs));
        let _ = self.events.send(Event::Again(Box::new(Returned { key, request, states })));
    }
}

impl Warming<'_> {
    /// Executes every sample as often as it says.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with what the backend answered; the first sample that
    /// fails is the last.
    pub(crate) fn run(&self, instance: &mut dyn Instance, name: &str) -> Result<(), Status> {
        for sample in &self.warmup.samples {
            for iteration in 1..=sample.count {
                let line = format_args!(
                    "model '{}' instance {name} is running warmup sample '{}' for iteration \
                     {iteration}",
                    sample.request.model_name, sample.name
                );
                self.log.write(LogLevel::Verbose(1), line);
                self.execute(sample, instance)?;
            }
        }
        Ok(())
    }

    fn execute(&self, sample: &Sample, instance: &mut dyn Instance) -> Result<(), Status> {
        let (events, inbox) = channel();
        let requests = (0..sample.batch_size).map(|_| self.request(&sample.request, &events));
        let mut errors: Vec<String> = Vec::new();
        let mut unanswered = sample.batch_size;
        let mut note = |event: Event| match event {
            Event::Replied { error, is_final } => {
                errors.extend(error.map(|status| String::from(status.message())));
                unanswered = unanswered.saturating_sub(u32::from(is_final));
            }
            Event::Released | Event::Again(_) => {}
        };
        match self.assembly {
            None => run(instance, requests.collect())?,
            Some(assembly) => {
                let iterative = self.warmup.iterative;
                let sequences =
                    Sequences { sample, assembly, iterative, events: &events, inbox: &inbox };
                sequences.execute(requests, instance, &mut note)?;
            }
        }
        // Dropped requests answer, so all answers come.
        drop(events);
        inbox.iter().for_each(note);
        if unanswered > 0 {
            errors.push(String::from("the backend did not answer"));
        }
        if errors.is_empty() {
            return Ok(());
        }
        let text = format!("{}: {}", failed(&sample.name), errors.join("; "));
        Err(Status::invalid_argument(text))
    }

    fn request(&self, request: &InferenceRequest, events: &Sender<Event>) -> PendingRequest {
        let events = events.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            let is_final = reply.is_final();
            let error = match reply {
                Reply::Response { result, .. } => result.err(),
                Reply::Finished => None,
            };
            let _ = events.send(Event::Replied { error, is_final });
        }));
        let now = Instant::now();
        let times = RequestTimes { arrival: now, queued: now };
        PendingRequest::new(request.clone(), sender, 1, times, self.observer.clone())
    }
}

/// A sample of a model with a sequence batcher: each request is a sequence.
struct Sequences<'a> {
    sample: &'a Sample,
    assembly: &'a Assembly,
    iterative: bool,
    events: &'a Sender<Event>,
    inbox: &'a Receiver<Event>,
}

impl Sequences<'_> {
    fn execute(
        &self,
        requests: impl Iterator<Item = PendingRequest>,
        instance: &mut dyn Instance,
        note: &mut impl FnMut(Event),
    ) -> Result<(), Status> {
        let first = SequenceFlags { start: true, end: !self.iterative };
        let rows = (0..).zip(requests);
        let mut rows: Vec<Row> = rows
            .map(|(key, request)| Row {
                request,
                key: RequestKey(key),
                flags: first,
                states: Vec::new(),
            })
            .collect();
        for _ in 0..EXECUTIONS_MAX {
            let batch = self.assemble(rows);
            let executed = batch.len();
            run(instance, batch)?;
            rows = self.returned(executed, note);
            if rows.is_empty() {
                return Ok(());
            }
        }
        let text =
            format!("{}: its requests are given back again and again", failed(&self.sample.name));
        for row in rows {
            row.request.fail(Status::invalid_argument(text.clone()), FailureReason::Backend);
        }
        Err(Status::invalid_argument(text))
    }

    fn assemble(&self, rows: Vec<Row>) -> Vec<PendingRequest> {
        let owner: Arc<dyn SequenceOwner> = Arc::new(Owner {
            events: self.events.clone(),
            added_inputs: self.assembly.added_inputs(),
        });
        let mut batch = self.assembly.assemble(rows.into_iter().map(Some).collect(), &owner);
        for request in &mut batch {
            for input in request.inputs_mut() {
                let mut replacements = self.sample.replacements.iter();
                if let Some(replacement) = replacements.find(|one| one.name == input.name) {
                    input.clone_from(replacement);
                }
            }
        }
        batch
    }

    /// Waits until so many requests are given back, and returns those that are to
    /// be executed again.
    fn returned(&self, mut executed: usize, note: &mut impl FnMut(Event)) -> Vec<Row> {
        let mut again = Vec::new();
        while executed > 0 {
            let Ok(event) = self.inbox.recv() else { break };
            match event {
                Event::Again(returned) => {
                    let Returned { key, request, states } = *returned;
                    let flags = SequenceFlags::default();
                    again.push(Row { request, key: RequestKey(key), flags, states });
                    executed -= 1;
                }
                Event::Released => executed -= 1,
                Event::Replied { .. } => note(event),
            }
        }
        again
    }
}

/// Lets the instance execute a batch. What it refuses is answered with its
/// reason; what it drops in a panic is answered already.
fn run(instance: &mut dyn Instance, batch: Vec<PendingRequest>) -> Result<(), Status> {
    match catch_unwind(AssertUnwindSafe(|| instance.execute(batch))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(refused)) => {
            for request in refused.requests {
                request.fail(refused.status.clone(), FailureReason::Backend);
            }
            Ok(())
        }
        Err(_) => Err(Status::internal("the instance panicked while it was warmed up")),
    }
}
