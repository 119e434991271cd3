//! The pending request: the one owned value that travels from admission to the
//! backend.
//!
//! A request does not keep its model version loaded. The version's dispatcher outlives the last
//! handle until it has served all requests.

use std::sync::Arc;
use std::time::Instant;

use galatea_tensor::{Buffer, DataType, Shape};

use crate::{
    AdmissionTimes, CorrelationId, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, InputTensor, RequestObserver, Responder, ResponseSender, SequenceFlags,
    StatisticsReporter, Status, Trace,
};

/// An admitted request together with its sender, which the engine queues and a backend receives.
///
/// Dropping it releases the request. If it still has its sender, the caller gets
/// an internal error.
#[derive(Debug)]
pub struct PendingRequest {
    /// Boxed because the request is large and is moved about a dozen times.
    parts: Box<PendingParts>,
}

#[derive(Debug)]
struct PendingParts {
    request: Box<InferenceRequest>,
    /// The responder, taken by the final reply. Padding never has a responder.
    responder: Option<Responder>,
    batch_size: u32,
    /// The request's sequence; set while a backend has the request.
    sequence: Option<Box<SequenceContext>>,
    /// True for padding, which no client sent: it fills a row of a sequence batch.
    is_padding: bool,
    /// The trace that records the request's execution and end.
    trace: Option<Arc<Trace>>,
}

/// The sequence of a request that a backend executes.
#[derive(Debug)]
pub struct SequenceContext {
    /// The correlation ID of the sequence.
    pub correlation_id: CorrelationId,
    /// True if the sequence begins or ends with this execution.
    pub flags: SequenceFlags,
    /// The sequence's implicit state after the previous request. [`PendingRequest::update_state`]
    /// replaces it.
    pub states: Vec<StateTensor>,
    /// Notified when the request is released.
    pub owner: Arc<dyn SequenceReleaseHook>,
    /// The owner's key of the request.
    pub key: u64,
    /// True if the request may be rescheduled.
    pub iterative: bool,
}

/// One tensor of a sequence's implicit state.
#[derive(Clone, Debug)]
pub struct StateTensor {
    /// The input that receives the state.
    pub input_name: Arc<str>,
    /// The output that produces the state.
    pub output_name: Arc<str>,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with a batch dimension of 1 if the model has batches.
    pub shape: Shape,
    /// Its elements, laid out like an input's.
    pub data: Buffer,
}

/// Takes sequence requests back from the backend.
///
/// Called without locks, on the thread that releases a request. Must not block.
pub trait SequenceReleaseHook: Send + Sync + std::fmt::Debug {
    /// Called when the backend has released the request; `states` are its sequence's states.
    fn released(&self, key: u64, states: Vec<StateTensor>);
    /// Called when the request must be executed again, after other waiting requests.
    fn rescheduled(&self, key: u64, request: PendingRequest, states: Vec<StateTensor>);
}

impl PendingRequest {
    /// Combines an admitted request with its sender.
    ///
    /// `batch_size` is the size of the request's first dimension, or 1 for a model without
    /// batching.
    pub fn new(
        request: impl Into<Box<InferenceRequest>>,
        sender: ResponseSender,
        batch_size: u32,
        times: AdmissionTimes,
        observer: Arc<dyn RequestObserver>,
    ) -> Self {
        let mut request = request.into();
        let cancel = request.cancel.clone();
        let (execution_observer, trace) = (request.execution_observer.take(), request.trace.take());
        let statistics = StatisticsReporter { batch_size, times, observer, execution_observer };
        let responder = Some(Responder::new(sender, statistics, cancel));
        Self::of(PendingParts {
            request,
            responder,
            batch_size,
            sequence: None,
            is_padding: false,
            trace,
        })
    }

    fn of(parts: PendingParts) -> Self {
        Self { parts: Box::new(parts) }
    }

    /// Makes a padding row, which keeps the other rows of a direct sequence batch
    /// in their slots. Responses to it are dropped.
    ///
    /// `request` has inputs of the right types and shapes with arbitrary contents.
    #[must_use]
    pub fn new_padding(request: impl Into<Box<InferenceRequest>>) -> Self {
        let mut padding = Self::without_responder(request.into(), 1);
        padding.parts.is_padding = true;
        padding
    }

    /// Makes a copy of a queued request, which can be read but can't reply.
    #[must_use]
    pub fn read_only_copy(request: impl Into<Box<InferenceRequest>>, batch_size: u32) -> Self {
        let mut request = request.into();
        (request.execution_observer, request.trace) = (None, None);
        Self::without_responder(request, batch_size)
    }

    fn without_responder(request: Box<InferenceRequest>, batch_size: u32) -> Self {
        let (responder, sequence, trace) = (None, None, None);
        Self::of(PendingParts {
            request,
            responder,
            batch_size,
            sequence,
            is_padding: false,
            trace,
        })
    }

    /// The request.
    #[must_use]
    pub const fn request(&self) -> &InferenceRequest {
        &self.parts.request
    }

    /// The inputs. The engine adds a sequence's controls and states to them before it hands the
    /// request to a backend.
    pub const fn inputs_mut(&mut self) -> &mut Vec<InputTensor> {
        &mut self.parts.request.inputs
    }

    /// Limits the timeout that the backend sees to the time left before the deadline. The engine
    /// calls this for models that use deadlines.
    pub fn limit_timeout(&mut self, now: Instant) {
        let Some(deadline) = self.parts.request.deadline.instant() else { return };
        // 0 would mean no timeout.
        let rest = deadline.saturating_duration_since(now).as_micros().max(1);
        let rest = u64::try_from(rest).unwrap_or(u64::MAX);
        let timeout = &mut self.parts.request.timeout_microseconds;
        *timeout = if *timeout == 0 { rest } else { rest.min(*timeout) };
    }

    /// The number of batch elements.
    #[must_use]
    pub const fn batch_size(&self) -> u32 {
        self.parts.batch_size
    }

    /// The times at which the request passed trace points; `None` for padding and for a request
    /// whose responder has been taken.
    #[must_use]
    pub fn admission_times(&self) -> Option<AdmissionTimes> {
        self.parts.responder.as_ref().map(|responder| responder.statistics().times)
    }

    /// Wraps the observer that records the statistics. Has no effect on padding, or on a request
    /// whose responder has been taken.
    pub fn wrap_observer(
        &mut self,
        wrap: impl FnOnce(Arc<dyn RequestObserver>) -> Arc<dyn RequestObserver>,
    ) {
        if let Some(responder) = &mut self.parts.responder {
            responder.observe(wrap);
        }
    }

    /// Returns true if this row only keeps other rows in their slots.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        self.parts.is_padding
    }

    /// The sequence of this execution, if the model has a sequence batcher and the
    /// row is not padding.
    #[must_use]
    pub fn sequence(&self) -> Option<&SequenceContext> {
        self.parts.sequence.as_deref()
    }

    /// Makes the request a step of its sequence until it is released. Called by the engine.
    pub fn begin_sequence_step(&mut self, sequence: Box<SequenceContext>) {
        assert!(self.parts.sequence.is_none(), "a request is one step at a time");
        self.parts.sequence = Some(sequence);
    }

    /// Replaces a state of the request's sequence. The sequence's next request sees the new state
    /// after this one is released.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the sequence has no state with the output name
    /// `output_name`. Padding accepts every state and discards it.
    pub fn update_state(
        &mut self,
        output_name: &str,
        shape: Shape,
        data: Buffer,
    ) -> Result<(), Status> {
        if self.is_padding() {
            return Ok(());
        }
        let states = self.parts.sequence.as_mut().map(|sequence| &mut sequence.states);
        let state = states
            .and_then(|states| states.iter_mut().find(|state| &*state.output_name == output_name))
            .ok_or_else(|| {
                Status::invalid_argument(format!(
                    "the sequence has no state with the output name '{output_name}'"
                ))
            })?;
        state.shape = shape;
        state.data = data;
        Ok(())
    }

    /// Sends a response that is not the last. Only for decoupled models.
    pub fn respond_nonfinal(&mut self, result: Result<InferenceResponse, Status>) {
        if let Some(responder) = &mut self.parts.responder {
            responder.respond_nonfinal(result);
        }
    }

    /// Takes the responder out, so that responses can follow the release of the request.
    ///
    /// `None` for padding, which has no caller.
    pub const fn take_responder(&mut self) -> Option<Responder> {
        self.parts.responder.take()
    }

    /// Puts back the responder that [`PendingRequest::take_responder`] took out.
    pub fn restore_responder(&mut self, responder: Responder) {
        self.parts.responder = Some(responder);
    }

    /// Inserts a layer between the replies and their receiver.
    pub fn wrap_sender(&mut self, wrap: impl FnOnce(ResponseSender) -> ResponseSender) {
        if let Some(responder) = &mut self.parts.responder {
            responder.wrap_sender(wrap);
        }
    }

    /// The request's trace.
    #[must_use]
    pub const fn trace(&self) -> Option<&Arc<Trace>> {
        self.parts.trace.as_ref()
    }

    /// Takes the trace out, so that it can end after the request is released. Intended for backends
    /// that also take the responder.
    pub const fn take_trace(&mut self) -> Option<Arc<Trace>> {
        self.parts.trace.take()
    }

    /// Records the request's statistics, sends the last or only response and
    /// releases the request.
    ///
    /// The order matters: a client that has the response sees it in the statistics, and the
    /// request's input regions are no longer in use.
    pub fn complete(
        mut self,
        result: Result<InferenceResponse, Status>,
        execution: &ExecutionTimes,
    ) {
        self.give_up_regions();
        if let Some(responder) = self.parts.responder.take() {
            responder.complete(result, execution);
        }
        if let Some(trace) = &self.parts.trace {
            trace.record_execution(execution);
        }
    }

    /// Records a success, ends the request without a further response and releases it. Only for
    /// decoupled models.
    pub fn finish_without_response(mut self, execution: &ExecutionTimes) {
        self.give_up_regions();
        if let Some(responder) = self.parts.responder.take() {
            responder.finish_without_response(execution);
        }
        if let Some(trace) = &self.parts.trace {
            trace.record_execution(execution);
        }
    }

    /// Stops using client regions.
    fn give_up_regions(&mut self) {
        let in_regions = |input: &&mut InputTensor| input.data.foreign().is_some();
        for input in self.parts.request.inputs.iter_mut().filter(in_regions) {
            input.data = Buffer::empty();
        }
    }

    /// Records a failure for `reason` and ends the request with an error. Used for requests that
    /// were not executed.
    pub fn fail(mut self, status: Status, reason: FailureReason) {
        self.give_up_regions();
        if let Some(responder) = self.parts.responder.take() {
            responder.fail(status, reason);
        }
    }

    /// Ends the request with an error, and reports to its caller that no backend received it. Used
    /// for requests that the scheduler rejects. If `reason` is `None`, no failure is counted.
    pub fn refuse(mut self, status: Status, reason: Option<FailureReason>) {
        self.give_up_regions();
        if let Some(responder) = self.parts.responder.take() {
            responder.refuse(status, reason);
        }
    }

    /// Returns the request to the engine, which executes it again. Only for iterative sequences.
    /// Padding is dropped.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with the request, if its model's sequences are not
    /// iterative.
    pub fn reschedule(mut self) -> Result<(), (Box<Self>, Status)> {
        if self.is_padding() {
            return Ok(());
        }
        match self.parts.sequence.take() {
            Some(sequence) if sequence.iterative => {
                let SequenceContext { states, owner, key, .. } = *sequence;
                owner.rescheduled(key, self, states);
                Ok(())
            }
            sequence => {
                self.parts.sequence = sequence;
                let status = Status::invalid_argument(NOT_RESCHEDULED);
                Err((Box::new(self), status))
            }
        }
    }
}

/// The error for a backend that reschedules a request although its model has no iterative
/// sequences. The message is Triton's.
pub const NOT_RESCHEDULED: &str = "Request is released with \
     TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a \
     flag.";

impl Drop for PendingRequest {
    fn drop(&mut self) {
        // Replies first: the sequence's owner may stop the model.
        drop(self.parts.responder.take());
        if let Some(trace) = self.parts.trace.take() {
            trace.end();
        }
        if let Some(sequence) = self.parts.sequence.take() {
            let SequenceContext { states, owner, key, .. } = *sequence;
            owner.released(key, states);
        }
    }
}
