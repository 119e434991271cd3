//! The lines of a file: what they tell.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

/// The version of the format. It changes if a reader would misunderstand a file.
pub const FORMAT: u64 = 1;

/// The first line: whose traffic it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// The model's name.
    pub model: String,
    /// Its version.
    pub version: i64,
    /// When the recording began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Number of processors that the server may use; 0 if it is not known.
    pub processors: u32,
    /// The names of the instances at the beginning.
    pub instances: Vec<String>,
    /// The variable dimensions of inputs, such as `ids:0`: what `dims` of requests mean.
    pub variable: Vec<String>,
    /// The model's configuration, if the client may have it.
    pub config: Option<Value>,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When it was queued, since the recording began.
    pub at_ns: u64,
    /// Rows of its first dimension.
    pub rows: u32,
    /// The sizes of its variable dimensions, in the header's order.
    pub dims: Vec<u32>,
    /// Number of elements that a row of its inputs with variable dimensions has.
    pub length: u32,
    /// Its priority level; 0 is the default.
    pub priority: u64,
    /// Its own timeout; 0 is none.
    pub timeout_ns: u64,
    /// The time from its arrival until its answer is due; none without a deadline.
    pub deadline_ns: Option<u64>,
    /// Its correlation ID, if it has one.
    pub sequence: Option<Value>,
    /// `ok`, `error` for an error of the backend, `executed` if its responses go on when its
    /// execution has ended, or why the scheduler refused it, such as `queue_full`.
    pub status: Cow<'static, str>,
    /// Its wait in the queue.
    pub queue_ns: u64,
    /// Its execution, if it had one.
    pub executed: Option<Executed>,
}

/// The execution of a request, as far as its own line tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// The number of the execution.
    pub execution: u64,
    /// The duration.
    pub compute_ns: u64,
    /// Rows of its batch.
    pub batch: u32,
    /// Why the batch was closed.
    pub close: Cow<'static, str>,
    /// The name of the instance, which many lines have.
    pub instance: Arc<str>,
}

/// An execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedExecution {
    /// Its number.
    pub number: u64,
    /// When it began, since the recording began.
    pub at_ns: u64,
    /// The duration, from the close of its batch until the instance was free.
    pub duration_ns: u64,
    /// Rows of its batch.
    pub rows: u32,
    /// Requests in its batch.
    pub requests: u32,
    /// The largest `length` of its requests.
    pub length: u32,
    /// Number of instances that executed when it began, with its own.
    pub busy: u32,
    /// Why the batch was closed.
    pub close: Cow<'static, str>,
    /// The name of the instance, which many lines have.
    pub instance: Arc<str>,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The first line.
    Header(Header),
    /// A request.
    Request(RecordedRequest),
    /// An execution.
    Execution(RecordedExecution),
    /// This number of requests and executions was not recorded: there was no room.
    Lost(u64),
    /// The server ended the recording, and why.
    End(String),
}
