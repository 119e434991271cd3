//! The sink of a unary inference call.

use std::sync::Arc;
use std::time::Instant;

use galatea_codec::compression::ContentCoding;
use galatea_codec::regions::OutputPostprocessing;
use galatea_codec_grpc::encode_infer_response;
use galatea_control::DoorTracePoint;
use galatea_explain::{LatencyExplanation, Milestone};
use galatea_infer::{CancelToken, InferenceResponse, Reply, ResponseSink, Status};
use galatea_stdx::Inbox;

use crate::budget::{Outgoing, RequestCharge, ResponseBudget};
use crate::call_key::CallKey;
use crate::call_trace::{CallTrace, SendTrace};
use crate::delay::Delay;
use crate::event::ConnectionEvent;
use crate::failure::Failure;

/// Receives the replies to a call and delivers its response to the connection.
///
/// The message is encoded here, on the thread that responds. The response is in that core's caches
/// and its parts were allocated on that thread, so a single buffer changes threads instead of
/// several.
pub(crate) struct CallSink {
    charge: RequestCharge,
    inbox: Arc<Inbox<ConnectionEvent>>,
    call: CallKey,
    form: ResponseForm,
    response: SingleResponse,
}

/// The form of a response.
pub(crate) struct ResponseForm {
    pub(crate) replaced: OutputPostprocessing,
    pub(crate) coding: Option<ContentCoding>,
    pub(crate) delay: Delay,
    /// For tests only: the cancellation to watch, and the delay before the end of the call if the
    /// client has disconnected.
    pub(crate) cancelled_end: Option<(CancelToken, Delay)>,
    /// The trace of the request.
    pub(crate) trace: Option<Arc<CallTrace>>,
    pub(crate) explanation: Option<Arc<LatencyExplanation>>,
}

impl CallSink {
    pub(crate) const fn new(
        charge: RequestCharge,
        inbox: Arc<Inbox<ConnectionEvent>>,
        call: CallKey,
        form: ResponseForm,
    ) -> Self {
        Self { charge, inbox, call, form, response: SingleResponse::None }
    }
}

impl ResponseSink for CallSink {
    fn deliver(&mut self, reply: Reply) {
        let is_answered = matches!(reply, Reply::Response { .. })
            || !matches!(self.response, SingleResponse::None);
        let Some(result) = self.response.add(reply) else { return };
        let trace = self.form.trace.as_ref();
        if let Some(trace) = trace.filter(|_| is_answered) {
            trace.record(DoorTracePoint::ResponseComplete);
        }
        if let Some(explanation) = &self.form.explanation {
            explanation.record_delivery(&result, Instant::now());
        }
        self.form.delay.wait();
        if let Some((cancel, delay)) = &self.form.cancelled_end
            && cancel.is_cancelled()
        {
            delay.wait();
        }
        let budget = ResponseBudget::Call(self.charge.budget().clone());
        let result = result
            .and_then(|response| self.form.replaced.apply(response))
            .and_then(|response| encode_infer_response(&response))
            .map(|message| match self.form.coding {
                Some(coding) => message.compressed(coding),
                None => message,
            })
            .map_err(Failure::from)
            .and_then(|message| Outgoing::new(message, budget).map_err(Failure::from))
            .map(|message| message.traced(trace));
        if let (Err(_), Some(trace)) = (&result, trace) {
            drop(SendTrace::begin(trace.clone()));
        }
        if let Some(explanation) = &self.form.explanation {
            explanation.set_milestone(Milestone::Encoded, Instant::now());
        }
        // The client's regions must be out of use by the time it has its response.
        self.form.replaced = OutputPostprocessing::default();
        // A closed inbox drops the event, because the connection has ended.
        let _ = self.inbox.push(ConnectionEvent::CallFinished { call: self.call, result });
    }
}

/// The error for a model that is not decoupled but sent this many responses.
pub(crate) fn not_single(count: u64) -> Status {
    Status::internal(format!("expected a single response, got {count}"))
}

/// The response of a model that is not decoupled. It may be delivered before the final reply.
pub(crate) enum SingleResponse {
    None,
    One(Result<InferenceResponse, Status>),
    Many(u64),
}

impl SingleResponse {
    /// Adds a reply. Returns the result once the final reply has arrived.
    pub(crate) fn add(&mut self, reply: Reply) -> Option<Result<InferenceResponse, Status>> {
        let is_final = reply.is_final();
        if let Reply::Response { result, .. } = reply {
            self.count(result);
        }
        is_final.then(|| match std::mem::replace(self, Self::None) {
            Self::One(result) => result,
            Self::None => Err(not_single(0)),
            Self::Many(count) => Err(not_single(count)),
        })
    }

    fn count(&mut self, result: Result<InferenceResponse, Status>) {
        *self = match self {
            Self::None => Self::One(result),
            Self::One(_) => Self::Many(2),
            Self::Many(count) => Self::Many(count.saturating_add(1)),
        };
    }
}
