//! Traces for a collector that speaks OpenTelemetry's protocol.
//!
//! A client's request becomes a span, and so do each model that serves it, its execution, and
//! what its backend reports with names that end in `_START` and `_END`. Names and attributes
//! are Triton's.
//!
//! - `context` reads and writes the W3C's trace context, with which a trace goes on in other
//!   processes.
//! - `spans` makes spans of records: a value without clock and randomness.
//! - `otlp` writes them as messages, `collector` sends these to its `address`, and
//!   `exporter` says when.

mod address;
mod collector;
pub(crate) mod context;
pub(crate) mod exporter;
pub(crate) mod ids;
mod otlp;
pub(crate) mod spans;

pub use address::{CollectorAddress, MalformedUrl};
pub use collector::{Collector, CollectorConnection};
pub use exporter::BatchLimits;
