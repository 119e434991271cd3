//! The lines of a traffic file as values.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

/// The format version. It changes if an old reader would misinterpret a new file.
pub const FORMAT: u64 = 1;

/// The first line, which identifies the recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficHeader {
    /// The model's name.
    pub model: String,
    /// The model's version.
    pub version: i64,
    /// The start of the recording, in milliseconds since 1970.
    pub began_ms: u64,
    /// Number of processors available to the server; 0 if unknown.
    pub processors: u32,
    /// The names of the instances when the recording began.
    pub instances: Vec<String>,
    /// The variable dimensions of inputs, such as `ids:0`, which give the meaning of each request's
    /// `dims`.
    pub variable: Vec<String>,
    /// The model's configuration, if the client is allowed to see it.
    pub config: Option<Value>,
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The time at which the request was queued, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The size of the batch dimension.
    pub rows: u32,
    /// The sizes of the variable dimensions, in the header's order.
    pub dims: Vec<u32>,
    /// The number of elements in one row of the variable-size inputs.
    pub length: u32,
    /// The priority level; 0 means the default.
    pub priority: u64,
    /// The request's own timeout; 0 means none.
    pub timeout_ns: u64,
    /// The time from arrival to the deadline, if there is one.
    pub deadline_ns: Option<u64>,
    /// The correlation ID, if there is one.
    pub sequence: Option<Value>,
    /// The result: `ok`, `error` for a backend error, `executed` if responses continue after the
    /// execution has ended, or the reason for a refusal, such as `queue_full`.
    pub status: Cow<'static, str>,
    /// The time that the request spent in the queue.
    pub queue_ns: u64,
    /// The execution, if the request was executed.
    pub executed: Option<RequestExecution>,
}

/// The part of an execution that is recorded on a request's line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestExecution {
    /// The execution number.
    pub execution: u64,
    /// The duration of the execution.
    pub compute_ns: u64,
    /// The number of rows in the batch.
    pub batch: u32,
    /// The reason why the batch was closed.
    pub close: Cow<'static, str>,
    /// The instance name, shared among lines.
    pub instance: Arc<str>,
}

/// An execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedExecution {
    /// The execution number.
    pub number: u64,
    /// The time at which the execution began, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The duration from the close of the batch until the instance was free.
    pub duration_ns: u64,
    /// The number of rows in the batch.
    pub rows: u32,
    /// The number of requests in the batch.
    pub requests: u32,
    /// The largest `length` among the requests.
    pub length: u32,
    /// The number of busy instances at the beginning, including this one.
    pub busy: u32,
    /// The reason why the batch was closed.
    pub close: Cow<'static, str>,
    /// The instance name, shared among lines.
    pub instance: Arc<str>,
}

/// A line of a traffic file.
#[derive(Clone, Debug, PartialEq)]
pub enum TrafficLine {
    /// The first line.
    Header(TrafficHeader),
    /// A request.
    Request(RecordedRequest),
    /// An execution.
    Execution(RecordedExecution),
    /// The number of requests and executions that were dropped because the recorder had no room.
    Lost(u64),
    /// The reason why the server ended the recording.
    End(String),
}
