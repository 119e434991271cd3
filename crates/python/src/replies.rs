//! One request's replies, on their way from the server's threads to Python.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use galatea_capi::InferAsyncCall;
use galatea_infer::{Finality, InferenceResponse, Reply, ResponseSink, Status};
use galatea_stdx::io_thread::wake_batch;
use galatea_stdx::{Condvar, Lock};

use crate::event_loop::LoopEvent;

/// One part of a reply, as Triton's callbacks receive it.
pub(crate) struct ReplyPart {
    /// The response or error; `None` if the final flag is sent separately.
    pub(crate) result: Option<Result<InferenceResponse, Status>>,
    /// True if this is the last part.
    pub(crate) is_final: bool,
}

/// A queue between the server and the threads and event loops that wait for replies.
#[derive(Default)]
pub(crate) struct Replies {
    state: Lock<RepliesState>,
    arrived: Condvar,
}

#[derive(Default)]
struct RepliesState {
    /// The parts that the model has sent and the program hasn't taken yet. Unbounded.
    parts: VecDeque<ReplyPart>,
    /// The event loop that is waiting for the next part, and its number for the request.
    waiting: Option<(Arc<LoopEvent>, u64)>,
}

impl Replies {
    fn push(self: &Arc<Self>, reply: Reply) {
        let part = |result, is_final| ReplyPart { result, is_final };
        {
            let mut state = self.state.lock("add a reply");
            match reply {
                Reply::Response { result, finality: Finality::EndApart } => {
                    state.parts.push_back(part(Some(result), false));
                    state.parts.push_back(part(None, true));
                }
                Reply::Response { result, finality } => {
                    state.parts.push_back(part(Some(result), finality == Finality::Final));
                }
                Reply::Finished => state.parts.push_back(part(None, true)),
            }
        }
        wake_batch::defer_wake(Waker::from(self.clone()));
    }

    /// Takes the next part if it has arrived.
    pub(crate) fn take(&self) -> Option<ReplyPart> {
        self.state.lock("take a reply").parts.pop_front()
    }

    /// Takes the next part, waiting for at most this duration.
    pub(crate) fn wait(&self, time_max: Duration) -> Option<ReplyPart> {
        let mut state = self.state.lock("wait for a reply");
        if state.parts.is_empty() {
            state = self.arrived.wait_timeout(state, time_max);
        }
        state.parts.pop_front()
    }

    /// Notifies an event loop once, as soon as a part is available.
    pub(crate) fn notify_loop(&self, event: Arc<LoopEvent>, request: u64) {
        let mut state = self.state.lock("wait for a reply in a loop");
        if state.parts.is_empty() {
            state.waiting = Some((event, request));
        } else {
            drop(state);
            event.notify(request);
        }
    }
}

impl Wake for Replies {
    fn wake(self: Arc<Self>) {
        let waiting = self.state.lock("wake who waits").waiting.take();
        self.arrived.notify_all();
        if let Some((event, request)) = waiting {
            event.notify(request);
        }
    }
}

/// Adds the server's replies to the queue. If a request fails before the call that sends it
/// returns, the reply goes to that call.
pub(crate) struct RepliesSink {
    pub(crate) replies: Arc<Replies>,
    pub(crate) call: Arc<InferAsyncCall>,
}

impl ResponseSink for RepliesSink {
    fn deliver(&mut self, reply: Reply) {
        if let Some(reply) = self.call.intercept_early_error(reply) {
            self.replies.push(reply);
        }
    }
}
