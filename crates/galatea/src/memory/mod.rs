//! The memory that requests and responses may use, and how it is returned to the system.
//!
//! - this file: the limit and its default
//! - `limit.rs`: the value of `--model-memory`
//! - `machine.rs`: the amount of memory that the process may use
//! - `models.rs`: the memory of models that are loaded on demand
//! - `processes.rs`: the memory that the server and its worker processes use
//! - `trim.rs`: returns free memory after a burst

mod limit;
mod machine;
mod models;
mod processes;
mod trim;

use std::path::Path;
use std::sync::Arc;

use galatea_gate::ledger::MemoryLedger;
use galatea_telemetry::{CustomFamilySnapshot, Logger, MetricKind, SeriesValue};

pub(crate) use limit::ModelMemoryLimit;
pub(crate) use models::{demand_options, model_metrics};
pub(crate) use trim::trim_after_bursts;

/// The value of `--memory-limit`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    /// Three quarters of the memory that the process may use.
    #[default]
    Default,
    /// No limit.
    Off,
    /// A limit of this many bytes.
    Bytes(usize),
}

/// The ledger for the server's doors.
pub(crate) fn ledger(limit: MemoryLimit, logger: &Logger) -> Arc<MemoryLedger> {
    let limit = match limit {
        MemoryLimit::Off => None,
        MemoryLimit::Bytes(bytes) => Some(bytes),
        MemoryLimit::Default => machine::usable_bytes(Path::new("/")).map(three_quarters),
    };
    match limit {
        Some(bytes) => {
            let mib = bytes >> 20;
            logger.info(format_args!("Requests and responses may hold {mib} MiB of memory"));
        }
        None => logger.info("The memory of requests and responses is not limited"),
    }
    Arc::new(MemoryLedger::new(limit))
}

const fn three_quarters(bytes: usize) -> usize {
    bytes.saturating_sub(bytes / 4)
}

/// The ledger's counters, as metrics.
pub(crate) fn metrics(ledger: &MemoryLedger) -> Vec<CustomFamilySnapshot> {
    let family = |name: &str, help: &str, kind, value: usize| CustomFamilySnapshot {
        name: name.to_owned(),
        help: help.to_owned(),
        kind,
        // Exact below 2^53 bytes.
        series: vec![(Vec::new(), SeriesValue::Number(value as f64))],
    };
    let gauge = MetricKind::Gauge;
    let mut families = vec![
        family(
            "galatea_memory_held_bytes",
            "Bytes that requests, responses and connections hold",
            gauge,
            ledger.held(),
        ),
        family(
            "galatea_memory_connection_peak_bytes",
            "The most bytes that a single connection has held",
            gauge,
            ledger.account_peak(),
        ),
        family(
            "galatea_memory_refusals_total",
            "Requests and responses that were refused because of the memory limit",
            MetricKind::Counter,
            ledger.refusals(),
        ),
    ];
    if let Some(limit) = ledger.limit() {
        let help = "Bytes that requests, responses and connections may hold";
        families.push(family("galatea_memory_limit_bytes", help, gauge, limit));
    }
    families
}
