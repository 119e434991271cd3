//! Tracing as doors see it: the selection of traced requests, and the trace settings.

use std::sync::Arc;
use std::time::Instant;

use galatea_gate::access::{AccessPass, api};

use galatea_infer::{Status, Trace};

/// A trace point that only a request's door sees.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DoorTracePoint {
    /// The door began to receive an HTTP request.
    HttpReceiveStart,
    /// The door had received all of the HTTP request.
    HttpReceiveEnd,
    /// The door began to send the HTTP response.
    HttpSendStart,
    /// The door had sent all of the HTTP response.
    HttpSendEnd,
    /// The door waited for the message of a gRPC request.
    GrpcReceiveStart,
    /// The door had received all of the gRPC request.
    GrpcReceiveEnd,
    /// The door began to send a gRPC response.
    GrpcSendStart,
    /// The door had sent all of the gRPC response.
    GrpcSendEnd,
    /// A response was complete.
    ResponseComplete,
}

impl DoorTracePoint {
    /// The name that Triton's traces use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HttpReceiveStart => "HTTP_RECV_START",
            Self::HttpReceiveEnd => "HTTP_RECV_END",
            Self::HttpSendStart => "HTTP_SEND_START",
            Self::HttpSendEnd => "HTTP_SEND_END",
            Self::GrpcReceiveStart => "GRPC_WAITREAD_START",
            Self::GrpcReceiveEnd => "GRPC_WAITREAD_END",
            Self::GrpcSendStart => "GRPC_SEND_START",
            Self::GrpcSendEnd => "GRPC_SEND_END",
            Self::ResponseComplete => "INFER_RESPONSE_COMPLETE",
        }
    }
}

/// Records the trace points that a traced request passes in its door. The trace is complete when
/// this sink and the request's trace have been dropped.
pub trait DoorTraceSink: Send + Sync + std::fmt::Debug {
    /// Records that the request passed `point` at this time.
    fn record(&self, point: DoorTracePoint, at: Instant);
}

/// The two halves of a client request's trace.
#[derive(Debug)]
pub struct RequestTraceParts {
    /// The trace that the request carries.
    pub request: Arc<Trace>,
    /// The trace that its door keeps until the response is sent.
    pub door: Arc<dyn DoorTraceSink>,
}

/// The kinds of facts that are traced.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLevels {
    /// The times at which requests pass trace points.
    pub timestamps: bool,
    /// The contents of tensors.
    pub tensors: bool,
}

impl TraceLevels {
    /// Returns true if nothing is traced.
    #[must_use]
    pub const fn is_off(self) -> bool {
        !self.timestamps && !self.tensors
    }

    /// The names that the protocols use.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        if self.is_off() {
            return vec!["OFF"];
        }
        let names = [(self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        names.into_iter().filter_map(|(is_on, name)| is_on.then_some(name)).collect()
    }
}

/// A change to one field of the settings.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum FieldChange<T> {
    /// The field stays as it is.
    #[default]
    Keep,
    /// The field reverts to the global setting or, for a global field, to the setting at startup.
    Clear,
    /// The field gets this value.
    Set(T),
}

/// A change to the settings.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSettingsChange {
    /// The kinds of facts that are traced.
    pub levels: FieldChange<TraceLevels>,
    /// The sampling rate: one in this many requests is traced.
    pub rate: FieldChange<u32>,
    /// The number of further requests to trace; -1 means unlimited.
    pub count: FieldChange<i32>,
    /// The number of traces per file; 0 means all in one file.
    pub log_frequency: FieldChange<u32>,
}

/// The settings in effect, for all models or for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSettings {
    /// The kinds of facts that are traced.
    pub levels: TraceLevels,
    /// The sampling rate: one in this many requests is traced.
    pub rate: u32,
    /// The number of further requests to trace; -1 means unlimited.
    pub count: i32,
    /// The destination of traces.
    pub mode: TraceMode,
    /// Other settings for this mode from the command line, by name. Names may repeat.
    pub further: Vec<(String, String)>,
}

/// The destination of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceMode {
    /// Files in Triton's format.
    Triton {
        /// The number of traces per file; 0 means all in one file.
        log_frequency: u32,
        /// The name of the file; empty if there is none.
        file: String,
    },
    /// An OpenTelemetry collector.
    OpenTelemetry,
}

impl Default for TraceMode {
    fn default() -> Self {
        Self::Triton { log_frequency: 0, file: String::new() }
    }
}

impl TraceMode {
    /// The name that the command line and the protocols use.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Triton { .. } => "triton",
            Self::OpenTelemetry => "opentelemetry",
        }
    }
}

/// The headers or metadata that affect a request's trace: the W3C Trace Context.
#[derive(Copy, Clone, Debug, Default)]
pub struct TraceHeaders<'a> {
    /// The `traceparent` header.
    pub parent: Option<&'a [u8]>,
    /// The `tracestate` header.
    pub state: Option<&'a [u8]>,
}

/// Controls the tracing of client requests.
pub trait TraceControl: Send + Sync + std::fmt::Debug {
    /// Returns true if any request may be traced. This is called for every request, so it takes
    /// only one load.
    fn is_on(&self) -> bool;

    /// Returns true if [`TraceHeaders`] affect tracing; otherwise the door needn't keep the
    /// headers. Returns false while nothing is traced.
    fn reads_headers(&self) -> bool {
        false
    }

    /// Begins the trace of a request to this model, if the request is to be traced.
    fn begin(
        &self,
        pass: AccessPass<api::Inference>,
        model: &str,
        headers: TraceHeaders<'_>,
    ) -> Option<RequestTraceParts>;

    /// Checks that a model can have settings: it must be ready. This may block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is not ready.
    fn check_model(&self, pass: AccessPass<api::Trace>, model: &str) -> Result<(), Status>;

    /// A model's settings, or the settings for all models that have none of their own.
    fn settings(&self, pass: AccessPass<api::Trace>, model: Option<&str>) -> TraceSettings;

    /// Changes these settings.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for settings that can't take effect, and for too many models with
    /// settings.
    fn change(
        &self,
        pass: AccessPass<api::Trace>,
        model: Option<&str>,
        change: &TraceSettingsChange,
    ) -> Result<(), Status>;
}
