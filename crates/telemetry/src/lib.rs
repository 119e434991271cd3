//! Telemetry: log lines, tables in the log, and metrics for Prometheus.
//!
//! Callers receive handles. There is no global logger and no global registry. A [`Logger`] is cheap
//! to clone, and its levels can change while the server runs. The [`MetricsExporter`] owns no
//! counters: it renders the statistics that the engine keeps, only when a client reads the metrics,
//! so it costs requests nothing.
//!
//! This crate is not a framework for spans or subscribers, and it does not listen on a port: a door
//! serves the output of [`MetricsExporter::render`].
//!
//! Open `log/mod.rs` first, then `metrics/mod.rs`.
//!
//! ```
//! use galatea_telemetry::{LogOptions, Logger};
//!
//! let logger = Logger::new(LogOptions::default())?;
//! logger.set_verbose_level(1);
//! logger.verbose(2, "finer than asked for: not printed");
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod log;
mod metrics;
mod table;

pub use galatea_control::{LogFormat, LogSettings};
pub use log::{LogOptions, Logger, SourcePosition};
pub use metrics::{
    CustomFamilySnapshot, MetricKind, MetricsExporter, MetricsOptions, SeriesValue, SettingWarning,
};
pub use table::TextTable;
