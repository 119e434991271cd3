//! What the server tells about itself while it runs: log lines, tables in the
//! log, and metrics for Prometheus.
//!
//! Everything here is a handle that its user receives: there is no global
//! logger and no global registry. A [`Logger`] is cheap to clone and its
//! levels can change while the server runs. The [`MetricsExporter`] owns no
//! counters: it turns the statistics that the engine keeps anyway into text
//! when somebody asks, so that requests pay nothing for it.
//!
//! It is not a framework for spans or subscribers, and it does not listen on
//! a port: a door serves what [`MetricsExporter::render`] returns.
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

pub use log::{LogFormat, LogOptions, LogSettings, Logger, SourcePosition};
pub use metrics::{
    CustomFamily, CustomHistogram, CustomKind, CustomValue, MetricsExporter, MetricsOptions,
    SettingNote, UnsupportedSetting,
};
pub use table::Table;
