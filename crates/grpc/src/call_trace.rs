//! The door's records of a traced request.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use galatea_control::{
    DoorTracePoint, DoorTraceSink, RequestTraceParts, TraceControl, TraceHeaders,
};
use galatea_infer::{AccessPass, Trace, api};
use galatea_stdx::Lock;
use http::HeaderMap;

/// The number of points that are buffered before they are recorded: a stream has any number of
/// responses.
const HELD_POINTS_MAX: usize = 64;

/// The trace of a request. As in Triton, its points are recorded in order once everything has been
/// sent, after the server's own points.
#[derive(Debug)]
pub(crate) struct CallTrace {
    sink: Arc<dyn DoorTraceSink>,
    points: Lock<Vec<(DoorTracePoint, Instant)>>,
}

impl CallTrace {
    pub(crate) fn begin(sink: Arc<dyn DoorTraceSink>, received: Received) -> Arc<Self> {
        let points = vec![
            (DoorTracePoint::GrpcReceiveStart, received.since),
            (DoorTracePoint::GrpcReceiveEnd, received.at),
        ];
        Arc::new(Self { sink, points: Lock::new(points) })
    }

    pub(crate) fn record(&self, point: DoorTracePoint) {
        let now = Instant::now();
        let full = {
            let mut points = self.points.lock("record a trace point");
            points.push((point, now));
            if points.len() < HELD_POINTS_MAX {
                return;
            }
            std::mem::take(&mut *points)
        };
        full.into_iter().for_each(|(point, at)| self.sink.record(point, at));
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        for (point, at) in std::mem::take(self.points.get_mut()) {
            self.sink.record(point, at);
        }
    }
}

/// The times at which a request's message was received.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Received {
    since: Instant,
    at: Instant,
}

/// The time at which a call began to wait for a message. It is kept only while requests are traced.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct MessageWait(Option<Instant>);

impl MessageWait {
    /// Begins a wait.
    pub(crate) fn begin(tracing: Option<&Arc<dyn TraceControl>>) -> Self {
        Self(tracing.filter(|tracing| tracing.is_on()).map(|_| Instant::now()))
    }

    /// Ends a wait because a message has arrived, and begins the wait for the next one.
    pub(crate) fn received(&mut self, tracing: Option<&Arc<dyn TraceControl>>) -> Option<Received> {
        let before = std::mem::replace(self, Self::begin(tracing));
        let at = self.0?;
        Some(Received { since: before.0.unwrap_or(at), at })
    }
}

/// The metadata that affects traces, in the order of [`TRACE_HEADERS`].
pub(crate) type TraceContext = [Option<Bytes>; 2];

/// The W3C trace-context headers.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Copies the metadata that affects traces, if there is any.
pub(crate) fn trace_context(
    tracing: Option<&Arc<dyn TraceControl>>,
    headers: &HeaderMap,
) -> TraceContext {
    if !tracing.is_some_and(|tracing| tracing.reads_headers()) {
        return TraceContext::default();
    }
    TRACE_HEADERS
        .map(|name| headers.get(name).map(|value| Bytes::copy_from_slice(value.as_bytes())))
}

/// Begins the server's trace and the door's trace of a request, if the request is to be traced.
pub(crate) fn begin_trace(
    tracing: Option<&Arc<dyn TraceControl>>,
    pass: AccessPass<api::Inference>,
    model: &str,
    context: &TraceContext,
    received: Option<Received>,
) -> Option<(Arc<Trace>, Arc<CallTrace>)> {
    let [parent, state] = context.each_ref().map(Option::as_deref);
    let received = received?;
    let RequestTraceParts { request, door } =
        tracing?.begin(pass, model, TraceHeaders { parent, state })?;
    Some((request, CallTrace::begin(door, received)))
}

/// Records the sending of a response. The sending ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct SendTrace(Arc<CallTrace>);

impl SendTrace {
    pub(crate) fn begin(trace: Arc<CallTrace>) -> Self {
        trace.record(DoorTracePoint::GrpcSendStart);
        Self(trace)
    }
}

impl Drop for SendTrace {
    fn drop(&mut self) {
        self.0.record(DoorTracePoint::GrpcSendEnd);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Names(Mutex<Vec<&'static str>>);

    impl DoorTraceSink for Names {
        fn record(&self, point: DoorTracePoint, _: Instant) {
            self.0.lock().unwrap().push(point.name());
        }
    }

    fn begin(names: &Arc<Names>) -> Arc<CallTrace> {
        let now = Instant::now();
        CallTrace::begin(names.clone(), Received { since: now, at: now })
    }

    #[test]
    fn points_are_recorded_when_all_of_the_response_is_sent() {
        let names = Arc::new(Names::default());
        let trace = begin(&names);
        trace.record(DoorTracePoint::ResponseComplete);
        let sending = SendTrace::begin(trace);
        assert!(names.0.lock().unwrap().is_empty());
        drop(sending);
        let expected = [
            "GRPC_WAITREAD_START",
            "GRPC_WAITREAD_END",
            "INFER_RESPONSE_COMPLETE",
            "GRPC_SEND_START",
            "GRPC_SEND_END",
        ];
        assert_eq!(*names.0.lock().unwrap(), expected);
    }

    #[test]
    fn a_trace_with_many_responses_holds_few_points() {
        let names = Arc::new(Names::default());
        let trace = begin(&names);
        (0..1000).for_each(|_| drop(SendTrace::begin(trace.clone())));
        let held = trace.points.lock("count").len();
        assert!(held < HELD_POINTS_MAX);
        drop(trace);
        assert_eq!(names.0.lock().unwrap().len(), 2002);
    }
}
