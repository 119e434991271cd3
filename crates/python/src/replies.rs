//! The replies to one request, on their way from the server's threads to Python.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use galatea_capi::HandoverCall;
use galatea_infer::{Finality, InferenceResponse, Reply, ResponseSink, Status};
use galatea_stdx::io_thread::wake_batch;
use galatea_stdx::{Condvar, Lock};

use crate::event_loop::LoopEvent;

/// One step of the reply, as Triton's callbacks receive it.
pub(crate) struct ReplyPart {
    /// The response or error; `None` if the end comes separately.
    pub(crate) result: Option<Result<InferenceResponse, Status>>,
    /// True if this is the last step.
    pub(crate) is_final: bool,
}

/// A queue between the server and the threads and event loops that wait.
#[derive(Default)]
pub(crate) struct Replies {
    state: Lock<RepliesState>,
    arrived: Condvar,
}

#[derive(Default)]
struct RepliesState {
    /// The parts that the model has sent and the program has not taken yet. Unbounded.
    parts: VecDeque<ReplyPart>,
    /// The event loop that waits for the next part, and its number for the request.
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
        wake_batch::defer(Waker::from(self.clone()));
    }

    /// Takes the next part, if it has arrived.
    pub(crate) fn take(&self) -> Option<ReplyPart> {
        self.state.lock("take a reply").parts.pop_front()
    }

    /// Takes the next part, waiting for at most this long.
    pub(crate) fn wait(&self, time_max: Duration) -> Option<ReplyPart> {
        let mut state = self.state.lock("wait for a reply");
        if state.parts.is_empty() {
            state = self.arrived.wait_timeout(state, time_max);
        }
        state.parts.pop_front()
    }

    /// Notifies an event loop once, when a part is available.
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

/// Passes the server's replies to the queue. If a request fails before its call returns, its reply
/// goes to the call.
pub(crate) struct RepliesSink {
    pub(crate) replies: Arc<Replies>,
    pub(crate) call: Arc<HandoverCall>,
}

impl ResponseSink for RepliesSink {
    fn deliver(&mut self, reply: Reply) {
        if let Some(reply) = self.call.intercept(reply) {
            self.replies.push(reply);
        }
    }
}
