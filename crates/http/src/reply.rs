//! Where the replies to one inference arrive.

use std::sync::Arc;

use galatea_infer::{CancelToken, InferenceResponse, Reply, ResponseSink, Status};
use tokio::sync::oneshot;

use crate::mailroom::Mailroom;

pub(crate) type Outcome = Result<InferenceResponse, Status>;

/// Takes the replies to a request that must have exactly one response, and
/// passes the outcome on at the end.
pub(crate) struct SingleResponse {
    outcome: Option<Outcome>,
    responses: u32,
    waiting: Option<oneshot::Sender<Outcome>>,
    /// The mailroom of the worker that waits; without one the outcome goes
    /// straight to the request.
    mailroom: Option<Arc<Mailroom>>,
}

impl SingleResponse {
    pub(crate) fn new(mailroom: Option<Arc<Mailroom>>) -> (Self, oneshot::Receiver<Outcome>) {
        let (sender, receiver) = oneshot::channel();
        (Self { outcome: None, responses: 0, waiting: Some(sender), mailroom }, receiver)
    }

    fn finish(&mut self) {
        let outcome = match self.outcome.take() {
            Some(outcome) if self.responses == 1 => outcome,
            Some(_) | None => {
                Err(Status::internal(format!("expected a single response, got {}", self.responses)))
            }
        };
        let Some(waiting) = self.waiting.take() else { return };
        match &self.mailroom {
            Some(mailroom) => mailroom.post(waiting, outcome),
            // Nobody waits if the client has gone.
            None => drop(waiting.send(outcome)),
        }
    }
}

impl ResponseSink for SingleResponse {
    fn deliver(&mut self, reply: Reply) {
        let is_final = reply.is_final();
        if let Reply::Response { result, .. } = reply {
            self.responses = self.responses.saturating_add(1);
            self.outcome.get_or_insert(result);
        }
        if is_final {
            self.finish();
        }
    }
}

/// Cancels its request when it is dropped: that is how a connection that
/// closes early reaches the request.
pub(crate) struct CancelOnDrop(CancelToken);

impl CancelOnDrop {
    pub(crate) const fn new(token: CancelToken) -> Self {
        Self(token)
    }

    /// The request is answered; there is nothing left to cancel.
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
        let (sink, mut receiver) = SingleResponse::new(None);
        act(ResponseSender::new(Box::new(sink)));
        let outcome = receiver.try_recv().unwrap();
        assert_eq!(outcome.unwrap_err().message(), expected);
    }

    #[test]
    fn exactly_one_response_passes() {
        let error = || Err(Status::unavailable("busy"));
        check(|sender| sender.send_final(error()), "busy");
        check(
            |mut sender| {
                sender.send(error());
                sender.finish();
            },
            "busy",
        );
        check(ResponseSender::finish, "expected a single response, got 0");
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
