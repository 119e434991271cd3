//! The lines of a traffic file as values.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

/// The version of the format. Changes if an old reader would misunderstand a new file.
pub const FORMAT: u64 = 1;

/// The first line, which identifies the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// The model's name.
    pub model: String,
    /// The model's version.
    pub version: i64,
    /// When the recording began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Number of processors that the server may use; 0 if unknown.
    pub processors: u32,
    /// The names of the instances when the recording began.
    pub instances: Vec<String>,
    /// The variable dimensions of inputs, such as `ids:0`: the meaning of each request's `dims`.
    pub variable: Vec<String>,
    /// The model's configuration, if the client is allowed to see it.
    pub config: Option<Value>,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The time at which it was queued, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The size of its batch dimension.
    pub rows: u32,
    /// The sizes of its variable dimensions, in the header's order.
    pub dims: Vec<u32>,
    /// The number of elements in one row of its variable-size inputs.
    pub length: u32,
    /// Its priority level; 0 means the default.
    pub priority: u64,
    /// Its own timeout; 0 means none.
    pub timeout_ns: u64,
    /// The time from its arrival to its deadline, if it has one.
    pub deadline_ns: Option<u64>,
    /// Its correlation ID, if it has one.
    pub sequence: Option<Value>,
    /// `ok`, `error` for an error of the backend, `executed` if its responses continue after its
    /// execution has ended, or why the scheduler refused it, such as `queue_full`.
    pub status: Cow<'static, str>,
    /// Its time in the queue.
    pub queue_ns: u64,
    /// Its execution, if it was executed.
    pub executed: Option<RequestExecution>,
}

/// The part of an execution that is recorded on a request's own line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestExecution {
    /// The number of the execution.
    pub execution: u64,
    /// The duration of the execution.
    pub compute_ns: u64,
    /// The number of rows in its batch.
    pub batch: u32,
    /// The reason why the batch was closed.
    pub close: Cow<'static, str>,
    /// The name of the instance, shared among lines.
    pub instance: Arc<str>,
}

/// An execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedExecution {
    /// The number of the execution.
    pub number: u64,
    /// The time at which it began, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The duration, from the close of its batch until the instance was free.
    pub duration_ns: u64,
    /// The number of rows in its batch.
    pub rows: u32,
    /// The number of requests in its batch.
    pub requests: u32,
    /// The largest `length` among its requests.
    pub length: u32,
    /// The number of busy instances when it began, including its own.
    pub busy: u32,
    /// The reason why the batch was closed.
    pub close: Cow<'static, str>,
    /// The name of the instance, shared among lines.
    pub instance: Arc<str>,
}

/// A line of a traffic file.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The first line.
    Header(Header),
    /// A request.
    Request(RecordedRequest),
    /// An execution.
    Execution(RecordedExecution),
    /// The number of requests and executions that were dropped because the recorder had no room.
    Lost(u64),
    /// The reason why the server ended the recording.
    End(String),
}
