//! Events on their way from the thread that responds to the connection that writes them.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use galatea_gate::ledger::MemoryCharge;
use galatea_infer::{CongestionPoint, ResumeHook, Status};
use galatea_stdx::{Lock, wake_batch};

/// The number of bytes of unread events at which the model of a generate request pauses.
///
/// The system holds additional bytes in the socket's buffer. A token takes about a hundred bytes.
const EVENT_STREAM_BYTES_MAX: usize = 4 << 20;
/// The number of unread events at which the model pauses.
pub(crate) const EVENT_STREAM_EVENTS_MAX: usize = 4096;
/// The maximum number of bytes of unread events, for models that don't pause. The next event closes
/// the connection.
pub(crate) const EVENT_STREAM_UNREAD_BYTES_MAX: usize = 256 << 20;

/// The approximate number of bytes that an event uses in addition to its content.
pub(crate) const EVENT_BYTES: usize = 128;

/// A response, encoded for sending.
pub(crate) struct Event {
    pub(crate) bytes: Bytes,
    /// The charge for a short event; the bytes of a long event carry their own charge.
    pub(crate) _charge: Option<MemoryCharge>,
}

/// The progress of the replies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// More replies may follow.
    Open,
    /// The final reply was received.
    Ended,
    /// There were too many events, so some are lost.
    Overrun,
    /// The connection accepts no more events.
    Abandoned,
}

pub(crate) struct State {
    pub(crate) events: VecDeque<Event>,
    /// The total size of the events.
    pub(crate) bytes: usize,
    /// The number of responses, including errors that replace responses.
    pub(crate) responses: u64,
    /// True if the first response was an error.
    pub(crate) begins_with_error: bool,
    /// The reason why no backend received the request.
    pub(crate) refusal: Option<Status>,
    pub(crate) phase: Phase,
    /// The task that waits for events.
    reader: Option<Waker>,
    /// Models that pause until the client has read more.
    paused: Vec<ResumeHook>,
}

impl State {
    fn is_congested(&self) -> bool {
        self.phase == Phase::Open
            && (self.bytes >= EVENT_STREAM_BYTES_MAX
                || self.events.len() >= EVENT_STREAM_EVENTS_MAX)
    }
}

/// The events that have not been taken yet.
pub(crate) struct EventQueue(Lock<State>);

impl EventQueue {
    pub(crate) fn new() -> Self {
        Self(Lock::new(State {
            events: VecDeque::new(),
            bytes: 0,
            responses: 0,
            begins_with_error: false,
            refusal: None,
            phase: Phase::Open,
            reader: None,
            paused: Vec::new(),
        }))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.lock("see whether replies are wanted").phase == Phase::Open
    }

    /// Returns true if a response was added.
    pub(crate) fn has_responses(&self) -> bool {
        self.0.lock("see whether a response was added").responses > 0
    }

    /// Adds a reply, which consists of an event and a flag for errors. Without an event, the reply
    /// is only counted.
    pub(crate) fn add(&self, response: Option<(Option<Event>, bool)>, is_final: bool) {
        let (reader, paused) = {
            let mut state = self.0.lock("add an event");
            if state.phase != Phase::Open {
                return;
            }
            if let Some((event, is_error)) = response {
                state.begins_with_error |= is_error && state.responses == 0;
                state.responses = state.responses.saturating_add(1);
                let has_room = state.bytes < EVENT_STREAM_UNREAD_BYTES_MAX;
                match event {
                    Some(event) if has_room => {
                        state.bytes = state.bytes.saturating_add(weight(&event));
                        state.events.push_back(event);
                    }
                    Some(_) => state.phase = Phase::Overrun,
                    None => {}
                }
            }
            if is_final && state.phase == Phase::Open {
                state.phase = Phase::Ended;
            }
            let is_over = state.phase != Phase::Open;
            let paused = if is_over { std::mem::take(&mut state.paused) } else { Vec::new() };
            (state.reader.take(), paused)
        };
        reader.into_iter().for_each(wake_batch::defer_wake);
        paused.into_iter().for_each(|resume| resume());
    }

    pub(crate) fn refuse(&self, status: Status) {
        self.0.lock("refuse a request").refusal = Some(status);
        self.add(None, true);
    }

    /// Notes that the connection accepts no more events.
    pub(crate) fn abandon(&self) {
        let (events, paused) = {
            let mut state = self.0.lock("abandon the events");
            state.phase = Phase::Abandoned;
            state.bytes = 0;
            (std::mem::take(&mut state.events), std::mem::take(&mut state.paused))
        };
        drop(events);
        paused.into_iter().for_each(|resume| resume());
    }

    /// Examines the state. If that yields nothing, the next reply wakes the task.
    pub(crate) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        look: impl FnOnce(&mut State) -> Option<T>,
    ) -> Poll<T> {
        let (found, paused) = {
            let mut state = self.0.lock("look for an event");
            let found = look(&mut state);
            if found.is_none() {
                state.reader = Some(context.waker().clone());
            }
            let is_free = !state.is_congested() && !state.paused.is_empty();
            (found, if is_free { std::mem::take(&mut state.paused) } else { Vec::new() })
        };
        paused.into_iter().for_each(|resume| resume());
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

pub(crate) fn weight(event: &Event) -> usize {
    event.bytes.len().saturating_add(EVENT_BYTES)
}

impl CongestionPoint for EventQueue {
    fn is_congested(&self) -> bool {
        self.0.lock("see whether events pile up").is_congested()
    }

    fn when_free(&self, hook: ResumeHook) -> Option<ResumeHook> {
        let mut state = self.0.lock("pause a model");
        if !state.is_congested() {
            return Some(hook);
        }
        state.paused.push(hook);
        None
    }
}
