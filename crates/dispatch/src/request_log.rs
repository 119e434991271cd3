//! What the log tells, to those who ask for it, of each request and each sequence.
//!
//! While nobody asks, a request costs one look at the log's level: its sender is not
//! wrapped and no text is made.

use std::any::Any;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Instant;

use galatea_backend::LogLevel;
use galatea_infer::{
    CorrelationId, InferenceRequest, PendingRequest, Reply, ResponseSender, ResponseSink,
};
use galatea_policy::Event;

use crate::LogSink;

/// Requests and sequences are told of from this level on.
const LEVEL: LogLevel = LogLevel::Verbose(1);

/// A batch has hundreds of requests at times; the first ones tell which it is.
const NAMED_MAX: usize = 16;

/// Whether requests and sequences leave lines.
pub(crate) fn is_on(log: &LogSink) -> bool {
    log.wants(LEVEL)
}

/// Tells of an admitted request, and of its replies as they pass.
pub(crate) fn follow(
    log: &LogSink,
    request: &InferenceRequest,
    version: i64,
    arrival: Instant,
    sender: ResponseSender,
) -> ResponseSender {
    if !is_on(log) {
        return sender;
    }
    let about = format!("{}model '{}' version {version}", request.log_prefix(), request.model_name);
    log.write(LEVEL, format_args!("{about} is asked: {}", asked(request)));
    let log = log.clone();
    sender.wrap(move |inner| Box::new(Followed { log, about, arrival, inner }))
}

/// What a request asks for. Whatever it leaves to the model is left out.
fn asked(request: &InferenceRequest) -> impl Display {
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
            write!(f, ", {}", sequence(&request.correlation_id, flags.start, flags.end))?;
        }
        Ok(())
    })
}

fn sequence(id: &CorrelationId, start: bool, end: bool) -> impl Display {
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

/// Tells of replies that pass.
struct Followed {
    log: LogSink,
    about: String,
    arrival: Instant,
    inner: Box<dyn ResponseSink>,
}

impl ResponseSink for Followed {
    fn deliver(&mut self, reply: Reply) {
        let (about, time) = (&self.about, self.arrival.elapsed().as_micros());
        self.log.write(LEVEL, format_args!("{about} answers after {time} us: {}", told(&reply)));
        self.inner.deliver(reply);
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.underlying()
    }
}

fn told(reply: &Reply) -> impl Display {
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

/// Tells what an instance is about to execute.
pub(crate) fn executes(log: &LogSink, instance: &str, requests: &[PendingRequest]) {
    if is_on(log) {
        let requests = Batch(requests);
        log.write(LEVEL, format_args!("instance '{instance}' executes {requests}"));
    }
}

struct Batch<'a>(&'a [PendingRequest]);

impl Display for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests:", self.0.len())?;
        for request in self.0.iter().take(NAMED_MAX) {
            if request.is_padding() {
                f.write_str(" [padding]")?;
                continue;
            }
            write!(f, " {}", request.request().log_prefix().trim_end())?;
            if let Some(step) = request.sequence() {
                let (start, end) = (step.flags.start, step.flags.end);
                write!(f, " {}", sequence(&step.correlation_id, start, end))?;
            }
        }
        f.write_str(if self.0.len() > NAMED_MAX { " ..." } else { "" })
    }
}

/// A sequence of a model, for a line of the log.
pub(crate) fn sequence_of(id: &CorrelationId, model: &str) -> impl Display {
    fmt::from_fn(move |f| write!(f, "{} of model '{model}'", sequence(id, false, false)))
}

/// Why a sequence takes no further requests, by what happened.
pub(crate) const fn why_closed(event: &Event) -> &'static str {
    match event {
        Event::Enqueue(_) => "a request ended it or started it anew",
        Event::Tick => "its time was up",
        Event::Cancel(_) => "a request of it was cancelled",
        Event::Drain => "the model is taken out of service",
        Event::Released { .. }
        | Event::LaneFree(_)
        | Event::AddInstance(_)
        | Event::RemoveInstance(_)
        | Event::PermitGranted(_)
        | Event::PermitDelayed(_) => "it was given up",
    }
}

/// Writes a line of those that [`is_on`] was asked for.
pub(crate) fn note(log: &LogSink, line: impl Display) {
    log.write(LEVEL, line);
}
