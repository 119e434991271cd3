//! The errors of requests that the scheduler refuses or drops.

use galatea_backend::LogLevel;
use galatea_infer::{CorrelationId, FailureReason, PendingRequest, Status};
use galatea_policy::FailReason;

use crate::LogSink;
use crate::log::refusal_of;

/// Replies to a request that was not executed, counts it unless Triton doesn't, and logs it.
pub(super) fn fail(request: PendingRequest, reason: FailReason, log: &LogSink) {
    let (status, counted_as) = describe(&request, reason);
    log.write(LogLevel::Verbose(1), refusal_of(request.request(), &status));
    match counted_as {
        Some(counted_as) if !is_refusal(reason) => request.fail(status, counted_as),
        Some(_) | None => request.refuse(status, counted_as),
    }
}

/// Whether the reason shows when the request arrives, and not while it waits.
const fn is_refusal(reason: FailReason) -> bool {
    match reason {
        FailReason::QueueFull
        | FailReason::Draining
        | FailReason::NoSequence
        | FailReason::MissingStart => true,
        FailReason::TimeoutExpired
        | FailReason::Cancelled
        | FailReason::SequenceTimeoutExpired
        | FailReason::TooLate { .. } => false,
    }
}

fn describe(request: &PendingRequest, reason: FailReason) -> (Status, Option<FailureReason>) {
    let content = request.request();
    // As in Triton, errors of the sequence batcher and timeouts have no prefix.
    let prefixed = |status: Status| status.prefixed(content.log_prefix());
    let model = &content.model_name;
    match reason {
        FailReason::QueueFull => {
            let status = Status::unavailable("Exceeds maximum queue size");
            (prefixed(status), Some(FailureReason::Rejected))
        }
        FailReason::TimeoutExpired => {
            (Status::unavailable("Request timeout expired"), Some(FailureReason::Rejected))
        }
        FailReason::Cancelled => {
            (prefixed(Status::cancelled("Request cancelled")), Some(FailureReason::Canceled))
        }
        FailReason::Draining => {
            let status = Status::unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference \
                 requests",
            );
            (prefixed(status), None)
        }
        FailReason::NoSequence => {
            let status = Status::invalid_argument(format!(
                "inference request to model '{model}' must specify a non-zero or non-empty \
                 correlation ID"
            ));
            (status, None)
        }
        FailReason::MissingStart => {
            let status = Status::invalid_argument(format!(
                "inference request for sequence {} to model '{model}' must specify the START flag \
                 on the first request of the sequence",
                id_text(&content.correlation_id)
            ));
            (status, None)
        }
        FailReason::TooLate { .. } => {
            let status = Status::unavailable("Request can not be answered by its deadline");
            (prefixed(status), Some(FailureReason::Rejected))
        }
        FailReason::SequenceTimeoutExpired => (
            Status::unavailable("timeout of the corresponding sequence has been expired"),
            Some(FailureReason::Rejected),
        ),
    }
}

fn id_text(id: &CorrelationId) -> String {
    match id {
        CorrelationId::None => String::from("0"),
        CorrelationId::Number(number) => number.to_string(),
        CorrelationId::Text(text) => text.clone(),
    }
}

/// The warning about a request that starts a sequence which has not ended.
pub(super) fn restart_warning(request: &PendingRequest) -> String {
    let content = request.request();
    format!(
        "sequence {} of model '{}' starts anew although it has not ended; what it was before ends \
         here",
        id_text(&content.correlation_id),
        content.model_name
    )
}
