//! The records of a client request and of the requests that serve it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use galatea_control::{DoorTracePoint, DoorTraceSink};
use galatea_infer::{
    TensorTracePoint, TraceIdentity, TracePoint, TraceSink, TraceSubject, TracedTensor,
};
use galatea_stdx::Lock;

use crate::event::{Event, RecordedTensor, Subject, TraceActivity};
use crate::otel::context::SpanContext;
use crate::otel::ids::{NumberSource, SpanNumber};
use crate::otel::spans::ClientSpan;
use crate::queue::{CollectedTrace, TraceMemory, TraceQueue};
use crate::settings::TraceSettings;

/// The state that all traces of a tracer share.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) queue: TraceQueue,
    /// Converts an instant to nanoseconds on the system's monotonic clock.
    pub(crate) clock: fn(Instant) -> u64,
    /// The last trace number used. Numbers begin at 1, because 0 means no trace.
    last_trace: AtomicU64,
    /// The generator of span numbers.
    pub(crate) numbers: Arc<NumberSource>,
}

impl Recording {
    pub(crate) fn new(clock: fn(Instant) -> u64) -> Self {
        let (queue, numbers) = (TraceQueue::default(), Arc::default());
        Self { queue, clock, last_trace: AtomicU64::new(0), numbers }
    }

    fn next_trace(&self) -> u64 {
        self.last_trace.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

/// The records of a request. They are owned jointly by the request's door and the traces of all
/// requests that serve it. Dropping the last reference passes the records to the queue.
#[derive(Debug)]
pub(crate) struct Record {
    recording: Arc<Recording>,
    setting: Arc<TraceSettings>,
    root: u64,
    /// The client's span, for a collector.
    client: Option<Box<ClientSpan>>,
    events: Lock<RecordEvents>,
}

#[derive(Debug)]
struct RecordEvents {
    events: Vec<Event>,
    memory: TraceMemory,
    /// True if one record exceeded the memory limit, in which case all records are dropped.
    lost: bool,
}

impl Record {
    /// Begins the records of a request. With a client's span, they go to a collector.
    pub(crate) fn begin(
        recording: &Arc<Recording>,
        setting: Arc<TraceSettings>,
        client: Option<Box<ClientSpan>>,
    ) -> Arc<Self> {
        let mut memory = recording.queue.memory();
        let client_bytes = client.as_ref().map_or(0, |client| client.byte_size());
        let lost = !memory.grow(client_bytes);
        if lost {
            recording.queue.count_dropped();
        }
        let events = Lock::new(RecordEvents { events: Vec::new(), memory, lost });
        let (root, recording) = (recording.next_trace(), recording.clone());
        Arc::new(Self { recording, setting, root, client, events })
    }

    /// The trace carried by the client's request.
    pub(crate) fn root_trace(self: &Arc<Self>) -> Box<dyn TraceSink> {
        Box::new(ServerTrace::new(self.clone(), self.root, 0))
    }

    fn push(&self, event: Event) {
        let mut events = self.events.lock("record a trace point");
        if events.lost {
            return;
        }
        if events.memory.grow(event.byte_size()) {
            events.events.push(event);
        } else {
            events.lost = true;
            events.events = Vec::new();
            events.memory.clear();
            self.recording.queue.count_dropped();
        }
    }

    fn push_time(&self, trace: u64, activity: TraceActivity, ns: u64) {
        if self.setting.levels.timestamps {
            self.push(Event::Time { trace, activity, ns });
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        (self.recording.clock)(at)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let end_ns = self.ns(Instant::now());
        let client = self.client.take().map(|client| {
            let client = Box::new(ClientSpan { end_ns, ..*client });
            (self.root, client)
        });
        let events = self.events.get_mut();
        if events.lost && client.is_some() {
            return;
        }
        let memory = std::mem::replace(&mut events.memory, self.recording.queue.memory());
        let collected = CollectedTrace::new(
            self.setting.clone(),
            std::mem::take(&mut events.events),
            client,
            memory,
        );
        self.recording.queue.push_trace(collected);
    }
}

impl DoorTraceSink for Record {
    fn record(&self, point: DoorTracePoint, at: Instant) {
        self.push_time(self.root, TraceActivity::Door(point.name()), self.ns(at));
    }
}

/// The trace of one request.
#[derive(Debug)]
struct ServerTrace {
    record: Arc<Record>,
    trace: u64,
    /// The subject; only its parent is valid until the trace begins.
    subject: Lock<Subject>,
}

impl ServerTrace {
    fn new(record: Arc<Record>, trace: u64, parent: u64) -> Self {
        let is_span = record.client.is_some();
        let span = if is_span { record.recording.numbers.span() } else { SpanNumber::default() };
        let subject = Subject { parent, span, ..Subject::default() };
        Self { record, trace, subject: Lock::new(subject) }
    }

    fn push_point(&self, name: &'static str, at: Instant) {
        let ns = self.record.ns(at);
        self.record.push_time(self.trace, TraceActivity::Point(name), ns);
    }
}

impl TraceSink for ServerTrace {
    fn wants_tensors(&self) -> bool {
        // As in Triton, collectors don't get tensors.
        self.record.setting.levels.tensors && self.record.client.is_none()
    }

    fn begin(&self, subject: &TraceSubject<'_>) {
        let subject = {
            let mut known = self.subject.lock("begin the trace");
            known.model_name = subject.model_name.to_owned();
            known.model_version = subject.model_version;
            known.request_id = subject.request_id.to_owned();
            known.deadline = subject.deadline;
            known.clone()
        };
        if self.record.setting.levels.timestamps {
            self.record.push(Event::Begin { trace: self.trace, subject });
        }
    }

    fn record(&self, point: TracePoint, at: Instant) {
        let name = match point {
            TracePoint::RequestStart => "REQUEST_START",
            TracePoint::QueueStart => "QUEUE_START",
            TracePoint::ComputeStart => "COMPUTE_START",
            TracePoint::ComputeInputEnd => "COMPUTE_INPUT_END",
            TracePoint::ComputeOutputStart => "COMPUTE_OUTPUT_START",
            TracePoint::ComputeEnd => "COMPUTE_END",
        };
        self.push_point(name, at);
    }

    fn record_tensor(&self, point: TensorTracePoint, tensor: &TracedTensor<'_>) {
        let mut readable = tensor.data.clone();
        if readable.make_owned().is_err() {
            return;
        }
        let Some(data) = readable.host_bytes() else { return };
        let activity = match point {
            TensorTracePoint::QueueInput => "TENSOR_QUEUE_INPUT",
            TensorTracePoint::BackendOutput => "TENSOR_BACKEND_OUTPUT",
        };
        let tensor = RecordedTensor {
            name: tensor.name.to_owned(),
            datatype: tensor.datatype,
            dims: tensor.dims.to_vec(),
            data: data.to_vec(),
        };
        self.record.push(Event::Tensor { trace: self.trace, activity, tensor });
    }

    fn end(&self) {
        self.push_point("REQUEST_END", Instant::now());
    }

    fn child(&self) -> Option<Box<dyn TraceSink>> {
        let trace = self.record.recording.next_trace();
        Some(Box::new(Self::new(self.record.clone(), trace, self.trace)))
    }

    fn record_custom(&self, name: &str, at_ns: u64) {
        self.record.push_time(self.trace, TraceActivity::Custom(name.into()), at_ns);
    }

    fn record_activity(&self, name: &str, at: Instant) {
        self.record_custom(name, self.record.ns(at));
    }

    fn identity(&self) -> TraceIdentity {
        let subject = self.subject.lock("read the subject").clone();
        // As in Triton, a model gets the context of the span that begins with its request.
        let has_begun = !subject.model_name.is_empty() && self.record.setting.levels.timestamps;
        let context = self.record.client.as_ref().filter(|_| has_begun).map(|client| {
            let (trace, state) = (client.trace, client.state());
            SpanContext { trace, span: subject.span, state }.to_json()
        });
        TraceIdentity {
            id: self.trace,
            parent_id: subject.parent,
            context: context.unwrap_or_default(),
            model_name: subject.model_name,
            model_version: subject.model_version,
            request_id: subject.request_id,
        }
    }
}
