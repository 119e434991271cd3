//! Errors for requests that the scheduler refuses or drops.

use std::time::{Duration, Instant};

use galatea_backend::LogLevel;
use galatea_infer::{Code, CorrelationId, FailureReason, InferenceRequest, PendingRequest, Status};
use galatea_policy::FailReason;

use crate::LogSink;
use crate::log::refusal_of;

/// Replies to a request that was not executed, counts it if Triton would, and logs it.
pub(super) fn fail(request: PendingRequest, reason: FailReason, log: &LogSink) {
    let (status, counted_as) = describe(&request, reason);
    log.write(LogLevel::Verbose(1), refusal_of(request.request(), &status));
    match counted_as {
        Some(counted_as) if !is_refusal(reason) => request.fail(status, counted_as),
        Some(_) | None => request.refuse(status, counted_as),
    }
}

/// Returns true if the reason arises on the request's arrival rather than while it waits.
const fn is_refusal(reason: FailReason) -> bool {
    match reason {
        FailReason::QueueFull
        | FailReason::Draining
        | FailReason::NoSequence
        | FailReason::MissingStart => true,
        FailReason::TimeoutExpired
        | FailReason::Cancelled
        | FailReason::SequenceTimeoutExpired
        | FailReason::RescheduledTooLate
        | FailReason::TooLate { .. } => false,
    }
}

fn describe(request: &PendingRequest, reason: FailReason) -> (Status, Option<FailureReason>) {
    let content = request.request();
    // As in Triton, sequence batcher errors and timeouts have no prefix.
    let prefixed = |status: Status| status.prefixed(content.log_prefix());
    let model = &content.model_name;
    match reason {
        FailReason::QueueFull => {
            (prefixed(Status::unavailable("Exceeds maximum queue size")), None)
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
        FailReason::MissingStart => (missing_start(content), None),
        // In Triton the request is queued again, but its sequence no longer exists.
        FailReason::RescheduledTooLate => (missing_start(content), Some(FailureReason::Backend)),
        FailReason::TooLate { retry_after_ns } => {
            let status = too_late(request, Duration::from_nanos(retry_after_ns), Instant::now());
            (prefixed(status), Some(FailureReason::Rejected))
        }
        FailReason::SequenceTimeoutExpired => (
            Status::unavailable("timeout of the corresponding sequence has been expired"),
            Some(FailureReason::Rejected),
        ),
    }
}

fn missing_start(content: &InferenceRequest) -> Status {
    Status::invalid_argument(format!(
        "inference request for sequence {} to model '{}' must specify the START flag on the first \
         request of the sequence",
        id_text(&content.correlation_id),
        content.model_name
    ))
}

/// The error for a request whose response would be late by this much. The request could be served
/// if it had that much more time, or if it were sent that much later.
fn too_late(request: &PendingRequest, late: Duration, now: Instant) -> Status {
    let content = request.request();
    let (arrival, deadline) =
        (request.admission_times().map(|times| times.arrival), content.deadline.instant());
    let (arrival, deadline) = (arrival.unwrap_or(now), deadline.unwrap_or(now));
    let allowed = deadline.saturating_duration_since(arrival);
    let code = if deadline <= now { Code::DeadlineExceeded } else { Code::Exhausted };
    let text = format!(
        "the request to model '{}' would be answered too late: its deadline is {} ms after its \
         arrival, and {} ms are predicted",
        content.model_name,
        milliseconds(allowed),
        milliseconds(allowed.saturating_add(late)),
    );
    Status::new(code, text).with_retry_after(late)
}

/// Formats a duration in milliseconds with three decimal places.
fn milliseconds(time: Duration) -> String {
    let microseconds = time.as_micros();
    format!("{}.{:03}", microseconds / 1_000, microseconds % 1_000)
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
