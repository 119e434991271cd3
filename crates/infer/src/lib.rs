//! What an inference request, a response and a sender are, and the two traits
//! through which front ends reach the server.
//!
//! This is the vocabulary that every door, backend and driver shares. It
//! decides nothing, runs no thread and reads no clock.
//!
//! A request's life in these types: a door builds an [`InferenceRequest`] and
//! a [`ResponseSender`] and gives both to an [`InferenceService`]. The engine
//! checks the request against its model and moves both into a
//! [`PendingRequest`], the one owned thing that travels. A backend answers
//! through [`PendingRequest::complete`]. Whatever happens on the way, the
//! sender answers: dropped unfinished, it reports an internal error itself.
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

mod cancel;
mod classes;
mod control;
mod flow;
mod pending;
mod request;
mod response;
mod sender;
mod service;
mod status;
mod trace;

pub use cancel::CancelToken;
pub use classes::{ClassLabels, ClassesCell, ModelClasses};
pub use control::{
    BatchStatistics, CacheStatistics, DurationStatistic, FailureReason, InferenceStatistics,
    LoadParameters, MemoryUsage, MemoryUsageKind, ModelConfigDocument, ModelMetadata, ModelState,
    ModelStatistics, RepositoryEntry, ResponseStatistics, ServerMetadata, TensorMetadata,
};
pub use flow::{CongestionPoint, ResumeHook, Throttle};
pub use pending::{
    ExecutionObserver, ExecutionSummary, ExecutionTimes, PendingRequest, RequestObserver,
    RequestTimes, Responder, SequenceContext, SequenceOwner, StateTensor, StatisticsReporter,
};
pub use request::{
    CorrelationId, InferenceRequest, InputTensor, Parameter, ParameterValue, SequenceFlags,
};
pub use response::{InferenceResponse, OutputTensor};
pub use sender::{Finality, Reply, ResponseSender, ResponseSink};
pub use service::{InferenceService, NameMapping, ServerControl};
pub use status::{Code, Status};
pub use trace::{TensorTracePoint, Trace, TracePoint, TraceSink, TraceSubject, TracedTensor};
