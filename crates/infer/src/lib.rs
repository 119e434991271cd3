//! The request, response and sender types, and the trait through which doors
//! give requests to the server.
//!
//! Every door, backend and driver shares this vocabulary. The crate has no behaviour of its own: it
//! schedules nothing and knows no protocol. Start with `request.rs`, `sender.rs` and `pending.rs`.
//!
//! The life of a request in these types: a door builds an [`InferenceRequest`] and a
//! [`ResponseSender`] and gives both to an [`InferenceService`]. The engine checks the request
//! against its model and moves both into a [`PendingRequest`], the one owned value that travels
//! through the server. A backend replies through [`PendingRequest::complete`]. The caller always
//! gets a final reply: a sender dropped before its final reply sends an internal error.
//!
//! ```
//! use galatea_infer::{Code, ResponseSender, Reply};
//! use std::sync::mpsc;
//!
//! let (replies, inbox) = mpsc::channel();
//! let sender = ResponseSender::new(Box::new(move |reply: Reply| {
//!     let _ = replies.send(reply);
//! }));
//! drop(sender); // an early return somewhere
//! let Reply::Response { result, .. } = inbox.recv().unwrap() else { panic!() };
//! assert_eq!(result.unwrap_err().code(), Code::Internal);
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod backpressure;
mod cancel;
mod classes;
mod deadline;
mod execution;
mod held_bytes;
mod log_level;
mod parameter;
mod pending;
mod request;
mod responder;
mod response;
mod sender;
mod service;
mod statistics;
mod status;
mod tensor;
mod trace;

#[cfg(all(test, loom_models))]
mod models;

pub use backpressure::{Backpressure, CongestionPoint, ResumeHook};
pub use cancel::CancelToken;
pub use classes::{ClassLabels, ClassificationInfo, ClassificationInfoOnce};
pub use deadline::{Deadline, TimeoutHeaders};
pub use execution::{
    AdmissionTimes, ExecutionReadings, ExecutionSummary, ExecutionTimes, RequestObserver,
    StepExecutionObserver,
};
pub use galatea_gate::access::{AccessPass, api};
pub use held_bytes::{ModelRequestBytes, RequestBytesGuard};
pub use log_level::LogLevel;
pub use parameter::{Parameter, ParameterValue};
pub use pending::{
    NOT_RESCHEDULED, PendingRequest, SequenceContext, SequenceReleaseHook, StateTensor,
};
pub use request::{CorrelationId, DeviceOutputs, InferenceRequest, MalformedInput, SequenceFlags};
pub use responder::{Responder, StatisticsReporter};
pub use response::{InferenceResponse, ResponseParameters};
pub use sender::{Finality, Reply, ResponseSender, ResponseSink};
pub use service::InferenceService;
pub use statistics::{CacheStatistics, FailureReason, MemoryUsage, MemoryUsageKind};
pub use status::{Code, Status};
pub use tensor::{InputTensor, OutputTensor};
pub use trace::{
    TensorTracePoint, Trace, TraceAttachment, TraceIdentity, TracePoint, TraceSink, TraceSubject,
    TracedTensor,
};
