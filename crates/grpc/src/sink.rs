//! Where the replies to a single call go.

use galatea_codec::classification::Classification;
use galatea_codec::grpc::{GrpcCode, encode_infer_response};
use galatea_infer::{InferenceResponse, Reply, ResponseSink, Status};

use crate::answer::Failure;
use crate::in_progress::InProgress;
use crate::signal::{CallKey, News};
use crate::unwritten::{Holder, Outgoing};

/// Receives the replies to one call and brings the answer to the connection.
///
/// The message is encoded here, on the thread that answers: the response is
/// in that core's cache and its parts were allocated on that thread, so one
/// buffer changes threads instead of a handful.
pub(crate) struct CallSink {
    in_progress: InProgress,
    call: CallKey,
    classification: Option<Classification>,
    replies: OneResponse,
}

impl CallSink {
    pub(crate) const fn new(
        in_progress: InProgress,
        call: CallKey,
        classification: Option<Classification>,
    ) -> Self {
        Self { in_progress, call, classification, replies: OneResponse::None }
    }
}

impl ResponseSink for CallSink {
    fn deliver(&mut self, reply: Reply) {
        let Some(outcome) = self.replies.take(reply) else { return };
        let signal = self.in_progress.signal();
        let outcome = classified(outcome, self.classification.as_ref())
            .and_then(|response| encode_infer_response(&response))
            .map_err(Failure::from)
            .and_then(|message| {
                Outgoing::new(message, Holder::Call(signal.clone())).ok_or_else(overrun)
            });
        signal.push(News::Answer { call: self.call, outcome });
    }
}

/// The outcome with classes in the place of outputs, where they are wanted.
pub(crate) fn classified(
    outcome: Result<InferenceResponse, Status>,
    classification: Option<&Classification>,
) -> Result<InferenceResponse, Status> {
    match classification {
        None => outcome,
        Some(classification) => classification.apply(outcome?),
    }
}

/// Said in the place of an answer that there is no room for.
pub(crate) fn overrun() -> Failure {
    let message = "the answer was dropped: the client does not read those before it";
    Failure::new(GrpcCode::ResourceExhausted, message)
}

/// What came so far of the one response of a request to a model that is not
/// decoupled; it may come before the end.
pub(crate) enum OneResponse {
    None,
    One(Result<InferenceResponse, Status>),
    Many(u64),
}

impl OneResponse {
    /// Takes a reply; returns the outcome when it was the last.
    pub(crate) fn take(&mut self, reply: Reply) -> Option<Result<InferenceResponse, Status>> {
        let is_final = reply.is_final();
        if let Reply::Response { result, .. } = reply {
            self.note(result);
        }
        is_final.then(|| match std::mem::replace(self, Self::None) {
            Self::One(result) => result,
            Self::None => Err(Status::internal("the model ended without a response")),
            Self::Many(count) => {
                Err(Status::internal(format!("expected a single response, got {count}")))
            }
        })
    }

    fn note(&mut self, outcome: Result<InferenceResponse, Status>) {
        *self = match self {
            Self::None => Self::One(outcome),
            Self::One(_) => Self::Many(2),
            Self::Many(count) => Self::Many(count.saturating_add(1)),
        };
    }
}
