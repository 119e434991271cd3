//! The one owned thing that travels from admission to the backend.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_tensor::{Buffer, DataType, Shape};

use crate::{
    CancelToken, CorrelationId, FailureReason, InferenceRequest, InferenceResponse, InputTensor,
    ResponseSender, ResponseSink, SequenceFlags, Status, Trace,
};

/// An admitted request with its sender: what the engine queues and what a
/// backend receives.
///
/// Dropping it releases the request; if its sender is still inside, the
/// client gets an internal error.
#[derive(Debug)]
pub struct PendingRequest {
    request: InferenceRequest,
    /// Taken by the final answer. Padding never had one.
    responder: Option<Responder>,
    batch_size: u32,
    /// The sequence that it is a step of; set while a backend has it.
    step: Option<Box<SequenceContext>>,
    kind: Kind,
    /// Told of its execution and of its end.
    trace: Option<Arc<Trace>>,
}

/// Whether anybody asked for a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A client did.
    Asked,
    /// Nobody did.
    Padding,
}

/// What a request answers through: to be taken out where responses go on when
/// the request itself is released.
///
/// Dropping it unfinished answers the client with an internal error.
#[derive(Debug)]
pub struct Responder {
    sender: Option<ResponseSender>,
    statistics: StatisticsReporter,
    /// Kept here too, so that its hooks are cleared when nothing is left to
    /// cancel.
    cancel: CancelToken,
}

/// Where a request is counted, for backends that report how it went apart from
/// answering it.
#[derive(Clone, Debug)]
pub struct StatisticsReporter {
    batch_size: u32,
    times: RequestTimes,
    observer: Arc<dyn RequestObserver>,
    /// Whoever made the request as a part of another one.
    execution_observer: Option<Arc<dyn ExecutionObserver>>,
}

impl StatisticsReporter {
    /// Counts a request that was executed without an error.
    pub fn report_success(&self, execution: &ExecutionSummary) {
        self.observer.succeeded(self.batch_size, &self.times, execution);
        if let Some(execution_observer) = &self.execution_observer {
            execution_observer.executed(execution);
        }
    }

    /// Counts a request that ended with an error.
    pub fn report_failure(&self, reason: FailureReason) {
        self.observer.failed(&self.times, reason);
    }

    /// Another responder to the same request: it goes on with the request, while
    /// the first one stays behind the sink.
    #[must_use]
    pub fn responder(&self, sink: Box<dyn ResponseSink>) -> Responder {
        Responder {
            sender: Some(ResponseSender::new(sink)),
            statistics: self.clone(),
            cancel: CancelToken::default(),
        }
    }
}

/// How one execution stands in its sequence, and the sequence's state.
#[derive(Debug)]
pub struct SequenceContext {
    /// The sequence's identity.
    pub correlation_id: CorrelationId,
    /// Whether the sequence begins or ends with this execution.
    pub flags: SequenceFlags,
    /// The sequence's implicit state: on the way in, what its previous request
    /// left; [`PendingRequest::update_state`] replaces it.
    pub states: Vec<StateTensor>,
    /// Whom to tell when the request is released, and its name there.
    pub owner: Arc<dyn SequenceOwner>,
    /// The request's name with its owner.
    pub key: u64,
    /// Whether the request may be rescheduled.
    pub iterative: bool,
}

/// One tensor of a sequence's implicit state.
#[derive(Clone, Debug)]
pub struct StateTensor {
    /// The input that it is fed to.
    pub input_name: Arc<str>,
    /// The output that it comes from.
    pub output_name: Arc<str>,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with a batch dimension of 1 if the model has batches.
    pub shape: Shape,
    /// Its elements, laid out like an input's.
    pub data: Buffer,
}

/// Who takes the requests of sequences back from the backend.
///
/// Called on whichever thread releases a request, with no lock of the caller's
/// held; it must not block.
pub trait SequenceOwner: Send + Sync + std::fmt::Debug {
    /// The backend is done with the request; `states` go on with its sequence.
    fn released(&self, key: u64, states: Vec<StateTensor>);
    /// The request is to be executed again, after others that wait.
    fn rescheduled(&self, key: u64, request: PendingRequest, states: Vec<StateTensor>);
}

/// When a request reached the stations before the backend.
#[derive(Copy, Clone, Debug)]
pub struct RequestTimes {
    /// When the server received it.
    pub arrival: Instant,
    /// When it entered its model's queue.
    pub queued: Instant,
}

/// When a backend passed the stages of one execution.
#[derive(Copy, Clone, Debug)]
pub struct ExecutionTimes {
    /// The batch was handed over.
    pub start: Instant,
    /// The inputs are in place and computing begins.
    pub compute_start: Instant,
    /// Computing is done and outputs are collected.
    pub compute_end: Instant,
    /// The outputs are ready to be sent.
    pub end: Instant,
}

impl ExecutionTimes {
    /// Time spent on gathering inputs.
    #[must_use]
    pub fn input(&self) -> Duration {
        self.compute_start.saturating_duration_since(self.start)
    }

    /// Time spent on computing.
    #[must_use]
    pub fn infer(&self) -> Duration {
        self.compute_end.saturating_duration_since(self.compute_start)
    }

    /// Time spent on collecting outputs.
    #[must_use]
    pub fn output(&self) -> Duration {
        self.end.saturating_duration_since(self.compute_end)
    }
}

/// How a request's execution went: that of one batch, or all that were made for
/// it together.
#[derive(Copy, Clone, Debug)]
pub struct ExecutionSummary {
    /// It left its model's queue.
    pub start: Instant,
    /// It is done.
    pub end: Instant,
    /// Time spent on gathering inputs.
    pub input: Duration,
    /// Time spent on computing.
    pub infer: Duration,
    /// Time spent on collecting outputs.
    pub output: Duration,
}

impl From<&ExecutionTimes> for ExecutionSummary {
    fn from(times: &ExecutionTimes) -> Self {
        Self {
            start: times.start,
            end: times.end,
            input: times.input(),
            infer: times.infer(),
            output: times.output(),
        }
    }
}

/// Whoever made a request as a part of another one, and keeps the books of that.
pub trait ExecutionObserver: Send + Sync + std::fmt::Debug {
    /// The request was executed and answered without an error.
    fn executed(&self, execution: &ExecutionSummary);
}

/// Who keeps the books of a model's requests; also what keeps the model
/// loaded while a request of its is on the way.
pub trait RequestObserver: Send + Sync + std::fmt::Debug {
    /// A request was executed and answered without an error.
    fn succeeded(&self, batch_size: u32, times: &RequestTimes, execution: &ExecutionSummary);
    /// A request ended with an error.
    fn failed(&self, times: &RequestTimes, reason: FailureReason);
}

impl PendingRequest {
    /// Joins an admitted request with its sender.
    ///
    /// `batch_size` is the request's size in its first dimension, 1 for a
    /// model without batching.
    pub fn new(
        mut request: InferenceRequest,
        sender: ResponseSender,
        batch_size: u32,
        times: RequestTimes,
        observer: Arc<dyn RequestObserver>,
    ) -> Self {
        let cancel = request.cancel.clone();
        let (execution_observer, trace) = (request.execution_observer.take(), request.trace.take());
        let sender = Some(sender);
        let statistics = StatisticsReporter { batch_size, times, observer, execution_observer };
        let responder = Responder { sender, statistics, cancel };
        let responder = Some(responder);
        Self { request, responder, batch_size, step: None, kind: Kind::Asked, trace }
    }

    /// A row that nobody asked for: it keeps the other rows of a direct
    /// sequence batch in their slots. Whatever it is answered is dropped.
    ///
    /// `request` has inputs of the right types and shapes; their contents mean
    /// nothing.
    #[must_use]
    pub fn padding(request: InferenceRequest) -> Self {
        let kind = Kind::Padding;
        Self { request, responder: None, batch_size: 1, step: None, kind, trace: None }
    }

    /// A copy of a request that is queued, for whoever only looks at it: nothing
    /// is answered through it.
    #[must_use]
    pub fn for_inspection(mut request: InferenceRequest, batch_size: u32) -> Self {
        (request.execution_observer, request.trace) = (None, None);
        Self { request, responder: None, batch_size, step: None, kind: Kind::Asked, trace: None }
    }

    /// What the client asked for.
    #[must_use]
    pub const fn request(&self) -> &InferenceRequest {
        &self.request
    }

    /// For the engine, which adds a sequence's controls and states to the
    /// inputs before it hands the request to a backend.
    pub const fn inputs_mut(&mut self) -> &mut Vec<InputTensor> {
        &mut self.request.inputs
    }

    /// How many batch elements it brings.
    #[must_use]
    pub const fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// When it passed the stations so far; `None` for padding and for a request
    /// whose responder was taken.
    #[must_use]
    pub fn times(&self) -> Option<RequestTimes> {
        self.responder.as_ref().map(|responder| responder.statistics.times)
    }

    /// Whether this row is only there to keep others in their slots.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        matches!(self.kind, Kind::Padding)
    }

    /// How this execution stands in its sequence, if the model has a sequence
    /// batcher and the row is not padding.
    #[must_use]
    pub fn step(&self) -> Option<&SequenceContext> {
        self.step.as_deref()
    }

    /// For the engine: makes the request a step of its sequence until it is
    /// released.
    pub fn begin_step(&mut self, step: Box<SequenceContext>) {
        assert!(self.step.is_none(), "a request is one step at a time");
        self.step = Some(step);
    }

    /// Replaces a state of the request's sequence: the next request sees it
    /// once this one is released.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the sequence has no state that comes from the
    /// output `output_name`. Padding has every state and forgets it.
    pub fn update_state(
        &mut self,
        output_name: &str,
        shape: Shape,
        data: Buffer,
    ) -> Result<(), Status> {
        if self.is_padding() {
            return Ok(());
        }
        let states = self.step.as_mut().map(|step| &mut step.states);
        let state = states
            .and_then(|states| states.iter_mut().find(|one| &*one.output_name == output_name))
            .ok_or_else(|| {
                Status::invalid_argument(format!(
                    "the sequence has no state with the output name '{output_name}'"
                ))
            })?;
        state.shape = shape;
        state.data = data;
        Ok(())
    }

    /// Sends a response that others will follow. Only for decoupled models.
    pub fn respond(&mut self, result: Result<InferenceResponse, Status>) {
        if let Some(responder) = &mut self.responder {
            responder.respond(result);
        }
    }

    /// Takes out what the request is answered through. The request can then be
    /// released while its responses go on.
    ///
    /// `None` for padding, which nobody waits for.
    pub const fn take_responder(&mut self) -> Option<Responder> {
        self.responder.take()
    }

    /// Takes back what [`PendingRequest::take_responder`] took out, because the
    /// request goes on.
    pub fn restore_responder(&mut self, responder: Responder) {
        self.responder = Some(responder);
    }

    /// Who is told where the request is.
    #[must_use]
    pub const fn trace(&self) -> Option<&Arc<Trace>> {
        self.trace.as_ref()
    }

    /// Takes the trace out, to be ended when all that was made of the request is
    /// done. For whoever takes the responder and lets the request go.
    pub const fn take_trace(&mut self) -> Option<Arc<Trace>> {
        self.trace.take()
    }

    /// Answers the request with its last or only response, counts it and
    /// releases it.
    ///
    /// It is counted first: whoever has the response sees it in the
    /// statistics.
    pub fn complete(
        mut self,
        result: Result<InferenceResponse, Status>,
        execution: &ExecutionTimes,
    ) {
        if let Some(responder) = self.responder.take() {
            responder.complete(result, execution);
        }
        if let Some(trace) = &self.trace {
            trace.record_execution(execution);
        }
    }

    /// Ends the request without a further response, counts it as a success and
    /// releases it. Only for decoupled models.
    pub fn finish(mut self, execution: &ExecutionTimes) {
        if let Some(responder) = self.responder.take() {
            responder.finish(execution);
        }
        if let Some(trace) = &self.trace {
            trace.record_execution(execution);
        }
    }

    /// Ends the request with an error before it was executed, and counts it
    /// under `reason`.
    pub fn fail(mut self, status: Status, reason: FailureReason) {
        if let Some(responder) = self.responder.take() {
            responder.fail(status, reason);
        }
    }

    /// Gives the request back to be executed again. Only with iterative
    /// sequences; padding is simply dropped.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with the request, if its model's sequences are not
    /// iterative.
    pub fn reschedule(mut self) -> Result<(), (Box<Self>, Status)> {
        if self.is_padding() {
            return Ok(());
        }
        match self.step.take() {
            Some(step) if step.iterative => {
                let SequenceContext { states, owner, key, .. } = *step;
                owner.rescheduled(key, self, states);
                Ok(())
            }
            step => {
                self.step = step;
                let status = Status::invalid_argument(format!(
                    "{}a request can only be rescheduled by a model with sequence_batching \
                     iterative_sequence, which '{}' is not",
                    self.request.log_prefix(),
                    self.request.model_name
                ));
                Err((Box::new(self), status))
            }
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        // The answer first: whoever is told of the release may stop the model.
        drop(self.responder.take());
        if let Some(trace) = self.trace.take() {
            trace.end();
        }
        if let Some(step) = self.step.take() {
            let SequenceContext { states, owner, key, .. } = *step;
            owner.released(key, states);
        }
    }
}

impl Responder {
    /// Sends a response that others will follow. Only for decoupled models.
    pub fn respond(&mut self, result: Result<InferenceResponse, Status>) {
        if let Some(sender) = &mut self.sender {
            sender.send(result);
        }
    }

    /// Sends the last or only response and counts the request.
    pub fn complete(
        mut self,
        result: Result<InferenceResponse, Status>,
        execution: impl Into<ExecutionSummary>,
    ) {
        match &result {
            Ok(_) => self.statistics.report_success(&execution.into()),
            Err(_) => self.statistics.report_failure(FailureReason::Backend),
        }
        if let Some(sender) = self.sender.take() {
            sender.send_final(result);
        }
    }

    /// Ends the request without a further response and counts it as a success.
    pub fn finish(self, execution: impl Into<ExecutionSummary>) {
        self.statistics.report_success(&execution.into());
        self.finish_unrecorded();
    }

    /// Whoever stands behind the sink, if they can be known again.
    #[must_use]
    pub fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.sender.as_ref().and_then(ResponseSender::underlying)
    }

    /// Ends without an answer and without counting: for who stands behind the sink
    /// and answers otherwise.
    pub fn discard(mut self) {
        if let Some(sender) = self.sender.take() {
            sender.discard();
        }
    }

    /// Where the request is counted.
    #[must_use]
    pub const fn statistics(&self) -> &StatisticsReporter {
        &self.statistics
    }

    /// Sends the last or only response without counting the request: whoever has
    /// its [`StatisticsReporter`] does that.
    pub fn complete_unrecorded(mut self, result: Result<InferenceResponse, Status>) {
        if let Some(sender) = self.sender.take() {
            sender.send_final(result);
        }
    }

    /// Ends the request without a further response and without counting it.
    pub fn finish_unrecorded(mut self) {
        if let Some(sender) = self.sender.take() {
            sender.finish();
        }
    }

    /// Ends the request with an error and counts it under `reason`.
    pub fn fail(mut self, status: Status, reason: FailureReason) {
        self.statistics.report_failure(reason);
        if let Some(sender) = self.sender.take() {
            sender.fail(status);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.cancel.clear_hooks();
        if self.sender.is_some() {
            self.statistics.report_failure(FailureReason::Other);
        }
    }
}
