//! The sink of an inference request, which delivers its only response.

use std::sync::Arc;
use std::time::Instant;

use galatea_control::{DoorTracePoint, DoorTraceSink};
use galatea_door::CompletionQueue;
use galatea_explain::LatencyExplanation;
use galatea_infer::{CancelToken, InferenceResponse, Reply, ResponseSink, Status};
use tokio::sync::oneshot;

/// The response to a request, or the error in its place.
pub(crate) type InferenceResult = Result<InferenceResponse, Status>;

/// Receives the replies to a request that must have exactly one response, and delivers the result
/// when the final reply arrives.
pub(crate) struct SingleResponse {
    result: Option<InferenceResult>,
    responses: u32,
    receiver: Option<oneshot::Sender<InferenceResult>>,
    /// The completion queue of the waiting I/O thread; without a queue, the result goes directly to
    /// the request.
    completions: Option<Arc<CompletionQueue<InferenceResult>>>,
    /// The trace of the request.
    trace: Option<Arc<dyn DoorTraceSink>>,
    explanation: Option<Arc<LatencyExplanation>>,
}

impl SingleResponse {
    pub(crate) fn new(
        completions: Option<Arc<CompletionQueue<InferenceResult>>>,
        trace: Option<Arc<dyn DoorTraceSink>>,
        explanation: Option<Arc<LatencyExplanation>>,
    ) -> (Self, oneshot::Receiver<InferenceResult>) {
        let (sender, receiver) = oneshot::channel();
        let (result, sender) = (None, Some(sender));
        let receiving =
            Self { result, responses: 0, receiver: sender, completions, trace, explanation };
        (receiving, receiver)
    }

    fn finish(&mut self) {
        let result = match self.result.take() {
            Some(result) if self.responses == 1 => result,
            Some(_) | None => {
                Err(Status::internal(format!("expected a single response, got {}", self.responses)))
            }
        };
        let trace = self.trace.take();
        if let Some(trace) = trace.filter(|_| self.responses > 0) {
            trace.record(DoorTracePoint::ResponseComplete, Instant::now());
        }
        if let Some(explanation) = self.explanation.take() {
            explanation.record_delivery(&result, Instant::now());
        }
        let Some(receiver) = self.receiver.take() else { return };
        match &self.completions {
            Some(completions) => completions.complete(receiver, result),
            // The receiver is gone if the client has disconnected.
            None => drop(receiver.send(result)),
        }
    }
}

impl ResponseSink for SingleResponse {
    fn deliver(&mut self, reply: Reply) {
        let is_final = reply.is_final();
        if let Reply::Response { result, .. } = reply {
            self.responses = self.responses.saturating_add(1);
            self.result.get_or_insert(result);
        }
        if is_final {
            self.finish();
        }
    }
}

/// Cancels its request when dropped. A connection that is closed early drops the request's future,
/// which drops this value.
pub(crate) struct CancelOnDrop(CancelToken);

impl CancelOnDrop {
    pub(crate) const fn new(token: CancelToken) -> Self {
        Self(token)
    }

    /// Notes that the request has its response, so nothing is left to cancel.
    pub(crate) fn disarm(mut self) {
        self.0 = CancelToken::default();
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use galatea_infer::ResponseSender;

    use super::*;

    fn check(act: impl FnOnce(ResponseSender), expected: &str) {
        let (sink, mut receiver) = SingleResponse::new(None, None, None);
        act(ResponseSender::new(Box::new(sink)));
        let result = receiver.try_recv().unwrap();
        assert_eq!(result.unwrap_err().message(), expected);
    }

    #[test]
    fn exactly_one_response_passes() {
        let error = || Err(Status::unavailable("busy"));
        check(|sender| sender.send_final(error()), "busy");
        check(
            |mut sender| {
                sender.send(error());
                sender.finish_without_response();
            },
            "busy",
        );
        check(ResponseSender::finish_without_response, "expected a single response, got 0");
        check(
            |mut sender| {
                sender.send(error());
                sender.send_final(error());
            },
            "expected a single response, got 2",
        );
        check(drop, "the request was dropped without a final response");
    }

    #[test]
    fn dropping_the_guard_cancels_unless_disarmed() {
        let token = CancelToken::new();
        CancelOnDrop::new(token.clone()).disarm();
        assert!(!token.is_cancelled());
        drop(CancelOnDrop::new(token.clone()));
        assert!(token.is_cancelled());
    }
}
