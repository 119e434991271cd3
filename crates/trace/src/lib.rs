//! Tracing of client requests: selecting requests, recording them, and delivering the records.
//!
//! - [`Tracer`] is the driver. Doors ask it to begin a trace; the trace rides on the request, and
//!   records trace points along the way.
//! - `settings` and `sampler` decide what is traced. They use no threads or clocks.
//! - `record` collects the events of a request and of the requests that serve it. `queue` passes
//!   the result to the `writer` thread, or drops it if the queue is full.
//! - `files` and `json` write Triton's files; `otel` builds spans and sends them to a collector.
//!
//! Requests never wait for a disk or a collector. While tracing is off, a request costs one load of
//! a flag.
//!
//! The crate has no knowledge of protocols or models.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod event;
pub mod export;
mod files;
mod json;
mod otel;
mod queue;
mod record;
mod sampler;
mod settings;
mod tracer;
mod writer;

pub use otel::{
    CollectorAddress, CollectorClient, CollectorSettings, MalformedUrl, SpanBatchLimits,
};
pub use settings::TraceSettingValues;
pub use tracer::{CheckModel, CollectorOptions, ErrorLogger, TraceOutput, Tracer, TracerOptions};
