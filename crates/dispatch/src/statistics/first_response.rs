//! Measures the time from a request's arrival to its first response.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use galatea_infer::{Reply, ResponseSender, ResponseSink, Status};

use super::FirstResponses;

/// A sender whose first response is measured. As in Triton, an error in place of a response
/// counts; the refusal of a request that was never queued does not.
pub(crate) fn measure(
    into: &Arc<FirstResponses>,
    arrival: Instant,
    sender: ResponseSender,
) -> ResponseSender {
    let into = Some(into.clone());
    sender.wrap(move |inner| Box::new(MeasuringSink { into, arrival, inner }))
}

struct MeasuringSink {
    /// `None` after the first response.
    into: Option<Arc<FirstResponses>>,
    arrival: Instant,
    inner: Box<dyn ResponseSink>,
}

impl ResponseSink for MeasuringSink {
    fn deliver(&mut self, reply: Reply) {
        if let Reply::Response { .. } = reply
            && let Some(into) = self.into.take()
        {
            into.observe(self.arrival.elapsed());
        }
        self.inner.deliver(reply);
    }

    fn refuse(&mut self, status: Status) {
        self.inner.refuse(status);
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.underlying()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(act: impl FnOnce(ResponseSender), expected: u64) {
        let into = Arc::new(FirstResponses::new(&FirstResponses::BOUNDS_MS));
        let sender = ResponseSender::new(Box::new(|_: Reply| {}));
        act(measure(&into, Instant::now(), sender));
        assert_eq!(into.read().counts.iter().sum::<u64>(), expected);
    }

    #[test]
    fn the_first_response_counts_once() {
        let respond = |mut sender: ResponseSender| {
            sender.send(Err(Status::internal("in place of a response")));
            sender.send(Err(Status::internal("late")));
            sender.finish();
        };
        check(respond, 1);
        check(|sender| sender.fail(Status::internal("failed")), 1);
        check(ResponseSender::finish, 0);
        check(|sender| sender.refuse(Status::unavailable("full")), 0);
    }
}
