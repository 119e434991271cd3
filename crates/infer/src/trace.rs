//! Where a request is on its way, told station by station.

use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use galatea_tensor::{Buffer, DataType};

use crate::{ExecutionTimes, InferenceResponse, InputTensor, Reply, ResponseSender, ResponseSink};

/// A station that a request passes. Its end is told by [`TraceSink::ended`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TracePoint {
    /// The server has the request.
    RequestStart,
    /// It waits for an instance.
    QueueStart,
    /// An instance has it.
    ComputeStart,
    /// Its inputs are in place.
    ComputeInputEnd,
    /// Computing is done, and outputs are collected.
    ComputeOutputStart,
    /// Its outputs are there.
    ComputeEnd,
}

/// Where a tensor is seen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TensorTracePoint {
    /// An input, as it is queued.
    QueueInput,
    /// An output, as it is sent.
    BackendOutput,
}

/// What a trace is about.
#[derive(Copy, Clone, Debug)]
pub struct TraceSubject<'a> {
    /// The model's name.
    pub model_name: &'a str,
    /// The version that answers.
    pub model_version: i64,
    /// The client's identifier of the request; empty if it gave none.
    pub request_id: &'a str,
}

/// A tensor as it passes.
#[derive(Copy, Clone, Debug)]
pub struct TracedTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape, with the batch dimension if the model has one.
    pub dims: &'a [i64],
    /// Its elements.
    pub data: &'a Buffer,
}

/// Who wants to know where a request is. When it is dropped, nobody will tell it
/// anything more.
///
/// Called on whichever thread has the request, so it must not block.
pub trait TraceSink: Send + Sync + std::fmt::Debug {
    /// Whether it takes tensors.
    fn wants_tensors(&self) -> bool;
    /// Comes first: what the trace is about.
    fn begin(&self, subject: &TraceSubject<'_>);
    /// The request passed a station at this time.
    fn record(&self, point: TracePoint, at: Instant);
    /// A tensor of the request passes. Only if it wants tensors.
    fn record_tensor(&self, point: TensorTracePoint, tensor: &TracedTensor<'_>);
    /// The request is released now. Told once, if the trace began.
    fn end(&self);
    /// Who wants to know about a request that is made for this one.
    fn child(&self) -> Option<Box<dyn TraceSink>>;
    /// Whoever stands behind the sink, if they want to be found again.
    fn underlying(&self) -> Option<&dyn Any> {
        None
    }
}

const NEW: u8 = 0;
const BEGUN: u8 = 1;
const ENDED: u8 = 2;

/// The trace of one request: told by the engine and by backends, in the order in
/// which things happen. Its end is told when the request is released, at the latest
/// when the last reference is dropped.
#[derive(Debug)]
pub struct Trace {
    stage: AtomicU8,
    sink: Box<dyn TraceSink>,
    /// Ends later than this one.
    _parent: Option<Arc<Trace>>,
}

impl Trace {
    /// A trace that tells `sink`.
    #[must_use]
    pub fn new(sink: Box<dyn TraceSink>) -> Arc<Self> {
        Arc::new(Self { stage: AtomicU8::new(NEW), sink, _parent: None })
    }

    /// The trace of a request that is made for the one of this trace.
    #[must_use]
    pub fn child(self: &Arc<Self>) -> Option<Arc<Self>> {
        let sink = self.sink.child()?;
        Some(Arc::new(Self { stage: AtomicU8::new(NEW), sink, _parent: Some(self.clone()) }))
    }

    /// The server has the request since `at`.
    pub fn begin(&self, subject: &TraceSubject<'_>, at: Instant) {
        let first = self.stage.compare_exchange(NEW, BEGUN, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.sink.begin(subject);
            self.sink.record(TracePoint::RequestStart, at);
        }
    }

    /// The request waits for an instance since `at`.
    pub fn record_queued(&self, inputs: &[InputTensor], at: Instant) {
        self.sink.record(TracePoint::QueueStart, at);
        if !self.sink.wants_tensors() {
            return;
        }
        for input in inputs {
            let tensor = TracedTensor {
                name: &input.name,
                datatype: input.datatype,
                dims: input.shape.dims(),
                data: &input.data,
            };
            self.sink.record_tensor(TensorTracePoint::QueueInput, &tensor);
        }
    }

    /// The request was executed, with or without an error.
    pub fn record_execution(&self, times: &ExecutionTimes) {
        self.sink.record(TracePoint::ComputeStart, times.start);
        self.sink.record(TracePoint::ComputeInputEnd, times.compute_start);
        self.sink.record(TracePoint::ComputeOutputStart, times.compute_end);
        self.sink.record(TracePoint::ComputeEnd, times.end);
    }

    /// The request gets this response. After its release that goes unseen, as in
    /// the original.
    pub fn record_response(&self, response: &InferenceResponse) {
        if !self.sink.wants_tensors() || self.stage.load(Ordering::Acquire) == ENDED {
            return;
        }
        for output in &response.outputs {
            let tensor = TracedTensor {
                name: &output.name,
                datatype: output.datatype,
                dims: output.shape.dims(),
                data: &output.data,
            };
            self.sink.record_tensor(TensorTracePoint::BackendOutput, &tensor);
        }
    }

    /// A sender that tells the trace of the responses that pass through it.
    pub fn wrap_sender(self: &Arc<Self>, sender: ResponseSender) -> ResponseSender {
        if !self.sink.wants_tensors() {
            return sender;
        }
        let trace = Arc::downgrade(self);
        sender.wrap(move |inner| Box::new(TracedSink { trace, inner }))
    }

    /// The request is released.
    pub fn end(&self) {
        if self.stage.swap(ENDED, Ordering::AcqRel) == BEGUN {
            self.sink.end();
        }
    }

    /// Whoever stands behind the trace, if they want to be found again.
    #[must_use]
    pub fn underlying(&self) -> Option<&dyn Any> {
        self.sink.underlying()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end();
    }
}

/// Tells a trace what passes, as long as the request keeps it.
struct TracedSink {
    trace: Weak<Trace>,
    inner: Box<dyn ResponseSink>,
}

impl TracedSink {
    fn look(&self, reply: &Reply) {
        if let Reply::Response { result: Ok(response), .. } = reply
            && let Some(trace) = self.trace.upgrade()
        {
            trace.record_response(response);
        }
    }
}

impl ResponseSink for TracedSink {
    fn deliver(&mut self, reply: Reply) {
        self.look(&reply);
        self.inner.deliver(reply);
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.underlying()
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
