//! The sink of a single stream request.

use std::sync::Arc;
use std::time::Instant;

use galatea_codec::regions::OutputPostprocessing;
use galatea_codec_grpc::MessageChunks;
use galatea_codec_grpc::stream::{
    RequestNames, encode_empty_final_response, encode_stream_failure, encode_stream_response,
    encode_unrouted_error,
};
use galatea_control::DoorTracePoint;
use galatea_explain::LatencyExplanation;
use galatea_infer::{
    Code, Finality, InferenceResponse, Parameter, ParameterValue, Reply, ResponseSink, Status,
};

use super::handle::{StreamErrors, StreamHandle};
use crate::budget::{DroppedResponse, Outgoing, RequestCharge, ResponseBudget, ResponsePool};
use crate::call_sink::not_single;
use crate::call_trace::CallTrace;
use crate::event::ConnectionEvent;
use crate::failure::Failure;
use crate::reorder::{ReplyMode, ReplySlot};

/// Receives the replies to one request, encodes them on the thread that responds, and delivers them
/// to the connection.
pub(crate) struct StreamSink {
    stream: Arc<StreamHandle>,
    slot: ReplySlot,
    tag: RequestNames,
    replaced: OutputPostprocessing,
    replies: ExpectedReplies,
    /// The budget to which responses are charged.
    budget: ResponseBudget,
    _charge: RequestCharge,
    /// The trace of the request.
    trace: Option<Arc<CallTrace>>,
    has_replied: bool,
    /// The explanation, which goes into the first response.
    explanation: Option<Arc<LatencyExplanation>>,
}

enum ExpectedReplies {
    /// A single response: the response in the first reply, and true if that reply was the final
    /// one.
    One(Option<(Result<InferenceResponse, Status>, bool)>),
    /// Any number of responses.
    Many(EmptyFinal),
}

/// The treatment of a final reply without a response.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum EmptyFinal {
    Sent,
    Dropped,
}

impl StreamSink {
    pub(crate) fn new(
        stream: Arc<StreamHandle>,
        slot: ReplySlot,
        mode: ReplyMode,
        tag: RequestNames,
        sends_empty_final: bool,
        replaced: OutputPostprocessing,
        charge: RequestCharge,
    ) -> Self {
        let replies = match mode {
            ReplyMode::Ordered => ExpectedReplies::One(None),
            ReplyMode::Immediate if sends_empty_final => ExpectedReplies::Many(EmptyFinal::Sent),
            ReplyMode::Immediate => ExpectedReplies::Many(EmptyFinal::Dropped),
        };
        let budget = ResponseBudget::Stream(stream.budget.clone());
        Self {
            stream,
            slot,
            tag,
            replaced,
            replies,
            budget,
            _charge: charge,
            trace: None,
            has_replied: false,
            explanation: None,
        }
    }

    /// Explains the request in its first response.
    pub(crate) fn explained(self, explanation: Option<Arc<LatencyExplanation>>) -> Self {
        Self { explanation, ..self }
    }

    /// Records responses in the trace of their request.
    pub(crate) fn traced(self, trace: Option<Arc<CallTrace>>) -> Self {
        Self { trace, ..self }
    }

    /// Charges the responses to their request's pool.
    pub(crate) fn within(self, pool: Arc<ResponsePool>) -> Self {
        Self { budget: ResponseBudget::Pool(pool), ..self }
    }

    fn encode(
        &self,
        result: Result<InferenceResponse, Status>,
        is_final: bool,
    ) -> Result<MessageChunks, Failure> {
        let encoded = result
            .and_then(|response| self.replaced.apply(response))
            .and_then(|response| encode_stream_response(&response, is_final));
        match (encoded, self.stream.form.errors) {
            (Ok(message), _) => Ok(message),
            (Err(status), StreamErrors::AsStatus) => Err(status.into()),
            (Err(status), StreamErrors::AsMessages) => {
                encode_stream_failure(&self.tag, status.message(), is_final).map_err(Failure::from)
            }
        }
    }

    /// Creates a counted message, or an error if the memory limit leaves no room for it. Returns
    /// `None` if the stream must be reset.
    fn outgoing(
        &self,
        message: MessageChunks,
        is_final: bool,
    ) -> Option<Result<Outgoing, Failure>> {
        let budget = || self.budget.clone();
        let exhausted = match Outgoing::new(message, budget()) {
            Ok(outgoing) => return Some(Ok(outgoing.traced(self.trace.as_ref()))),
            Err(DroppedResponse::Overrun) => return None,
            Err(DroppedResponse::Exhausted(exhausted)) => exhausted,
        };
        match self.stream.form.errors {
            StreamErrors::AsStatus => Some(Err(exhausted.into())),
            StreamErrors::AsMessages => {
                let text = exhausted.to_string();
                let message = encode_stream_failure(&self.tag, &text, is_final).ok()?;
                Outgoing::new(message, budget()).ok().map(Ok)
            }
        }
    }

    /// Adds the explanation of the request to its first response.
    fn explain(&mut self, reply: &mut Reply) {
        let Reply::Response { result, .. } = reply else { return };
        let Some(explanation) = self.explanation.take() else { return };
        explanation.record_delivery(result, Instant::now());
        if let (Ok(response), Some(text)) = (result, explanation.text()) {
            let (name, value) = (LatencyExplanation::PARAMETER, ParameterValue::String(text.json));
            response.parameters.push(Parameter { name: name.to_owned(), value });
        }
    }

    fn send(&mut self, message: Option<Result<MessageChunks, Failure>>, is_final: bool) {
        if is_final {
            // The client's regions must be out of use by the time it has its last response.
            self.replaced = OutputPostprocessing::default();
        }
        let (call, slot) = (self.stream.call, self.slot);
        let message = match message {
            None => None,
            Some(Err(failure)) => Some(Err(failure)),
            Some(Ok(message)) => {
                let message = match self.stream.form.coding {
                    Some(coding) => message.compressed(coding),
                    None => message,
                };
                let Some(outgoing) = self.outgoing(message, is_final) else {
                    // Later replies are dropped, so a model that never ends can't fill the
                    // connection's inbox.
                    self.stream.budget.end();
                    self.stream.push(ConnectionEvent::StreamOverrun { call });
                    return;
                };
                Some(outgoing)
            }
        };
        self.stream.push(ConnectionEvent::StreamReply { call, slot, message, is_final });
    }
}

impl ResponseSink for StreamSink {
    fn deliver(&mut self, mut reply: Reply) {
        if self.stream.budget.is_over() {
            return;
        }
        self.explain(&mut reply);
        self.stream.form.delay.wait();
        // As in Triton, only the first reply counts.
        let is_first = !std::mem::replace(&mut self.has_replied, true);
        if let Some(trace) = self.trace.as_ref().filter(|_| is_first) {
            trace.record(DoorTracePoint::ResponseComplete);
        }
        let is_final = reply.is_final();
        match (&mut self.replies, reply) {
            // Like Triton, this delivers the first response and drops the rest. Its message states
            // whether its own reply was the final one.
            (ExpectedReplies::One(first), reply) => {
                if let Reply::Response { result, finality } = reply {
                    first.get_or_insert((result, finality == Finality::Final));
                }
                if is_final {
                    let (result, is_end) = first.take().unwrap_or((Err(not_single(0)), true));
                    let message = self.encode(result, is_end);
                    self.send(Some(message), true);
                }
            }
            (ExpectedReplies::Many(_), Reply::Response { result, .. }) => {
                let message = self.encode(result, is_final);
                self.send(Some(message), is_final);
            }
            (ExpectedReplies::Many(EmptyFinal::Sent), Reply::Finished) => {
                let message = encode_empty_final_response(&self.tag).map_err(Failure::from);
                self.send(Some(message), true);
            }
            (ExpectedReplies::Many(EmptyFinal::Dropped), Reply::Finished) => self.send(None, true),
        }
    }

    /// Sends a refusal. As in Triton, it stays a message even if failures end the stream.
    fn refuse(&mut self, status: Status) {
        if status.code() == Code::Exhausted {
            // The status informs the client when to retry.
            let result = Err(status);
            return self.deliver(Reply::Response { result, finality: Finality::Final });
        }
        if self.stream.budget.is_over() {
            return;
        }
        self.stream.form.delay.wait();
        let message = encode_unrouted_error(&self.tag.id, status.message());
        self.send(Some(message.map_err(Failure::from)), true);
    }
}
