//! The sender of a request's replies: the only way back to the caller.

use std::any::Any;
use std::sync::Arc;

use crate::{InferenceResponse, Status};

/// The position of a reply among the replies to its request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Finality {
    /// More replies may follow.
    More,
    /// This is the last reply.
    Final,
    /// This is the last reply, but the model ended the request only after sending it. Where Triton
    /// reports the end to clients separately, so do we.
    EndApart,
}

/// A message to a [`ResponseSink`].
#[derive(Debug)]
pub enum Reply {
    /// A response, or the error in its place.
    Response {
        /// The response or error.
        result: Result<InferenceResponse, Status>,
        /// The reply's finality.
        finality: Finality,
    },
    /// The request has ended without a further response.
    Finished,
}

impl Reply {
    /// Returns true if nothing follows this reply.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        !matches!(self, Self::Response { finality: Finality::More, .. })
    }
}

/// The door's receiver for the replies to one request.
///
/// Any thread may call it, so it must not block. It is not called again after a final reply. It
/// wakes other threads through `galatea_stdx::wake_batch::defer`, because many replies may arrive
/// at once.
pub trait ResponseSink: Send {
    /// Receives one reply.
    fn deliver(&mut self, reply: Reply);

    /// Receives the only reply to a request that never reached a backend: the reason for the
    /// refusal.
    fn refuse(&mut self, status: Status) {
        self.deliver(Reply::Response { result: Err(status), finality: Finality::Final });
    }

    /// The object behind the sink. It lets the sink's creator recognize a sender that is handed
    /// back. `None` if that is never needed.
    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

impl<F: FnMut(Reply) + Send> ResponseSink for F {
    fn deliver(&mut self, reply: Reply) {
        self(reply);
    }
}

/// The obligation to reply to one request: exactly one final reply reaches the
/// sink, even if the sender is dropped.
#[must_use = "a sender that is dropped sends an internal error"]
pub struct ResponseSender {
    sink: Option<Box<dyn ResponseSink>>,
}

impl ResponseSender {
    /// Makes a sender whose replies go to `sink`.
    pub fn new(sink: Box<dyn ResponseSink>) -> Self {
        Self { sink: Some(sink) }
    }

    /// Sends a response that is not the last.
    pub fn send(&mut self, result: Result<InferenceResponse, Status>) {
        if let Some(sink) = &mut self.sink {
            sink.deliver(Reply::Response { result, finality: Finality::More });
        }
    }

    /// Sends the last response.
    pub fn send_final(mut self, result: Result<InferenceResponse, Status>) {
        self.end(Reply::Response { result, finality: Finality::Final });
    }

    /// Sends the last response of a model that ends the request separately, after sending it.
    pub fn send_final_with_separate_end(mut self, result: Result<InferenceResponse, Status>) {
        self.end(Reply::Response { result, finality: Finality::EndApart });
    }

    /// Ends the request with an error.
    pub fn fail(self, status: Status) {
        self.send_final(Err(status));
    }

    /// Ends the request with an error, and reports that no backend received the request.
    pub fn refuse(mut self, status: Status) {
        if let Some(mut sink) = self.sink.take() {
            sink.refuse(status);
        }
    }

    /// Ends the request without a further response.
    pub fn finish_without_response(mut self) {
        self.end(Reply::Finished);
    }

    /// Wraps the sink in a layer that sees the replies pass through.
    pub fn wrap(
        mut self,
        wrap: impl FnOnce(Box<dyn ResponseSink>) -> Box<dyn ResponseSink>,
    ) -> Self {
        Self { sink: self.sink.take().map(wrap) }
    }

    /// The object behind the sink; see [`ResponseSink::underlying`].
    #[must_use]
    pub fn backing_object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.sink.as_ref().and_then(|sink| sink.underlying())
    }

    /// Drops the sender without a reply. Used by the sink's owner, which replies by other means.
    pub fn discard(mut self) {
        self.sink = None;
    }

    fn end(&mut self, reply: Reply) {
        if let Some(mut sink) = self.sink.take() {
            sink.deliver(reply);
        }
    }
}

impl Drop for ResponseSender {
    fn drop(&mut self) {
        let lost = Status::internal("the request was dropped without a final response");
        self.end(Reply::Response { result: Err(lost), finality: Finality::Final });
    }
}

impl std::fmt::Debug for ResponseSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseSender")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn check(act: impl FnOnce(ResponseSender), expected: &[&str]) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        act(ResponseSender::new(Box::new(move |reply: Reply| {
            let text = match &reply {
                Reply::Finished => String::from("finished"),
                Reply::Response { result, finality } => {
                    let status = result.as_ref().err().map_or("ok", Status::message);
                    format!("{finality:?}: {status}")
                }
            };
            log.lock().unwrap().push(text);
        })));
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    fn error(message: &'static str) -> Result<InferenceResponse, Status> {
        Err(Status::internal(message))
    }

    #[test]
    fn every_end_sends_exactly_one_final_reply() {
        check(drop, &["Final: the request was dropped without a final response"]);
        check(ResponseSender::finish_without_response, &["finished"]);
        check(|sender| sender.refuse(Status::internal("no")), &["Final: no"]);
        check(|sender| sender.send_final(error("a")), &["Final: a"]);
        check(
            |mut sender| {
                sender.send(error("a"));
                sender.send(error("b"));
                sender.finish_without_response();
            },
            &["More: a", "More: b", "finished"],
        );
        check(|sender| sender.wrap(|sink| sink).finish_without_response(), &["finished"]);
    }
}
