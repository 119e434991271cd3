//! The responses to a generate request on their way from the model to the connection.
//!
//! Any thread may add events. The connection's task takes them as its client reads. If too many
//! events are waiting, decoupled models pause. Dropping the stream cancels the request.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use galatea_codec_http::{GenerateBodyFormat, encode_generate_error, encode_generate_response};
use galatea_control::{DoorTracePoint, DoorTraceSink};
use galatea_gate::ledger::{MemoryAccount, MemoryCharge};
use galatea_infer::{CancelToken, CongestionPoint, InferenceResponse, Reply, ResponseSink, Status};

use crate::event_queue::{EVENT_BYTES, Event, EventQueue, Phase, State, weight};
use crate::single_response::CancelOnDrop;

/// Receives the replies to a request and turns them into events, on the thread that responds.
pub(crate) struct EventSink {
    queue: Arc<EventQueue>,
    form: GenerateBodyFormat,
    account: Arc<MemoryAccount>,
    has_response: bool,
    trace: Option<Arc<dyn DoorTraceSink>>,
}

impl EventSink {
    fn event(&mut self, result: Result<InferenceResponse, Status>) -> (Option<Event>, bool) {
        let is_further = std::mem::replace(&mut self.has_response, true);
        if is_further && self.form == GenerateBodyFormat::Document {
            // The model has sent one response too many, and an error replaces all of them.
            return (None, result.is_err());
        }
        let encoded = result
            .and_then(|response| encode_generate_response(&response, self.form, &self.account))
            .and_then(|bytes| Ok(Event { _charge: self.charge(&bytes)?, bytes }));
        match encoded {
            Ok(event) => (Some(event), false),
            Err(status) => {
                let bytes = encode_generate_error(status.message(), self.form);
                (Some(Event { bytes, _charge: None }), true)
            }
        }
    }

    fn charge(&self, bytes: &Bytes) -> Result<Option<MemoryCharge>, Status> {
        let is_charged = bytes.len() > MemoryAccount::SMALL_BYTES_MAX;
        let bytes = bytes.len().saturating_add(EVENT_BYTES);
        let charge = (!is_charged).then(|| MemoryCharge::new(&self.account, bytes)).transpose();
        charge.map_err(Status::from)
    }
}

impl ResponseSink for EventSink {
    fn deliver(&mut self, reply: Reply) {
        if !self.queue.is_open() {
            return;
        }
        if let Some(trace) = &self.trace {
            trace.record(DoorTracePoint::ResponseComplete, Instant::now());
        }
        let is_final = reply.is_final();
        let response = match reply {
            Reply::Response { result, .. } => Some(self.event(result)),
            Reply::Finished => None,
        };
        self.queue.add(response, is_final);
    }

    fn refuse(&mut self, status: Status) {
        self.queue.refuse(status);
    }
}

/// The error for events that were lost because the client reads too slowly for a model that doesn't
/// pause.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventsLost;

impl std::fmt::Display for EventsLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("some events of the response are lost")
    }
}

impl std::error::Error for EventsLost {}

/// The first reply. It lacks a response if no backend received the request, and its response may
/// lack an event.
#[derive(Debug)]
pub(crate) enum Beginning {
    Response,
    Error,
    Refusal(Status),
}

/// All replies to a request for a single response.
pub(crate) struct Collected {
    pub(crate) beginning: Beginning,
    /// The event of the response, if there was exactly one response.
    pub(crate) only: Option<Bytes>,
}

/// The events of a request.
pub(crate) struct EventStream {
    queue: Arc<EventQueue>,
    /// Cancels the request when dropped. It is kept until the final reply has arrived.
    cancel: Option<CancelOnDrop>,
    trace: Option<Arc<dyn DoorTraceSink>>,
}

impl EventStream {
    /// Creates the sink and the stream for a request whose responses have this form.
    pub(crate) fn new(
        form: GenerateBodyFormat,
        account: &Arc<MemoryAccount>,
        cancel: CancelToken,
        trace: Option<Arc<dyn DoorTraceSink>>,
    ) -> (EventSink, Self) {
        let queue = Arc::new(EventQueue::new());
        let sink = EventSink {
            queue: queue.clone(),
            form,
            account: account.clone(),
            has_response: false,
            trace: trace.clone(),
        };
        (sink, Self::of(queue, cancel, trace))
    }

    /// Creates the stream for the events of a queue.
    pub(crate) const fn of(
        queue: Arc<EventQueue>,
        cancel: CancelToken,
        trace: Option<Arc<dyn DoorTraceSink>>,
    ) -> Self {
        Self { queue, cancel: Some(CancelOnDrop::new(cancel)), trace }
    }

    /// Returns the trace of the request.
    pub(crate) fn trace(&self) -> Option<Arc<dyn DoorTraceSink>> {
        self.trace.clone()
    }

    /// Returns the point at which events pile up.
    pub(crate) fn congestion_point(&self) -> Arc<dyn CongestionPoint> {
        self.queue.clone()
    }

    /// Waits for the first reply.
    pub(crate) fn poll_begin(&self, context: &mut Context<'_>) -> Poll<Beginning> {
        self.queue.poll(context, |state| {
            let has_begun = state.responses > 0 || state.phase != Phase::Open;
            has_begun.then(|| beginning(state))
        })
    }

    /// Waits for the last reply.
    pub(crate) fn poll_collect(&mut self, context: &mut Context<'_>) -> Poll<Collected> {
        let collected = self.queue.poll(context, |state| {
            (state.phase != Phase::Open).then(|| {
                let event = state.events.pop_front().map(|event| event.bytes);
                let only = event.filter(|_| state.responses == 1);
                Collected { beginning: beginning(state), only }
            })
        });
        if collected.is_ready() {
            self.disarm();
        }
        collected
    }

    /// Returns the next event, or `None` after the last one.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, EventsLost>>> {
        let next = self.queue.poll(context, |state| {
            if let Some(event) = state.events.pop_front() {
                state.bytes = state.bytes.saturating_sub(weight(&event));
                return Some(Some(Ok(event.bytes)));
            }
            match state.phase {
                Phase::Open => None,
                Phase::Ended | Phase::Abandoned => Some(None),
                Phase::Overrun => Some(Some(Err(EventsLost))),
            }
        });
        if let Poll::Ready(None) = next {
            self.disarm();
        }
        next
    }

    /// Notes that all replies have been received, so nothing is left to cancel.
    fn disarm(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel.disarm();
        }
    }
}

fn beginning(state: &mut State) -> Beginning {
    match state.refusal.take() {
        Some(status) => Beginning::Refusal(status),
        None if state.begins_with_error => Beginning::Error,
        None => Beginning::Response,
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        // Models that continue notice that they are cancelled.
        drop(self.cancel.take());
        self.queue.abandon();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use galatea_infer::{ResponseSender, ResumeHook};

    use super::*;
    use crate::event_queue::{EVENT_STREAM_EVENTS_MAX, EVENT_STREAM_UNREAD_BYTES_MAX};

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Creates a stream, charged to `account`, and the sender of its replies.
    fn stream(account: &Arc<MemoryAccount>) -> (ResponseSender, EventStream, CancelToken) {
        let cancel = CancelToken::new();
        let (sink, stream) =
            EventStream::new(GenerateBodyFormat::Event, account, cancel.clone(), None);
        (ResponseSender::new(Box::new(sink)), stream, cancel)
    }

    fn response(id: &str) -> Result<InferenceResponse, Status> {
        Ok(InferenceResponse {
            model_name: "m".into(),
            model_version: 1,
            id: id.into(),
            parameters: Default::default(),
            outputs: Vec::new(),
        })
    }

    fn next(stream: &mut EventStream) -> String {
        match stream.poll_next(&mut context()) {
            Poll::Pending => String::from("pending"),
            Poll::Ready(None) => String::from("end"),
            Poll::Ready(Some(Ok(bytes))) => String::from_utf8(bytes.to_vec()).unwrap(),
            Poll::Ready(Some(Err(lost))) => lost.to_string(),
        }
    }

    #[test]
    fn a_model_pauses_until_its_events_are_taken() {
        let account = Arc::new(MemoryAccount::unlimited());
        let (mut sender, mut stream, _) = stream(&account);
        let point = stream.congestion_point();
        let resumed = Arc::new(AtomicUsize::new(0));
        let hook = |resumed: &Arc<AtomicUsize>| -> ResumeHook {
            let resumed = resumed.clone();
            Box::new(move || {
                resumed.fetch_add(1, Ordering::Relaxed);
            })
        };
        assert!(point.when_free(hook(&resumed)).is_some());
        for _ in 0..EVENT_STREAM_EVENTS_MAX {
            assert!(!point.is_congested());
            sender.send(response(""));
        }
        assert!(point.is_congested() && point.when_free(hook(&resumed)).is_none());
        assert!(account.held() > 0, "what waits is charged");
        assert_eq!(next(&mut stream), "data: {\"model_name\":\"m\",\"model_version\":\"1\"}\n\n");
        assert_eq!(resumed.load(Ordering::Relaxed), 1);
        sender.send(response(""));
        assert!(point.when_free(hook(&resumed)).is_none());
        drop(stream);
        assert_eq!((resumed.load(Ordering::Relaxed), account.held()), (2, 0));
        sender.send(response(""));
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn dropping_a_stream_cancels_unless_it_ended() {
        let account = Arc::new(MemoryAccount::unlimited());
        let (_sender, first, cancel) = stream(&account);
        drop(first);
        assert!(cancel.is_cancelled());
        let (sender, mut second, cancel) = stream(&account);
        sender.send_final(response("a"));
        assert!(next(&mut second).contains("\"id\":\"a\""));
        assert_eq!(next(&mut second), "end");
        drop(second);
        assert!(!cancel.is_cancelled());
    }

    #[test]
    fn events_beyond_the_last_limit_break_the_stream() {
        let account = Arc::new(MemoryAccount::unlimited());
        let (sender, mut stream, _) = stream(&account);
        let long = Bytes::from(b"data: ".repeat(EVENT_STREAM_UNREAD_BYTES_MAX / 24));
        for _ in 0..6 {
            let event = Event { bytes: long.clone(), _charge: None };
            stream.queue.add(Some((Some(event), false)), false);
        }
        sender.finish_without_response();
        let mut events = 0;
        while next(&mut stream).starts_with("data: ") {
            events += 1;
        }
        assert_eq!((events, next(&mut stream)), (4, EventsLost.to_string()));
    }

    #[test]
    fn an_event_without_memory_becomes_an_error() {
        let ledger = Arc::new(galatea_gate::ledger::MemoryLedger::new(Some(1000)));
        let account = Arc::new(MemoryAccount::without_base(ledger));
        let (sender, mut stream, _) = stream(&account);
        sender.send_final(response(&"x".repeat(2000)));
        assert!(matches!(stream.poll_begin(&mut context()), Poll::Ready(Beginning::Error)));
        assert!(next(&mut stream).starts_with("data: {\"error\":"));
    }
}
