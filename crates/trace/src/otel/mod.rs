//! Traces for collectors over the OpenTelemetry protocol.
//!
//! A client request becomes a span. The same is true of each model that serves the request, each
//! execution, and each pair of backend reports whose names end in `_START` and `_END`. Names and
//! attributes match Triton's.
//!
//! - `context` reads and writes the W3C trace context, which lets a trace continue in other
//!   processes.
//! - `spans` builds spans from records. It is pure: no clock, no randomness.
//! - `otlp` encodes the spans as messages, `collector` sends the messages to its `address`, and
//!   `exporter` decides when.

mod address;
mod collector;
pub(crate) mod context;
pub(crate) mod exporter;
pub(crate) mod ids;
mod otlp;
pub(crate) mod spans;

pub use address::{CollectorAddress, MalformedUrl};
pub use collector::{CollectorClient, CollectorSettings};
pub use exporter::SpanBatchLimits;
