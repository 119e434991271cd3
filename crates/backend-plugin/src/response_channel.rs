//! The shared sending end for the responses to a plug-in's request.
//!
//! The request, its responses and its response factories share the sender and may use it on any
//! thread. Responses are sent in the order in which they are queued, by one thread at a time and
//! without holding a lock. A thread that finds another thread sending leaves its response to that
//! thread.
//!
//! When the last owner is dropped, it sends the final reply if the plug-in hasn't sent one.
//!
//! A rescheduled request gets a responder that leads back to the same channel, because responses
//! from the previous execution may still be pending.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use galatea_c_objects::log;
use galatea_infer::{
    Backpressure, CancelToken, DeviceOutputs, Finality, InferenceRequest, InferenceResponse, Reply,
    Responder, ResponseSink, StatisticsReporter, Status,
};
use galatea_stdx::{DriverSlot, Lock};

use crate::model::ServingModel;

/// A response or an error.
pub(crate) type ResponseResult = Result<InferenceResponse, Status>;

/// The channel for one request's responses. See the [module](self).
pub(crate) struct ResponseChannel {
    model_name: Arc<str>,
    model_version: i64,
    request_id: String,
    /// The outputs that may be placed in GPU memory.
    device_outputs: DeviceOutputs,
    log_prefix: String,
    decoupled: bool,
    /// `None` for padding.
    statistics: Option<StatisticsReporter>,
    cancel: CancelToken,
    backpressure: Backpressure,
    /// The number of responses that the plug-in has reported statistics for.
    reported: AtomicUsize,
    state: Lock<ChannelState>,
}

/// The queued messages and the driver slot of the thread that sends them.
struct ChannelState {
    /// Closed for padding, and after the final reply.
    sender: DriverSlot<Responder>,
    phase: ChannelPhase,
    waiting: VecDeque<ChannelMessage>,
    /// The latest response of a non-decoupled model, until another response follows or the plug-in
    /// declares this one final.
    provisional: Option<ResponseResult>,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum ChannelPhase {
    /// More responses may follow.
    Open,
    /// The final reply has been sent.
    Ended,
    /// The request has been refused. The server replies to it, not the plug-in.
    Detached,
    /// The request is padding, which receives no responses.
    Padding,
}

enum ChannelMessage {
    More(ResponseResult),
    Last(ResponseResult),
    /// The last response, for which the plug-in sent the final flag separately.
    LastApart(ResponseResult),
    End,
}

impl ChannelMessage {
    /// Returns the responder if more responses may follow.
    fn send(self, mut responder: Responder) -> Option<Responder> {
        match self {
            Self::More(result) => {
                responder.respond_nonfinal(result);
                return Some(responder);
            }
            Self::Last(result) => responder.complete_unrecorded(result),
            Self::LastApart(result) => responder.complete_separate_end_unrecorded(result),
            Self::End => responder.finish_unrecorded(),
        }
        None
    }
}

impl ResponseChannel {
    /// Returns true if an output may be placed in GPU memory.
    pub(crate) fn takes_on_device(&self, output: &str) -> bool {
        self.device_outputs.include(output)
    }

    pub(crate) fn new(
        responder: Option<Responder>,
        request: &InferenceRequest,
        serving: &ServingModel,
    ) -> Self {
        let phase = if responder.is_some() { ChannelPhase::Open } else { ChannelPhase::Padding };
        Self {
            model_name: serving.name.clone(),
            model_version: serving.version,
            request_id: request.id.clone(),
            device_outputs: request.device_outputs.clone(),
            log_prefix: request.log_prefix(),
            decoupled: serving.spec.decoupled,
            statistics: responder.as_ref().map(|responder| responder.statistics().clone()),
            cancel: request.cancel.clone(),
            backpressure: request.backpressure.clone(),
            reported: AtomicUsize::new(0),
            state: Lock::new(ChannelState {
                sender: responder.map_or(DriverSlot::Closed, DriverSlot::Idle),
                phase,
                waiting: VecDeque::new(),
                provisional: None,
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

    /// The statistics that count the request; `None` for padding.
    pub(crate) const fn statistics(&self) -> Option<&StatisticsReporter> {
        self.statistics.as_ref()
    }

    /// The index of the next response that the plug-in reports statistics for.
    pub(crate) fn next_response_index(&self) -> usize {
        self.reported.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if the request still needs a final reply.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock("check whether it is open").phase == ChannelPhase::Open
    }

    /// Returns the responder for a request that is about to be rescheduled, or `None` if the
    /// request already has its final reply.
    pub(crate) fn rescheduled_responder(self: &Arc<Self>) -> Option<Responder> {
        let statistics = self.statistics.as_ref().filter(|_| self.is_open())?;
        Some(statistics.chained_responder(Box::new(RescheduledSink(self.clone()))))
    }

    /// The channel that a request was rescheduled with; `None` if the request wasn't rescheduled.
    pub(crate) fn of_rescheduled(responder: &Responder) -> Option<Arc<Self>> {
        responder.backing_object()?.downcast().ok()
    }

    /// Takes the responder so that the server can reply instead of the plug-in. Returns `None`
    /// while a thread is sending, or after the final reply.
    pub(crate) fn take_responder(&self) -> Option<Responder> {
        let mut state = self.state.lock("take the responder");
        let responder = state.sender.take()?;
        state.sender.close();
        state.phase = ChannelPhase::Detached;
        state.provisional = None;
        Some(responder)
    }

    /// Sends a response; `is_final` marks the last one.
    ///
    /// # Errors
    ///
    /// Returned if the last response has already been sent.
    pub(crate) fn send(&self, result: ResponseResult, is_final: bool) -> Result<(), Status> {
        if self.enqueue_response(result, is_final)? {
            // A plug-in that sends many responses must not outrun a slow receiver.
            self.backpressure.wait_until_relieved(&self.cancel);
        }
        Ok(())
    }

    /// Queues a response. Returns true if more responses may follow.
    fn enqueue_response(&self, result: ResponseResult, is_final: bool) -> Result<bool, Status> {
        self.enqueue(|state| match (self.decoupled, is_final) {
            (true, true) => Some(ChannelMessage::Last(result)),
            (true, false) => Some(ChannelMessage::More(result)),
            (false, _) => hold_back(state, result, is_final),
        })
    }

    /// Sends the final flag without a response.
    ///
    /// # Errors
    ///
    /// Returned if the final flag has already been sent.
    pub(crate) fn end(&self) -> Result<(), Status> {
        self.enqueue(|state| {
            if self.decoupled {
                return Some(ChannelMessage::End);
            }
            // If there was no response, the door reports how many it expected.
            let last = state.provisional.take();
            Some(last.map_or(ChannelMessage::End, ChannelMessage::LastApart))
        })
        .map(drop)
    }

    /// Queues a message and sends the queue unless another thread is already sending. Returns true
    /// if more responses may follow.
    fn enqueue(
        &self,
        message: impl FnOnce(&mut ChannelState) -> Option<ChannelMessage>,
    ) -> Result<bool, Status> {
        let mut state = self.state.lock("add a message");
        match state.phase {
            ChannelPhase::Padding => return Ok(false),
            ChannelPhase::Open => {}
            ChannelPhase::Ended => {
                return Err(self.contract_violation("got a response after its final one"));
            }
            ChannelPhase::Detached => {
                return Err(self.contract_violation("got a response after it was refused"));
            }
        }
        let Some(message) = message(&mut state) else { return Ok(false) };
        let is_more = matches!(message, ChannelMessage::More(_));
        if !is_more {
            state.phase = ChannelPhase::Ended;
        }
        state.waiting.push_back(message);
        let Some(mut responder) = state.sender.take() else { return Ok(is_more) };
        loop {
            let next = state.waiting.pop_front();
            let Some((sender, message)) = state.sender.next_or_release(responder, next) else {
                break;
            };
            drop(state);
            let remaining = message.send(sender);
            state = self.state.lock("go on sending");
            match remaining {
                Some(sender) => responder = sender,
                None => {
                    state.sender.close();
                    break;
                }
            }
        }
        Ok(is_more)
    }

    /// Logs a contract violation and returns the error to report.
    fn contract_violation(&self, what: &str) -> Status {
        let text = format!("{}the request to model '{}' {what}", self.log_prefix, self.model_name);
        log::error(&text);
        Status::internal(text)
    }
}

/// Stores a response of a non-decoupled model, which should send exactly one. The response is kept
/// until it is known to be the last, so that a single response is sent as the final reply:
/// ensembles and the cache accept it only in that form. If there are several responses, the doors
/// count them.
fn hold_back(
    state: &mut ChannelState,
    result: ResponseResult,
    is_final: bool,
) -> Option<ChannelMessage> {
    let before = state.provisional.take();
    if !is_final {
        state.provisional = Some(result);
        return before.map(ChannelMessage::More);
    }
    if let Some(before) = before {
        state.waiting.push_back(ChannelMessage::More(before));
    }
    Some(ChannelMessage::Last(result))
}

/// The sink for the replies of a rescheduled request.
struct RescheduledSink(Arc<ResponseChannel>);

impl ResponseSink for RescheduledSink {
    fn deliver(&mut self, reply: Reply) {
        // The request was returned to the engine, so only the engine replies. Failures are logged.
        let _ = match reply {
            Reply::Response { result, finality: Finality::EndApart } => {
                self.0.enqueue_response(result, false).and_then(|_| self.0.end())
            }
            Reply::Response { result, finality } => {
                self.0.enqueue_response(result, finality == Finality::Final).map(drop)
            }
            Reply::Finished => self.0.end(),
        };
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.0.clone())
    }
}

impl Drop for ResponseChannel {
    /// Sends the final reply if the plug-in hasn't, because no owner remains that could do so.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let (responder, provisional) = (state.sender.close(), state.provisional.take());
        let Some(responder) = responder else { return };
        let result = match provisional {
            Some(result) => {
                self.contract_violation(
                    "was released before its response was said to be the final one",
                );
                result
            }
            None => {
                Err(self.contract_violation("was released by its backend without a final response"))
            }
        };
        responder.complete_unrecorded(result);
    }
}
