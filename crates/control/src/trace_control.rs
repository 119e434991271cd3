//! Tracing as doors see it: which requests are traced, and the settings of that.

use std::sync::Arc;
use std::time::Instant;

use galatea_gate::access::{Pass, api};

use galatea_infer::{Status, Trace};

/// A moment in the life of a request that only its door sees.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DoorTracePoint {
    /// The door began to receive an HTTP request.
    HttpReceiveStart,
    /// It had received all of it.
    HttpReceiveEnd,
    /// It began to send the HTTP response.
    HttpSendStart,
    /// It had sent all of it.
    HttpSendEnd,
    /// The door waited for the message of a gRPC request.
    GrpcReceiveStart,
    /// It had received all of it.
    GrpcReceiveEnd,
    /// It began to send a gRPC response.
    GrpcSendStart,
    /// It had sent all of it.
    GrpcSendEnd,
    /// A response was complete.
    ResponseComplete,
}

impl DoorTracePoint {
    /// The name that Triton's traces have for it.
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

/// Records what the door of a traced request sees. The trace is complete when this and the
/// trace of the request are dropped.
pub trait DoorTraceSink: Send + Sync + std::fmt::Debug {
    /// Records that the request passed a point at this time.
    fn record(&self, point: DoorTracePoint, at: Instant);
}

/// The two halves of the trace of a client's request.
#[derive(Debug)]
pub struct ClientTrace {
    /// The trace that the request carries.
    pub request: Arc<Trace>,
    /// The trace that its door keeps until the response is sent.
    pub door: Arc<dyn DoorTraceSink>,
}

/// The parts of requests that are traced.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLevels {
    /// When requests pass trace points.
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

/// A change of one field of the settings.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum FieldChange<T> {
    /// It stays.
    #[default]
    Keep,
    /// It follows the global settings or, if it is global, those of the start.
    Clear,
    /// It has this value.
    Set(T),
}

/// A change of the settings.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceChange {
    /// The parts of requests that are traced.
    pub levels: FieldChange<TraceLevels>,
    /// Of how many requests one is traced.
    pub rate: FieldChange<u32>,
    /// The number of requests that are traced from now on; -1 is any number.
    pub count: FieldChange<i32>,
    /// The number of traces that go into one file; 0 is all.
    pub log_frequency: FieldChange<u32>,
}

/// The settings in force, for all models or for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSettings {
    /// The parts of requests that are traced.
    pub levels: TraceLevels,
    /// Of how many requests one is traced.
    pub rate: u32,
    /// The number of requests that are traced from now on; -1 is any number.
    pub count: i32,
    /// The destination of traces.
    pub mode: TraceMode,
    /// Further settings by name, with names that may be repeated: those of the command line
    /// for this mode.
    pub further: Vec<(String, String)>,
}

/// The destination of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceMode {
    /// Into files.
    Triton {
        /// The number of traces that go into one file; 0 is all.
        log_frequency: u32,
        /// The name of the file; empty is none.
        file: String,
    },
    /// To a collector.
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

/// The headers or metadata of a request that decide about its trace: the W3C's Trace Context.
#[derive(Copy, Clone, Debug, Default)]
pub struct TraceHeaders<'a> {
    /// `traceparent`
    pub parent: Option<&'a [u8]>,
    /// `tracestate`
    pub state: Option<&'a [u8]>,
}

/// The tracing of clients' requests.
pub trait TraceControl: Send + Sync + std::fmt::Debug {
    /// Returns true if any request may be traced: one load, for every request.
    fn is_on(&self) -> bool;

    /// Returns true if [`TraceHeaders`] decide about it: others need not be kept. False while
    /// nothing is traced.
    fn reads_headers(&self) -> bool {
        false
    }

    /// The trace of a request to this model, if it is to have one.
    fn begin(
        &self,
        pass: Pass<api::Inference>,
        model: &str,
        headers: TraceHeaders<'_>,
    ) -> Option<ClientTrace>;

    /// Checks that a model can have settings: it must be ready. This may block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is not.
    fn check_model(&self, pass: Pass<api::Trace>, model: &str) -> Result<(), Status>;

    /// The settings of a model, or of all models without their own.
    fn settings(&self, pass: Pass<api::Trace>, model: Option<&str>) -> TraceSettings;

    /// Changes these settings.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for settings that can't be in force, and if there are too many.
    fn change(
        &self,
        pass: Pass<api::Trace>,
        model: Option<&str>,
        change: &TraceChange,
    ) -> Result<(), Status>;
}
