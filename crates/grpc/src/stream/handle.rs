//! The view of a stream from outside its connection's task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use galatea_codec::compression::ContentCoding;
use galatea_stdx::Inbox;

use crate::budget::{MemoryBudget, StreamBudget, StreamLimits};
use crate::call_key::CallKey;
use crate::delay::Delay;
use crate::event::ConnectionEvent;

/// The form in which a stream reports request failures.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamErrors {
    /// A failure is sent as a message, and the stream continues.
    AsMessages,
    /// A failure becomes the status of the stream, which ends.
    AsStatus,
}

/// The form of a stream's messages.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamForm {
    pub(crate) errors: StreamErrors,
    pub(crate) coding: Option<ContentCoding>,
    pub(crate) delay: Delay,
}

/// The state that the sinks of a stream's requests need.
pub(crate) struct StreamHandle {
    pub(crate) call: CallKey,
    pub(crate) form: StreamForm,
    pub(crate) budget: Arc<StreamBudget>,
    waker: Arc<StreamWaker>,
}

/// Wakes the connection's task, so that it serves a stream ([`ConnectionEvent::StreamReady`]).
struct StreamWaker {
    call: CallKey,
    inbox: Arc<Inbox<ConnectionEvent>>,
    /// True if the connection's task is about to serve the stream.
    is_awake: AtomicBool,
}

impl StreamHandle {
    pub(crate) fn new(
        call: CallKey,
        form: StreamForm,
        limits: StreamLimits,
        connection: Arc<MemoryBudget>,
        inbox: Arc<Inbox<ConnectionEvent>>,
    ) -> Self {
        let waker = Arc::new(StreamWaker { call, inbox, is_awake: AtomicBool::new(false) });
        let budget = StreamBudget::new(connection, limits, Waker::from(waker.clone()));
        Self { call, form, budget: Arc::new(budget), waker }
    }

    /// Sends an event to the connection's task.
    pub(crate) fn push(&self, event: ConnectionEvent) {
        // A closed inbox drops the event, because the connection has ended.
        let _ = self.waker.inbox.push(event);
    }

    /// Notes that the task is serving the stream.
    pub(crate) fn begin(&self) {
        self.waker.is_awake.store(false, Ordering::Release);
        self.budget.begin();
    }

    /// Makes the task serve the stream again.
    pub(crate) fn wake(&self) {
        self.waker.notify();
    }

    /// A waker that makes the task serve the stream again.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(self.waker.clone())
    }
}

impl StreamWaker {
    fn notify(&self) {
        if !self.is_awake.swap(true, Ordering::AcqRel) {
            let _ = self.inbox.push_and_wake(ConnectionEvent::StreamReady { call: self.call });
        }
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

impl std::fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamHandle({:?})", self.call)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::budget::tests::{Count, LIMITS, account};
    use crate::budget::{Outgoing, ResponseBudget};
    use crate::failure::Failure;

    const CALL: CallKey = CallKey { index: 3, serial: 4 };

    fn connection() -> (Arc<Inbox<ConnectionEvent>>, Arc<MemoryBudget>) {
        let inbox = Arc::new(Inbox::new());
        let budget = Arc::new(MemoryBudget::new(LIMITS, account(), inbox.waker()));
        (inbox, budget)
    }

    /// `h2` reports a ready stream while the task polls it. The task then serves the stream before
    /// it sleeps.
    #[test]
    fn a_ready_stream_keeps_the_task_from_resting() {
        let (inbox, budget) = connection();
        let limits = StreamLimits { messages_max: 10, bytes_max: 10_000 };
        let form = StreamForm {
            errors: StreamErrors::AsMessages,
            coding: None,
            delay: Delay(std::time::Duration::ZERO),
        };
        let stream = StreamHandle::new(CALL, form, limits, budget, inbox.clone());
        let woken = Arc::<Count>::default();
        inbox.register_reader(&Waker::from(woken.clone()));
        assert!(inbox.try_sleep());
        stream.wake();
        stream.waker().wake_by_ref();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        inbox.register_reader(&Waker::from(woken.clone()));
        stream.begin();
        stream.waker().wake_by_ref();
        assert!(!inbox.try_sleep());
        let mut events = VecDeque::new();
        inbox.drain_into(&mut events);
        let ready = |event: &ConnectionEvent| match event {
            ConnectionEvent::StreamReady { call } => *call == CALL,
            _ => false,
        };
        assert_eq!((events.len(), events.iter().all(ready)), (2, true));
        assert!(inbox.try_sleep());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    /// Responses hold the budget, the budget holds the inbox, and the inbox holds responses.
    #[test]
    fn a_closed_inbox_holds_no_response() {
        let (inbox, budget) = connection();
        let event = || {
            let message = galatea_protocol::inference::ServerLiveResponse { live: true };
            let message = galatea_codec_grpc::frame_message(&message).unwrap();
            let response = Outgoing::new(message, ResponseBudget::Call(budget.clone()));
            let result = response.map_err(Failure::from);
            ConnectionEvent::CallFinished { call: CALL, result }
        };
        inbox.push(event()).unwrap();
        inbox.close();
        assert!(inbox.push(event()).is_err());
        let mut events = VecDeque::new();
        inbox.drain_into(&mut events);
        drop(events);
        assert_eq!(budget.unwritten_bytes(), 0);
        assert_eq!(Arc::strong_count(&budget), 1);
    }
}
