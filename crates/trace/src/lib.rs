//! Tracing of clients' requests: the choice of traced requests, their records, and the destinations
//! of these.
//!
//! - [`Tracer`] is the driver. Doors ask it to begin a trace; the trace rides on the request, and
//!   records its trace points along the way.
//! - `settings` and `sampler` decide what is traced. They are values without threads or clocks.
//! - `record` collects what happens to a request and to those that serve it; `queue` brings
//!   the result to the thread of `writer`, and drops it if there is no room.
//! - `files` and `json` write Triton's files; `otel` makes spans and sends them to a collector.
//!
//! No request waits for a disk or for a collector, and while nothing is traced a request
//! costs one load of a flag.
//!
//! The crate knows no protocol and no model.

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

pub use otel::{BatchLimits, Collector, CollectorAddress, CollectorConnection, MalformedUrl};
pub use settings::Fields;
pub use tracer::{CheckModel, CollectorOptions, LogError, TraceOutput, Tracer, TracerOptions};
