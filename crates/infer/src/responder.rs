//! The responder for a pending request: replies to the request and records its statistics.

use std::any::Any;
use std::sync::Arc;

use crate::{
    AdmissionTimes, CancelToken, ExecutionSummary, FailureReason, InferenceResponse,
    RequestObserver, ResponseSender, ResponseSink, Status, StepExecutionObserver,
};

/// Replies to a request and records its statistics. A backend takes it out of a
/// request whose responses continue after its release.
///
/// Dropping it unfinished sends an internal error to the caller.
#[derive(Debug)]
pub struct Responder {
    sender: Option<ResponseSender>,
    statistics: StatisticsReporter,
    /// True if the first response has been reported to the observer.
    has_responded: bool,
    /// The cancellation token, whose hooks are cleared when there is nothing left to cancel.
    cancel: CancelToken,
}

/// Records one request in the statistics of its model, for backends that report statistics
/// separately from replies.
#[derive(Clone, Debug)]
pub struct StatisticsReporter {
    pub(crate) batch_size: u32,
    pub(crate) times: AdmissionTimes,
    pub(crate) observer: Arc<dyn RequestObserver>,
    /// The ensemble run that made the request as one of its steps.
    pub(crate) execution_observer: Option<Arc<dyn StepExecutionObserver>>,
}

impl StatisticsReporter {
    /// Counts the request as executed without an error.
    pub fn report_success(&self, execution: &ExecutionSummary) {
        self.observer.succeeded(self.batch_size, &self.times, execution);
        if let Some(observer) = &self.execution_observer {
            observer.executed(execution);
        }
    }

    /// Counts the request as failed.
    pub fn report_failure(&self, reason: FailureReason) {
        self.observer.failed(&self.times, reason);
    }

    /// Makes another responder to the same request, whose replies go to `sink`. The new responder
    /// travels with the request, while the first one stays behind the sink.
    #[must_use]
    pub fn chained_responder(&self, sink: Box<dyn ResponseSink>) -> Responder {
        Responder {
            sender: Some(ResponseSender::new(sink)),
            statistics: self.clone(),
            // The first responder reports its own responses.
            has_responded: true,
            cancel: CancelToken::default(),
        }
    }
}

impl Responder {
    pub(crate) const fn new(
        sender: ResponseSender,
        statistics: StatisticsReporter,
        cancel: CancelToken,
    ) -> Self {
        Self { sender: Some(sender), statistics, has_responded: false, cancel }
    }

    pub(crate) fn observe(
        &mut self,
        wrap: impl FnOnce(Arc<dyn RequestObserver>) -> Arc<dyn RequestObserver>,
    ) {
        self.statistics.observer = wrap(self.statistics.observer.clone());
    }

    /// Sends a response that is not the last. Only for decoupled models.
    pub fn respond_nonfinal(&mut self, result: Result<InferenceResponse, Status>) {
        self.begin_response();
        if let Some(sender) = &mut self.sender {
            sender.send(result);
        }
    }

    /// Records the request's statistics and sends the last or only response.
    pub fn complete(
        self,
        result: Result<InferenceResponse, Status>,
        execution: impl Into<ExecutionSummary>,
    ) {
        match &result {
            Ok(_) => self.statistics.report_success(&execution.into()),
            Err(_) => self.statistics.report_failure(FailureReason::Backend),
        }
        self.complete_unrecorded(result);
    }

    /// Records a success and ends the request without a further response.
    pub fn finish_without_response(self, execution: impl Into<ExecutionSummary>) {
        self.statistics.report_success(&execution.into());
        self.finish_unrecorded();
    }

    /// The object behind the sink; see [`ResponseSink::underlying`].
    #[must_use]
    pub fn backing_object(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.sender.as_ref().and_then(ResponseSender::backing_object)
    }

    /// Drops the responder without replying or recording statistics. Used by the sink's owner,
    /// which replies by other means.
    pub fn discard(mut self) {
        if let Some(sender) = self.sender.take() {
            sender.discard();
        }
    }

    /// Inserts a layer between the replies and their receiver.
    pub fn wrap_sender(&mut self, wrap: impl FnOnce(ResponseSender) -> ResponseSender) {
        self.sender = self.sender.take().map(wrap);
    }

    /// Records the request's statistics.
    #[must_use]
    pub const fn statistics(&self) -> &StatisticsReporter {
        &self.statistics
    }

    /// Sends the last or only response without recording statistics. The owner of the
    /// [`StatisticsReporter`] records them.
    pub fn complete_unrecorded(mut self, result: Result<InferenceResponse, Status>) {
        self.begin_response();
        if let Some(sender) = self.sender.take() {
            sender.send_final(result);
        }
    }

    /// Like [`Self::complete_unrecorded`], but for a model that sent its last response before it
    /// ended the request.
    pub fn complete_separate_end_unrecorded(mut self, result: Result<InferenceResponse, Status>) {
        self.begin_response();
        if let Some(sender) = self.sender.take() {
            sender.send_final_with_separate_end(result);
        }
    }

    /// Ends the request without a further response and without statistics.
    pub fn finish_unrecorded(mut self) {
        if let Some(sender) = self.sender.take() {
            sender.finish_without_response();
        }
    }

    /// Records a failure for `reason` and ends the request with an error.
    pub fn fail(self, status: Status, reason: FailureReason) {
        self.statistics.report_failure(reason);
        self.complete_unrecorded(Err(status));
    }

    /// Reports that a response, or an error in its place, is about to be sent.
    fn begin_response(&mut self) {
        if self.sender.is_some() && !std::mem::replace(&mut self.has_responded, true) {
            self.statistics.observer.responding(&self.statistics.times);
        }
    }

    pub(crate) fn refuse(mut self, status: Status, reason: Option<FailureReason>) {
        if let Some(reason) = reason {
            self.statistics.report_failure(reason);
        }
        if let Some(sender) = self.sender.take() {
            sender.refuse(status);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.cancel.clear_hooks();
        if self.sender.is_some() {
            self.statistics.report_failure(FailureReason::Other);
            self.begin_response();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;
    use crate::Reply;

    /// Counts the responses that are reported to it.
    #[derive(Debug, Default)]
    struct Responses(Mutex<usize>);

    impl RequestObserver for Responses {
        fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}
        fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
        fn responding(&self, _: &AdmissionTimes) {
            *self.0.lock().unwrap() += 1;
        }
    }

    fn check(act: impl FnOnce(Responder), expected: usize) {
        let observer = Arc::new(Responses::default());
        let now = Instant::now();
        let statistics = StatisticsReporter {
            batch_size: 1,
            times: AdmissionTimes { arrival: now, queued: now },
            observer: observer.clone(),
            execution_observer: None,
        };
        let sender = ResponseSender::new(Box::new(|_: Reply| {}));
        act(Responder::new(sender, statistics, CancelToken::default()));
        assert_eq!(*observer.0.lock().unwrap(), expected);
    }

    #[test]
    fn only_the_first_response_is_told_of() {
        let error = || Err(Status::internal("in place of a response"));
        let respond = |mut responder: Responder| {
            responder.respond_nonfinal(error());
            responder.respond_nonfinal(error());
            responder.complete_unrecorded(error());
        };
        check(respond, 1);
        check(|responder| responder.complete_separate_end_unrecorded(error()), 1);
        check(|responder| responder.fail(Status::internal("failed"), FailureReason::Other), 1);
        check(drop, 1);
    }

    #[test]
    fn the_end_is_no_response_and_neither_is_a_refusal() {
        check(Responder::finish_unrecorded, 0);
        check(Responder::discard, 0);
        check(|responder| responder.refuse(Status::unavailable("full"), None), 0);
    }

    #[test]
    fn what_passes_through_another_responder_is_told_of_once() {
        let pass_on = |responder: Responder| {
            let statistics = responder.statistics().clone();
            let mut inner = Some(responder);
            let sink = move |reply: Reply| {
                if let (Reply::Response { result, .. }, Some(first)) = (reply, inner.take()) {
                    first.complete_unrecorded(result);
                }
            };
            statistics
                .chained_responder(Box::new(sink))
                .complete_unrecorded(Err(Status::internal("x")));
        };
        check(pass_on, 1);
    }
}
