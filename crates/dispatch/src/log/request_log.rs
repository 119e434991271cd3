//! The verbose log of individual requests and sequences.
//!
//! The level is checked first: if it is off, no sender is wrapped and no message is formatted.

use std::any::Any;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Instant;

use galatea_backend::LogLevel;
use galatea_infer::{
    CorrelationId, InferenceRequest, PendingRequest, Reply, ResponseSender, ResponseSink, Status,
};
use galatea_policy::SchedulerEvent;

use super::LogSink;

/// The log level for lines about requests and sequences.
const LEVEL: LogLevel = LogLevel::Verbose(1);

/// The maximum number of requests listed per batch. The first few are enough to identify the batch.
const LISTED_REQUESTS_MAX: usize = 16;

/// Returns true if requests and sequences are logged.
pub(crate) fn is_enabled(log: &LogSink) -> bool {
    log.is_enabled(LEVEL)
}

/// Logs an admitted request, and returns a sender that logs the replies.
pub(crate) fn log_request(
    log: &LogSink,
    request: &InferenceRequest,
    version: i64,
    arrival: Instant,
    sender: ResponseSender,
) -> ResponseSender {
    if !is_enabled(log) {
        return sender;
    }
    let prefix =
        format!("{}model '{}' version {version}", request.log_prefix(), request.model_name);
    log.write(LEVEL, format_args!("{prefix} is asked: {}", request_text(request)));
    let log = log.clone();
    sender.wrap(move |inner| Box::new(LoggingSink { log, prefix, arrival, inner }))
}

/// Formats a request, omitting the parameters that it leaves to the model.
fn request_text(request: &InferenceRequest) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_str("inputs")?;
        for input in &request.inputs {
            write!(f, " {} {} {}", input.name, input.datatype, input.shape)?;
        }
        if !request.outputs.is_empty() {
            write!(f, ", outputs {}", request.outputs.join(" "))?;
        }
        if request.priority > 0 {
            write!(f, ", priority {}", request.priority)?;
        }
        if request.timeout_microseconds > 0 {
            write!(f, ", timeout {} us", request.timeout_microseconds)?;
        }
        if request.correlation_id != CorrelationId::None {
            let flags = request.sequence_flags;
            write!(f, ", {}", sequence_text(&request.correlation_id, flags.start, flags.end))?;
        }
        Ok(())
    })
}

fn sequence_text(id: &CorrelationId, start: bool, end: bool) -> impl Display {
    fmt::from_fn(move |f| {
        match id {
            CorrelationId::None => f.write_str("sequence 0")?,
            CorrelationId::Number(number) => write!(f, "sequence {number}")?,
            CorrelationId::Text(text) => write!(f, "sequence {text}")?,
        }
        f.write_str(if start { " START" } else { "" })?;
        f.write_str(if end { " END" } else { "" })
    })
}

/// A sink that logs the replies that pass through it.
struct LoggingSink {
    log: LogSink,
    prefix: String,
    arrival: Instant,
    inner: Box<dyn ResponseSink>,
}

impl LoggingSink {
    fn write(&self, reply: impl Display) {
        let (prefix, time) = (&self.prefix, self.arrival.elapsed().as_micros());
        self.log.write(LEVEL, format_args!("{prefix} answers after {time} us: {reply}"));
    }
}

impl ResponseSink for LoggingSink {
    fn deliver(&mut self, reply: Reply) {
        self.write(reply_text(&reply));
        self.inner.deliver(reply);
    }

    fn refuse(&mut self, status: Status) {
        self.write(format_args!("error {status}"));
        self.inner.refuse(status);
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.underlying()
    }
}

fn reply_text(reply: &Reply) -> impl Display {
    fmt::from_fn(move |f| match reply {
        Reply::Finished => f.write_str("no more"),
        Reply::Response { result: Err(status), .. } => {
            write!(f, "error {status}")
        }
        Reply::Response { result: Ok(response), .. } => {
            f.write_str("outputs")?;
            for output in &response.outputs {
                write!(f, " {} {} {}", output.name, output.datatype, output.shape)?;
            }
            f.write_str(if reply.is_final() { "" } else { ", more may follow" })
        }
    })
}

/// Logs the batch that an instance is about to execute.
pub(crate) fn log_execution(log: &LogSink, instance: &str, requests: &[PendingRequest]) {
    if is_enabled(log) {
        let requests = BatchText(requests);
        log.write(LEVEL, format_args!("instance '{instance}' executes {requests}"));
    }
}

struct BatchText<'a>(&'a [PendingRequest]);

impl Display for BatchText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests:", self.0.len())?;
        for request in self.0.iter().take(LISTED_REQUESTS_MAX) {
            if request.is_padding() {
                f.write_str(" [padding]")?;
                continue;
            }
            write!(f, " {}", request.request().log_prefix().trim_end())?;
            if let Some(step) = request.sequence() {
                let (start, end) = (step.flags.start, step.flags.end);
                write!(f, " {}", sequence_text(&step.correlation_id, start, end))?;
            }
        }
        f.write_str(if self.0.len() > LISTED_REQUESTS_MAX { " ..." } else { "" })
    }
}

/// The name of a model's sequence in log lines.
pub(crate) fn sequence_name(id: &CorrelationId, model: &str) -> impl Display {
    fmt::from_fn(move |f| write!(f, "{} of model '{model}'", sequence_text(id, false, false)))
}

/// The reason why a sequence accepts no further requests, based on the event that closed it.
pub(crate) const fn close_reason(event: &SchedulerEvent) -> &'static str {
    match event {
        SchedulerEvent::Enqueue(_) => "a request ended it or started it anew",
        SchedulerEvent::Tick => "its time was up",
        SchedulerEvent::Cancel(_) => "a request of it was cancelled",
        SchedulerEvent::Drain => "the model is taken out of service",
        SchedulerEvent::Released { .. }
        | SchedulerEvent::LaneFree(_)
        | SchedulerEvent::AddInstance(_)
        | SchedulerEvent::RemoveInstance(_)
        | SchedulerEvent::PermitGranted(_)
        | SchedulerEvent::PermitDelayed(_) => "it was given up",
    }
}

/// Writes a line. Callers check [`is_enabled`] first.
pub(crate) fn write(log: &LogSink, line: impl Display) {
    log.write(LEVEL, line);
}
