//! Conversion of a request's records to spans.
//!
//! Each trace has a stack of open spans. A point that begins an activity pushes a span, and a point
//! that ends one closes the topmost span. Other points become events of the topmost span of their
//! trace; the door's points become events of the client's span.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::context::SpanContext;
use super::ids::{NumberSource, SpanNumber, TraceNumber};
use crate::event::{Event, Subject, TraceActivity};

/// The data about a request that collectors get in addition to its records.
#[derive(Clone, Debug)]
pub(crate) struct ClientSpan {
    /// The client's own span, if the request specified one.
    pub(crate) remote: Option<SpanContext>,
    pub(crate) trace: TraceNumber,
    pub(crate) span: SpanNumber,
    /// The start on the monotonic clock, in nanoseconds.
    pub(crate) start_ns: u64,
    /// The end on the monotonic clock, in nanoseconds.
    pub(crate) end_ns: u64,
    /// The offset from the monotonic clock to the time since the epoch.
    pub(crate) epoch_ns: u64,
}

impl ClientSpan {
    /// The memory that the span uses, in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        size_of::<Self>().saturating_add(self.state().len())
    }

    /// The trace state that all spans of the trace share.
    pub(crate) fn state(&self) -> Arc<str> {
        self.remote.as_ref().map(|remote| remote.state.clone()).unwrap_or_default()
    }
}

/// A span, with times since the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) trace: TraceNumber,
    pub(crate) span: SpanNumber,
    pub(crate) parent: Option<SpanNumber>,
    pub(crate) state: Arc<str>,
    pub(crate) name: String,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) attributes: Vec<(&'static str, AttributeValue)>,
    pub(crate) events: Vec<(String, u64)>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttributeValue {
    Text(String),
    Number(i64),
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Number(number.cast_signed())
    }
}

/// An open span: one of ours, identified by its index, or the client's.
#[derive(Copy, Clone, Debug)]
enum OpenSpan {
    Span(usize),
    Remote(SpanNumber),
}

/// The spans of a request: the client's first, then the others in order of their start.
pub(crate) fn spans_of(
    client: &ClientSpan,
    root: u64,
    events: Vec<Event>,
    numbers: &NumberSource,
) -> Vec<Span> {
    let mut builder = SpanBuilder {
        client,
        numbers,
        spans: Vec::new(),
        open: HashMap::new(),
        subjects: HashMap::new(),
    };
    if let Some(remote) = &client.remote {
        builder.open.entry(root).or_default().push_back(OpenSpan::Remote(remote.span));
    }
    builder.begin(root, root, String::from("InferRequest"), client.span, client.start_ns);
    for event in events {
        match event {
            Event::Begin { trace, subject } => drop(builder.subjects.insert(trace, subject)),
            Event::Time { trace: _, activity: TraceActivity::Door(name), ns } => {
                builder.add_event(0, name.to_owned(), ns);
            }
            Event::Time { trace, activity, ns } => builder.pass(trace, &activity, ns),
            // Collectors don't get tensors.
            Event::Tensor { .. } => {}
        }
    }
    builder.end_all();
    builder.spans
}

struct SpanBuilder<'a> {
    client: &'a ClientSpan,
    numbers: &'a NumberSource,
    spans: Vec<Span>,
    open: HashMap<u64, VecDeque<OpenSpan>>,
    subjects: HashMap<u64, Subject>,
}

impl SpanBuilder<'_> {
    fn pass(&mut self, trace: u64, activity: &TraceActivity, ns: u64) {
        let name = activity.name();
        match activity {
            TraceActivity::Point("REQUEST_START") => self.begin_request(trace, ns),
            TraceActivity::Point("COMPUTE_START") => {
                self.begin(trace, trace, String::from("compute"), self.numbers.span(), ns);
            }
            TraceActivity::Custom(_) => {
                if let Some(begun) = name.strip_suffix("_START").filter(|rest| !rest.is_empty()) {
                    self.begin(trace, trace, begun.to_owned(), self.numbers.span(), ns);
                }
            }
            TraceActivity::Point(_) | TraceActivity::Door(_) => {}
        }
        if let Some(OpenSpan::Span(place)) = self.top(trace) {
            self.add_event(place, name.to_owned(), ns);
        }
        let ends = match activity {
            TraceActivity::Point(name) => matches!(*name, "REQUEST_END" | "COMPUTE_END"),
            TraceActivity::Custom(name) => name.len() > "_END".len() && name.ends_with("_END"),
            TraceActivity::Door(_) => false,
        };
        if ends {
            self.end(trace, ns);
        }
    }

    fn begin_request(&mut self, trace: u64, ns: u64) {
        let subject = self.subjects.remove(&trace).unwrap_or_default();
        let below = if subject.parent == 0 { trace } else { subject.parent };
        let place = self.begin(trace, below, subject.model_name.clone(), subject.span, ns);
        let Some(span) = self.spans.get_mut(place) else { return };
        span.attributes = vec![
            ("triton.model_name", AttributeValue::Text(subject.model_name)),
            ("triton.model_version", AttributeValue::Number(subject.model_version)),
            ("triton.trace_id", trace.into()),
            ("triton.trace_parent_id", subject.parent.into()),
        ];
        if !subject.request_id.is_empty() {
            span.attributes.push(("triton.request_id", AttributeValue::Text(subject.request_id)));
        }
        if let Some(deadline) = subject.deadline {
            let microseconds = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
            span.attributes.push(("galatea.deadline_us", microseconds.into()));
        }
    }

    /// Opens a span for `trace` on top of the open spans of `below`, and returns its index.
    fn begin(&mut self, trace: u64, below: u64, name: String, span: SpanNumber, ns: u64) -> usize {
        let parent = match self.top(below) {
            Some(OpenSpan::Span(place)) => self.spans.get(place).map(|span| span.span),
            Some(OpenSpan::Remote(span)) => Some(span),
            None => None,
        };
        let place = self.spans.len();
        let start_ns = self.since_epoch(ns);
        self.spans.push(Span {
            trace: self.client.trace,
            span,
            parent,
            state: self.client.state(),
            name,
            start_ns,
            end_ns: 0,
            attributes: Vec::new(),
            events: Vec::new(),
        });
        self.open.entry(trace).or_default().push_back(OpenSpan::Span(place));
        place
    }

    fn top(&self, trace: u64) -> Option<OpenSpan> {
        self.open.get(&trace).and_then(|open| open.back()).copied()
    }

    fn add_event(&mut self, place: usize, name: String, ns: u64) {
        let ns = self.since_epoch(ns);
        if let Some(span) = self.spans.get_mut(place) {
            span.events.push((name, ns));
        }
    }

    /// Closes the topmost span of a trace.
    fn end(&mut self, trace: u64, ns: u64) {
        let top = self.open.get_mut(&trace).and_then(VecDeque::pop_back);
        let ns = self.since_epoch(ns);
        if let Some(OpenSpan::Span(place)) = top
            && let Some(span) = self.spans.get_mut(place)
        {
            span.end_ns = ns;
        }
    }

    /// Closes all open spans once the trace is complete.
    fn end_all(&mut self) {
        let end = self.since_epoch(self.client.end_ns);
        for span in self.spans.iter_mut().filter(|span| span.end_ns == 0) {
            span.end_ns = end;
        }
    }

    fn since_epoch(&self, ns: u64) -> u64 {
        self.client.epoch_ns.saturating_add(ns)
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
