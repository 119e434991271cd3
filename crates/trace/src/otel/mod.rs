//! Traces for a collector over the OpenTelemetry protocol.
//!
//! A client's request becomes a span, and so do each model that serves it, its execution, and its
//! backend's reports whose names end in `_START` and `_END`. Names and attributes are Triton's.
//!
//! - `context` reads and writes the W3C's trace context, with which a trace continues in other
//!   processes.
//! - `spans` makes spans from records: pure, without a clock or randomness.
//! - `otlp` encodes them as messages, `collector` sends these to its `address`, and `exporter`
//!   decides when.

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
