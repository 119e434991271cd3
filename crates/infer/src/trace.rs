//! Tracing of one request: its trace points and the sink that records them.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use galatea_tensor::{Buffer, DataType};

use galatea_stdx::sync::atomic::{AtomicU8, Ordering};

use crate::{
    ExecutionReadings, ExecutionTimes, InferenceResponse, InputTensor, Reply, ResponseSender,
    ResponseSink, Status,
};

/// A trace point of a request. [`TraceSink::end`] reports the request's end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TracePoint {
    /// The server received the request.
    RequestStart,
    /// The request was queued.
    QueueStart,
    /// An instance received the request.
    ComputeStart,
    /// The request's inputs were in place.
    ComputeInputEnd,
    /// Computing ended; outputs were collected next.
    ComputeOutputStart,
    /// The request's outputs were complete.
    ComputeEnd,
}

/// A trace point at which tensors are recorded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TensorTracePoint {
    /// An input when the request is queued.
    QueueInput,
    /// An output when the response is sent.
    BackendOutput,
}

/// The request that a trace describes.
#[derive(Copy, Clone, Debug)]
pub struct TraceSubject<'a> {
    /// The model's name.
    pub model_name: &'a str,
    /// The version that serves the request.
    pub model_version: i64,
    /// The client's identifier of the request; may be empty.
    pub request_id: &'a str,
    /// The time from its arrival to its deadline, if its model uses deadlines.
    pub deadline: Option<Duration>,
}

/// The identity of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceIdentity {
    /// The trace's number in this process.
    pub id: u64,
    /// The number of the parent trace; 0 means none.
    pub parent_id: u64,
    /// The context that the model may propagate, as a JSON object; empty if there is none.
    pub context: String,
    /// The model's name, once the trace has begun.
    pub model_name: String,
    /// The version that serves the request.
    pub model_version: i64,
    /// The client's identifier of the request; may be empty.
    pub request_id: String,
}

/// A tensor at a trace point.
#[derive(Copy, Clone, Debug)]
pub struct TracedTensor<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with the batch dimension if the model has one.
    pub dims: &'a [i64],
    /// Its elements.
    pub data: &'a Buffer,
}

/// Receives the trace points of one request. No trace points follow once the sink is dropped.
///
/// Called on the thread that owns the request, so it must not block.
pub trait TraceSink: Send + Sync + std::fmt::Debug {
    /// Returns true if the sink records tensors.
    fn wants_tensors(&self) -> bool;
    /// Begins the trace. Called first.
    fn begin(&self, subject: &TraceSubject<'_>);
    /// Records that the request passed `point` at this time.
    fn record(&self, point: TracePoint, at: Instant);
    /// Records a tensor of the request. Called only if the sink wants tensors.
    fn record_tensor(&self, point: TensorTracePoint, tensor: &TracedTensor<'_>);
    /// Records that the request is released. Called once, if the trace began.
    fn end(&self);
    /// Makes the sink for a request made on behalf of this one, such as an ensemble step.
    fn child(&self) -> Option<Box<dyn TraceSink>>;
    /// Records an activity that a backend named. The backend specifies the time in nanoseconds of
    /// the system's monotonic clock.
    fn record_custom(&self, _name: &str, _at_ns: u64) {}
    /// Like [`Self::record_custom`], at an instant.
    fn record_activity(&self, _name: &str, _at: Instant) {}
    /// The trace's identity, for backends that request it.
    fn identity(&self) -> TraceIdentity {
        TraceIdentity::default()
    }
    /// The object behind the sink, which lets the sink's creator find it again.
    fn underlying(&self) -> Option<&dyn Any> {
        None
    }
}

/// An object that follows a request, with a child for each request that serves it. It keeps facts
/// about a request that don't belong in a trace, such as its explanation.
pub trait TraceAttachment: Any + Send + Sync + std::fmt::Debug {
    /// Records that a model received the request at this time. Called at most once.
    fn begin(&self, subject: &TraceSubject<'_>, at: Instant);
    /// Makes the attachment for a request that serves this one.
    fn child(&self) -> Option<Arc<dyn TraceAttachment>>;
}

// The phases of a trace: NEW => BEGUN => ENDED, or NEW => ENDED.
const NEW: u8 = 0;
const BEGUN: u8 = 1;
const ENDED: u8 = 2;

/// The trace of one request. The engine and backends record trace points in the order in which they
/// happen. The trace ends when the request is released, or at the latest when the last reference is
/// dropped.
#[derive(Debug)]
pub struct Trace {
    phase: AtomicU8,
    /// The sink; `None` if the trace exists only for its attachment.
    sink: Option<Box<dyn TraceSink>>,
    companion: Option<Arc<dyn TraceAttachment>>,
    /// The parent, kept so that it ends after this trace.
    _parent: Option<Arc<Trace>>,
}

impl Trace {
    /// Makes a trace that records into `sink`.
    #[must_use]
    pub fn new(sink: Box<dyn TraceSink>) -> Arc<Self> {
        Arc::new(Self::with(Some(sink), None, None))
    }

    /// Adds an attachment to a request, which may already have a trace.
    #[must_use]
    pub fn with_attachment(
        trace: Option<Arc<Self>>,
        companion: Arc<dyn TraceAttachment>,
    ) -> Arc<Self> {
        let Some(mut trace) = trace else {
            return Arc::new(Self::with(None, Some(companion), None));
        };
        // A trace that is already shared is left unchanged.
        if let Some(alone) = Arc::get_mut(&mut trace) {
            alone.companion = Some(companion);
        }
        trace
    }

    fn with(
        sink: Option<Box<dyn TraceSink>>,
        companion: Option<Arc<dyn TraceAttachment>>,
        parent: Option<Arc<Self>>,
    ) -> Self {
        Self { phase: AtomicU8::new(NEW), sink, companion, _parent: parent }
    }

    /// Makes the trace for a request made on behalf of this one, such as an ensemble step.
    #[must_use]
    pub fn child(self: &Arc<Self>) -> Option<Arc<Self>> {
        let sink = self.sink.as_ref().and_then(|sink| sink.child());
        let companion = self.companion.as_ref().and_then(|companion| companion.child());
        if sink.is_none() && companion.is_none() {
            return None;
        }
        Some(Arc::new(Self::with(sink, companion, Some(self.clone()))))
    }

    /// Returns true if the request is traced. A request that has only an attachment counts as
    /// untraced for its model.
    #[must_use]
    pub const fn is_traced(&self) -> bool {
        self.sink.is_some()
    }

    /// The request's attachment, if any.
    #[must_use]
    pub const fn attachment(&self) -> Option<&Arc<dyn TraceAttachment>> {
        self.companion.as_ref()
    }

    fn record(&self, point: TracePoint, at: Instant) {
        if let Some(sink) = &self.sink {
            sink.record(point, at);
        }
    }

    /// The sink, if it records tensors.
    fn tensor_sink(&self) -> Option<&dyn TraceSink> {
        self.sink.as_deref().filter(|sink| sink.wants_tensors())
    }

    /// Begins the trace: the server received the request at `at`. Further calls have no effect.
    pub fn begin(&self, subject: &TraceSubject<'_>, at: Instant) {
        let first = self.phase.compare_exchange(NEW, BEGUN, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            return;
        }
        if let Some(companion) = &self.companion {
            companion.begin(subject, at);
        }
        if let Some(sink) = &self.sink {
            sink.begin(subject);
        }
        self.record(TracePoint::RequestStart, at);
    }

    /// Records that the request was queued at `at`.
    pub fn record_queued(&self, inputs: &[InputTensor], at: Instant) {
        self.record(TracePoint::QueueStart, at);
        let Some(sink) = self.tensor_sink() else { return };
        for input in inputs {
            let tensor = TracedTensor {
                name: &input.name,
                datatype: input.datatype,
                dims: input.shape.dims(),
                data: &input.data,
            };
            sink.record_tensor(TensorTracePoint::QueueInput, &tensor);
        }
    }

    /// Records an execution, with or without an error.
    pub fn record_execution(&self, times: &ExecutionTimes) {
        let ExecutionReadings { start, compute_start, compute_end, end } = *times.readings();
        self.record(TracePoint::ComputeStart, start);
        self.record(TracePoint::ComputeInputEnd, compute_start);
        self.record(TracePoint::ComputeOutputStart, compute_end);
        self.record(TracePoint::ComputeEnd, end);
    }

    /// Records a response's outputs. As in Triton, responses after the release of the request are
    /// not recorded.
    pub fn record_response(&self, response: &InferenceResponse) {
        let Some(sink) = self.tensor_sink() else { return };
        if self.phase.load(Ordering::Acquire) == ENDED {
            return;
        }
        for output in &response.outputs {
            let tensor = TracedTensor {
                name: &output.name,
                datatype: output.datatype,
                dims: output.shape.dims(),
                data: &output.data,
            };
            sink.record_tensor(TensorTracePoint::BackendOutput, &tensor);
        }
    }

    /// Wraps a sender so that the responses it sends are recorded.
    pub fn wrap_sender(self: &Arc<Self>, sender: ResponseSender) -> ResponseSender {
        if self.tensor_sink().is_none() {
            return sender;
        }
        let trace = Arc::downgrade(self);
        sender.wrap(move |inner| Box::new(TracedSink { trace, inner }))
    }

    /// Records an activity that a backend names; see [`TraceSink::record_custom`].
    pub fn record_custom(&self, name: &str, at_ns: u64) {
        if let Some(sink) = &self.sink {
            sink.record_custom(name, at_ns);
        }
    }

    /// Like [`Self::record_custom`], at an instant.
    pub fn record_custom_at(&self, name: &str, at: Instant) {
        if let Some(sink) = &self.sink {
            sink.record_activity(name, at);
        }
    }

    /// The identity of the trace.
    #[must_use]
    pub fn identity(&self) -> TraceIdentity {
        self.sink.as_ref().map(|sink| sink.identity()).unwrap_or_default()
    }

    /// Ends the trace when the request is released.
    pub fn end(&self) {
        if self.phase.swap(ENDED, Ordering::AcqRel) == BEGUN
            && let Some(sink) = &self.sink
        {
            sink.end();
        }
    }

    /// The object behind the sink; see [`TraceSink::underlying`].
    #[must_use]
    pub fn backing_object(&self) -> Option<&dyn Any> {
        self.sink.as_ref().and_then(|sink| sink.underlying())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
    }
}

/// Records the responses that pass through while the request has its trace.
struct TracedSink {
    trace: Weak<Trace>,
    inner: Box<dyn ResponseSink>,
}

impl ResponseSink for TracedSink {
    fn deliver(&mut self, reply: Reply) {
        if let Reply::Response { result: Ok(response), .. } = &reply
            && let Some(trace) = self.trace.upgrade()
        {
            trace.record_response(response);
        }
        self.inner.deliver(reply);
    }

    fn refuse(&mut self, status: Status) {
        self.inner.refuse(status);
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.underlying()
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
