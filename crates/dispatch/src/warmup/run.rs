//! Execution of a model's samples on one instance.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use galatea_backend::{Instance, LogLevel};
use galatea_infer::{
    AdmissionTimes, CancelToken, ExecutionSummary, FailureReason, InferenceRequest, PendingRequest,
    Reply, RequestObserver, ResponseSender, SequenceFlags, SequenceReleaseHook, StateTensor,
    Status,
};
use galatea_policy::{RequestKey, WarmupMeasurement};
use galatea_stdx::Lock;

use super::{PreparedSample, Warmup, failure_prefix};
use crate::LogSink;
use crate::batch::{SequenceAssembler, SequenceRow};

/// The maximum number of times that a request may be rescheduled. A backend that exceeds the limit
/// would presumably never finish.
const EXECUTIONS_MAX: u32 = 1 << 20;

/// The maximum number of a sample's latest executions from which the scheduler learns.
const KEPT_MAX: u32 = 16;

/// The parts needed to warm up an instance.
pub(crate) struct InstanceWarmup<'a> {
    pub(crate) warmup: &'a Warmup,
    pub(crate) assembler: Option<&'a SequenceAssembler>,
    /// The observer that counts the requests.
    pub(crate) observer: &'a Arc<dyn RequestObserver>,
    pub(crate) log: &'a LogSink,
    /// Set when the model is no longer wanted.
    pub(crate) stop: &'a CancelToken,
    /// The durations of executions; `None` if they are already known.
    pub(crate) costs: Option<&'a WarmupCosts>,
}

/// The durations of the samples' executions, on all instances.
#[derive(Debug, Default)]
pub(crate) struct WarmupCosts(Lock<Vec<WarmupMeasurement>>);

impl WarmupCosts {
    /// Keeps the latest durations of a sample's executions on one instance. The first execution
    /// includes the backend's one-time work, so it is used only if there are no others.
    fn add(&self, sample: &PreparedSample, durations_ns: &VecDeque<u64>) {
        let rows = sample.rows.saturating_mul(sample.batch_size);
        let first = usize::from(durations_ns.len() > 1 && sample.count <= KEPT_MAX);
        let measured = durations_ns.iter().skip(first).map(|&duration_ns| WarmupMeasurement {
            rows,
            length: sample.length,
            duration_ns,
        });
        self.0.lock("keep durations").extend(measured);
    }

    pub(crate) fn into_inner(self) -> Vec<WarmupMeasurement> {
        self.0.into_inner()
    }
}

/// An observer that counts sample executions but not their responses, as Triton does.
#[derive(Debug)]
struct ExecutionCounter(Arc<dyn RequestObserver>);

impl RequestObserver for ExecutionCounter {
    fn succeeded(&self, batch_size: u32, times: &AdmissionTimes, execution: &ExecutionSummary) {
        self.0.succeeded(batch_size, times, execution);
    }

    fn failed(&self, times: &AdmissionTimes, reason: FailureReason) {
        self.0.failed(times, reason);
    }
}

/// An event in the life of a sample's request.
enum WarmupEvent {
    /// A reply was delivered.
    Replied { error: Option<Status>, is_final: bool },
    /// The backend released the request.
    Released,
    /// The backend wants to execute the request again.
    Rescheduled(Box<RescheduledRequest>),
}

struct RescheduledRequest {
    key: u64,
    request: PendingRequest,
    states: Vec<StateTensor>,
}

/// Receives the sequence requests that the backend releases.
#[derive(Debug)]
struct WarmupSequenceOwner {
    events: Sender<WarmupEvent>,
    /// The number of inputs added to each request.
    added_input_count: usize,
}

impl SequenceReleaseHook for WarmupSequenceOwner {
    fn released(&self, _key: u64, _states: Vec<StateTensor>) {
        let _ = self.events.send(WarmupEvent::Released);
    }

    fn rescheduled(&self, key: u64, mut request: PendingRequest, states: Vec<StateTensor>) {
        let inputs = request.inputs_mut();
        inputs.truncate(inputs.len().saturating_sub(self.added_input_count));
        let _ = self.events.send(WarmupEvent::Rescheduled(Box::new(RescheduledRequest {
            key,
            request,
            states,
        })));
    }
}

impl InstanceWarmup<'_> {
    /// Executes every sample as many times as the configuration specifies.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the errors of the first sample that fails. `Unavailable` if the load
    /// is stopped.
    pub(crate) fn run(&self, instance: &mut dyn Instance, name: &str) -> Result<(), Status> {
        for sample in &self.warmup.samples {
            let mut durations_ns = VecDeque::new();
            for iteration in 1..=sample.count {
                if self.stop.is_cancelled() {
                    let text = "the model was unloaded, or the server stopped, during its warmup";
                    return Err(Status::unavailable(text));
                }
                let line = format_args!(
                    "model '{}' instance {name} is running warmup sample '{}' for iteration \
                     {iteration}",
                    sample.request.model_name, sample.name
                );
                self.log.write(LogLevel::Verbose(1), line);
                let took = self.execute(sample, instance)?;
                if durations_ns.len() >= KEPT_MAX as usize {
                    durations_ns.pop_front();
                }
                durations_ns
                    .extend(took.map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)));
            }
            if let Some(costs) = self.costs {
                costs.add(sample, &durations_ns);
            }
        }
        Ok(())
    }

    /// Executes a sample once. Returns the duration if it took a single execution.
    fn execute(
        &self,
        sample: &PreparedSample,
        instance: &mut dyn Instance,
    ) -> Result<Option<Duration>, Status> {
        let mut took = None;
        let (events, inbox) = channel();
        let requests = (0..sample.batch_size).map(|_| self.request(&sample.request, &events));
        let mut errors: Vec<String> = Vec::new();
        let mut missing_replies = sample.batch_size;
        let mut record = |event: WarmupEvent| match event {
            WarmupEvent::Replied { error, is_final } => {
                errors.extend(error.map(|status| String::from(status.message())));
                missing_replies = missing_replies.saturating_sub(u32::from(is_final));
            }
            WarmupEvent::Released | WarmupEvent::Rescheduled(_) => {}
        };
        match self.assembler {
            None => {
                let requests: Vec<PendingRequest> = requests.collect();
                let begin = Instant::now();
                run(instance, requests)?;
                took = Some(begin.elapsed());
            }
            Some(assembler) => {
                let is_iterative = self.warmup.is_iterative;
                let sequences = SequenceWarmup {
                    sample,
                    assembler,
                    is_iterative,
                    events: &events,
                    inbox: &inbox,
                };
                sequences.execute(requests, instance, &mut record)?;
            }
        }
        // Dropping requests replies to them, so no reply is missing after this.
        drop(events);
        inbox.iter().for_each(record);
        if missing_replies > 0 {
            errors.push(String::from("the backend did not answer"));
        }
        if errors.is_empty() {
            return Ok(took);
        }
        let text = format!("{}: {}", failure_prefix(&sample.name), errors.join("; "));
        Err(Status::invalid_argument(text))
    }

    fn request(&self, request: &InferenceRequest, events: &Sender<WarmupEvent>) -> PendingRequest {
        let events = events.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            let is_final = reply.is_final();
            let error = match reply {
                Reply::Response { result, .. } => result.err(),
                Reply::Finished => None,
            };
            let _ = events.send(WarmupEvent::Replied { error, is_final });
        }));
        let now = Instant::now();
        let times = AdmissionTimes { arrival: now, queued: now };
        let observer = Arc::new(ExecutionCounter(self.observer.clone()));
        PendingRequest::new(request.clone(), sender, 1, times, observer)
    }
}

/// A sample for a model with a sequence batcher. Each of its requests is a separate sequence.
struct SequenceWarmup<'a> {
    sample: &'a PreparedSample,
    assembler: &'a SequenceAssembler,
    is_iterative: bool,
    events: &'a Sender<WarmupEvent>,
    inbox: &'a Receiver<WarmupEvent>,
}

impl SequenceWarmup<'_> {
    fn execute(
        &self,
        requests: impl Iterator<Item = PendingRequest>,
        instance: &mut dyn Instance,
        record: &mut impl FnMut(WarmupEvent),
    ) -> Result<(), Status> {
        let first = SequenceFlags { start: true, end: !self.is_iterative };
        let rows = (0..).zip(requests);
        let mut rows: Vec<SequenceRow> = rows
            .map(|(key, request)| SequenceRow {
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
            rows = self.wait_released(executed, record);
            if rows.is_empty() {
                return Ok(());
            }
        }
        let text = format!(
            "{}: its requests are given back again and again",
            failure_prefix(&self.sample.name)
        );
        for row in rows {
            row.request.fail(Status::invalid_argument(text.clone()), FailureReason::Backend);
        }
        Err(Status::invalid_argument(text))
    }

    fn assemble(&self, rows: Vec<SequenceRow>) -> Vec<PendingRequest> {
        let owner: Arc<dyn SequenceReleaseHook> = Arc::new(WarmupSequenceOwner {
            events: self.events.clone(),
            added_input_count: self.assembler.added_input_count(),
        });
        let mut batch = self.assembler.assemble(rows.into_iter().map(Some).collect(), &owner);
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

    /// Waits until all executed requests have been released. Returns those that must be executed
    /// again.
    fn wait_released(
        &self,
        mut executed: usize,
        record: &mut impl FnMut(WarmupEvent),
    ) -> Vec<SequenceRow> {
        let mut rescheduled = Vec::new();
        while executed > 0 {
            let Ok(event) = self.inbox.recv() else { break };
            match event {
                WarmupEvent::Rescheduled(request) => {
                    let RescheduledRequest { key, request, states } = *request;
                    let flags = SequenceFlags::default();
                    rescheduled.push(SequenceRow { request, key: RequestKey(key), flags, states });
                    executed -= 1;
                }
                WarmupEvent::Released => executed -= 1,
                WarmupEvent::Replied { .. } => record(event),
            }
        }
        rescheduled
    }
}

/// Executes a batch. Requests that the instance refuses get its error as their reply. Requests
/// dropped during a panic have already received a reply.
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
