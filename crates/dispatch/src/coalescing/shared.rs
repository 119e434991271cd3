//! The request that is executed for equal requests, and the replies to them.

use galatea_infer::{
    CancelToken, Code, Deadline, ExecutionReadings, ExecutionSummary, ExecutionTimes, Finality,
    InferenceRequest, InferenceResponse, PendingRequest, Reply, Responder, Status,
};
use galatea_policy::SharedExecutionEnd;

use super::UseOfDeadlines;
use super::record::{CountedMember, ExecutionRecord};
use crate::batch::ShapeClass;

/// An execution that was queued.
pub(super) struct QueuedExecution {
    /// The token of the shared request.
    pub(super) cancel: CancelToken,
    pub(super) shape_class: Option<ShapeClass>,
    /// The length used for padding batches.
    pub(super) length: u32,
    /// The prefix by which errors name the shared request.
    log_prefix: String,
}

impl QueuedExecution {
    pub(super) fn new(
        leader: &PendingRequest,
        shape_class: Option<ShapeClass>,
        length: u32,
    ) -> Self {
        let log_prefix = leader.request().log_prefix();
        Self { cancel: CancelToken::new(), shape_class, length, log_prefix }
    }

    /// The execution that replaces this one for other members.
    pub(super) fn restarted(&self, leader: &PendingRequest) -> Self {
        Self::new(leader, self.shape_class.clone(), self.length)
    }

    /// The error for a member, whose own identifier replaces that of the shared request.
    fn status_for(&self, status: &Status, member: &InferenceRequest) -> Status {
        match status.message().strip_prefix(&self.log_prefix) {
            Some(rest) => {
                status.clone().with_message(rest.to_owned()).prefixed(member.log_prefix())
            }
            None => status.clone(),
        }
    }
}

/// Creates the request that is executed for its leader and the requests that follow. It has no
/// client, and its outputs are in host memory.
pub(super) fn shared_request(
    leader: &InferenceRequest,
    cancel: &CancelToken,
    use_of_deadlines: UseOfDeadlines,
) -> InferenceRequest {
    InferenceRequest {
        id: leader.id.clone(),
        model_name: leader.model_name.clone(),
        model_version: leader.model_version,
        inputs: leader.inputs.clone(),
        outputs: leader.outputs.clone(),
        parameters: leader.parameters.clone(),
        priority: leader.priority,
        timeout_microseconds: leader.timeout_microseconds,
        // A model that ignores deadlines passes them to the requests that it makes. The leader's
        // must not end those, because others may have more time.
        deadline: match use_of_deadlines {
            UseOfDeadlines::Refuses => leader.deadline,
            UseOfDeadlines::Ignores => Deadline::None,
        },
        cancel: cancel.clone(),
        ..InferenceRequest::default()
    }
}

/// The result of a shared execution.
pub(super) enum SharedResult {
    Reply(Reply),
    /// The scheduler did not accept the request.
    Refusal(Status),
}

impl SharedResult {
    /// The meaning of the result for the members.
    pub(super) fn end(&self) -> SharedExecutionEnd {
        match self {
            // A refusal for lack of memory has the same code, and may succeed later as well.
            Self::Reply(Reply::Response { result: Err(status), .. }) => match status.code() {
                Code::DeadlineExceeded | Code::Exhausted => SharedExecutionEnd::TooLate,
                Code::Unknown
                | Code::Internal
                | Code::NotFound
                | Code::InvalidArgument
                | Code::Unavailable
                | Code::Unsupported
                | Code::AlreadyExists
                | Code::Cancelled => SharedExecutionEnd::Result,
            },
            Self::Reply(Reply::Response { result: Ok(_), .. } | Reply::Finished)
            | Self::Refusal(_) => SharedExecutionEnd::Result,
        }
    }

    /// Counts a member and replies to it.
    pub(super) fn reply_to(
        &self,
        mut member: PendingRequest,
        execution: &QueuedExecution,
        record: &ExecutionRecord,
    ) {
        let reply = match self {
            Self::Refusal(status) => {
                let status = execution.status_for(status, member.request());
                return member.refuse(status, record.failure());
            }
            Self::Reply(reply) => reply,
        };
        let Some(queued) = member.admission_times().map(|times| times.queued) else { return };
        let Some(responder) = member.take_responder() else { return };
        record.report_to(&CountedMember { reporter: responder.statistics().clone(), queued });
        match reply {
            Reply::Finished => responder.finish_unrecorded(),
            Reply::Response { result, finality } => {
                let result = result_for(result, member.request(), execution);
                respond(responder, result, *finality);
            }
        }
        if let Some(trace) = member.trace()
            && let Some(summary) = record.summary_since(queued)
        {
            trace.record_execution(&times_of(&summary));
        }
    }
}

fn result_for(
    result: &Result<InferenceResponse, Status>,
    member: &InferenceRequest,
    execution: &QueuedExecution,
) -> Result<InferenceResponse, Status> {
    match result {
        Ok(response) => Ok(InferenceResponse { id: member.id.clone(), ..response.clone() }),
        Err(status) => Err(execution.status_for(status, member)),
    }
}

fn respond(responder: Responder, result: Result<InferenceResponse, Status>, finality: Finality) {
    match finality {
        Finality::EndApart => responder.complete_separate_end_unrecorded(result),
        Finality::Final | Finality::More => responder.complete_unrecorded(result),
    }
}

fn times_of(summary: &ExecutionSummary) -> ExecutionTimes {
    let compute_start = summary.start + summary.input;
    ExecutionTimes::from(ExecutionReadings {
        start: summary.start,
        compute_start,
        compute_end: compute_start + summary.infer,
        end: summary.end,
    })
}
