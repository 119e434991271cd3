//! The shared end through which the responses of a plug-in's request leave.
//!
//! The sender is taken out of the request and shared by the request, its responses and
//! its factories, on any thread. Responses leave in the order in which they are sent, one
//! thread at a time and without a lock held: a thread that finds another one sending
//! leaves its response to that thread.
//!
//! The last share to be dropped sends the final reply if the plug-in has not sent one.
//!
//! A request that is to be executed again gets a responder that leads back to the same
//! channel, because responses of the execution before may still be on their way.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use galatea_c_objects::log;
use galatea_infer::{
    CancelToken, Finality, InferenceRequest, InferenceResponse, Reply, Responder, ResponseSink,
    StatisticsReporter, Status, Throttle,
};

use crate::model::Live;
use crate::plugins::lock;

/// A response, or the error in its place.
pub(crate) type Outcome = Result<InferenceResponse, Status>;

/// The channel of one request's responses. See the [module](self).
pub struct Exchange {
    model_name: Arc<str>,
    model_version: i64,
    request_id: String,
    log_prefix: String,
    decoupled: bool,
    /// `None` for padding.
    account: Option<StatisticsReporter>,
    cancel: CancelToken,
    throttle: Throttle,
    /// The number of responses that the plug-in has reported on.
    reported: AtomicUsize,
    line: Mutex<Line>,
}

/// What waits to be sent, and who sends it.
struct Line {
    /// Absent while a thread sends, and after the end.
    responder: Option<Responder>,
    state: State,
    waiting: VecDeque<Message>,
    is_sending: bool,
    /// The response of a model that isn't decoupled, until the plug-in declares it final.
    held: Option<Outcome>,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    /// Responses may follow.
    Open,
    /// The final reply was sent.
    Ended,
    /// The request was refused. The server replies to it without the plug-in.
    Elsewhere,
    /// Padding gets no response.
    Padding,
}

enum Message {
    More(Outcome),
    Last(Outcome),
    End,
}

impl Exchange {
    pub(crate) fn new(
        responder: Option<Responder>,
        request: &InferenceRequest,
        live: &Live,
    ) -> Self {
        let state = if responder.is_some() { State::Open } else { State::Padding };
        Self {
            model_name: live.name.clone(),
            model_version: live.version,
            request_id: request.id.clone(),
            log_prefix: request.log_prefix(),
            decoupled: live.spec.decoupled,
            account: responder.as_ref().map(|responder| responder.statistics().clone()),
            cancel: request.cancel.clone(),
            throttle: request.throttle.clone(),
            reported: AtomicUsize::new(0),
            line: Mutex::new(Line {
                responder,
                state,
                waiting: VecDeque::new(),
                is_sending: false,
                held: None,
            }),
        }
    }

    pub(crate) fn model_name(&self) -> Arc<str> {
        self.model_name.clone()
    }

    pub(crate) const fn model_version(&self) -> i64 {
        self.model_version
    }

    pub(crate) fn request_id(&self) -> &str {
        &self.request_id
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Where the request is counted; `None` for padding.
    pub(crate) const fn account(&self) -> Option<&StatisticsReporter> {
        self.account.as_ref()
    }

    /// The index of the next response that is reported on.
    pub(crate) fn next_reported(&self) -> usize {
        self.reported.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the request still needs a final reply.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.line).state == State::Open
    }

    /// The responder for a request that is to be executed again. `None` if the request
    /// has its final reply.
    pub(crate) fn stand_in(self: &Arc<Self>) -> Option<Responder> {
        let account = self.account.as_ref().filter(|_| self.is_open())?;
        Some(account.responder(Box::new(Relay(self.clone()))))
    }

    /// The channel that a request was rescheduled with, if it was rescheduled.
    pub(crate) fn of_returned(responder: &Responder) -> Option<Arc<Self>> {
        responder.underlying()?.downcast().ok()
    }

    /// Takes the responder out, because the server replies without the plug-in.
    pub(crate) fn take_responder(&self) -> Option<Responder> {
        let mut line = lock(&self.line);
        let responder = line.responder.take()?;
        line.state = State::Elsewhere;
        line.held = None;
        Some(responder)
    }

    /// Sends a response; `is_final` if it is the last.
    ///
    /// # Errors
    ///
    /// If the last one was sent before.
    pub(crate) fn send(&self, outcome: Outcome, is_final: bool) -> Result<(), Status> {
        if self.answer(outcome, is_final)? {
            // A plug-in that sends many responses must not outrun a slow receiver.
            self.throttle.wait(&self.cancel);
        }
        Ok(())
    }

    /// Returns whether more responses may follow.
    fn answer(&self, outcome: Outcome, is_final: bool) -> Result<bool, Status> {
        self.post(|line| match (self.decoupled, is_final) {
            (true, true) => Some(Message::Last(outcome)),
            (true, false) => Some(Message::More(outcome)),
            (false, _) => self.only_response(line, outcome, is_final).map(Message::Last),
        })
    }

    /// Sends the end of the responses.
    ///
    /// # Errors
    ///
    /// If the end was sent before.
    pub(crate) fn end(&self) -> Result<(), Status> {
        self.post(|line| {
            if self.decoupled {
                return Some(Message::End);
            }
            Some(Message::Last(line.held.take().unwrap_or_else(|| {
                Err(self.broken("ended without a response, which its model must give"))
            })))
        })
        .map(drop)
    }

    /// A model that isn't decoupled sends one response. The response is kept until it is
    /// declared final, and a second one turns it into an error.
    fn only_response(&self, line: &mut Line, outcome: Outcome, is_final: bool) -> Option<Outcome> {
        let outcome = match line.held.take() {
            None => outcome,
            Some(_) => {
                Err(self.broken("got more than one response, but its model isn't decoupled"))
            }
        };
        if is_final {
            return Some(outcome);
        }
        line.held = Some(outcome);
        None
    }

    /// Adds a message to the queue, and sends the queue unless another thread is sending.
    /// Returns whether more responses may follow.
    fn post(&self, message: impl FnOnce(&mut Line) -> Option<Message>) -> Result<bool, Status> {
        let mut line = lock(&self.line);
        match line.state {
            State::Padding => return Ok(false),
            State::Open => {}
            State::Ended => return Err(self.broken("got a response after its final one")),
            State::Elsewhere => return Err(self.broken("got a response after it was refused")),
        }
        let Some(message) = message(&mut line) else { return Ok(false) };
        let is_more = matches!(message, Message::More(_));
        if !is_more {
            line.state = State::Ended;
        }
        line.waiting.push_back(message);
        if line.is_sending {
            return Ok(is_more);
        }
        line.is_sending = true;
        while let (Some(mut responder), Some(message)) =
            (line.responder.take(), line.waiting.pop_front())
        {
            drop(line);
            let responder = match message {
                Message::More(outcome) => {
                    responder.respond(outcome);
                    Some(responder)
                }
                Message::Last(outcome) => {
                    responder.complete_unrecorded(outcome);
                    None
                }
                Message::End => {
                    responder.finish_unrecorded();
                    None
                }
            };
            line = lock(&self.line);
            line.responder = responder;
            if line.waiting.is_empty() {
                break;
            }
        }
        line.is_sending = false;
        Ok(is_more)
    }

    /// Logs a broken contract, and returns the error for it.
    fn broken(&self, what: &str) -> Status {
        let text = format!("{}the request to model '{}' {what}", self.log_prefix, self.model_name);
        log::error(&text);
        Status::internal(text)
    }
}

/// The sink of a request that is to be executed again.
struct Relay(Arc<Exchange>);

impl ResponseSink for Relay {
    fn deliver(&mut self, reply: Reply) {
        // The request was given back, so only the engine replies. Failures are logged.
        let _ = match reply {
            Reply::Response { result, finality } => {
                self.0.answer(result, finality == Finality::Final).map(drop)
            }
            Reply::Finished => self.0.end(),
        };
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.0.clone())
    }
}

impl Drop for Exchange {
    /// No share is left that could send the final reply.
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (responder, held) = (line.responder.take(), line.held.take());
        let Some(responder) = responder else { return };
        let outcome = match held {
            Some(outcome) => {
                self.broken("was released before its response was said to be the final one");
                outcome
            }
            None => Err(self.broken("was released by its backend without a final response")),
        };
        responder.complete_unrecorded(outcome);
    }
}
