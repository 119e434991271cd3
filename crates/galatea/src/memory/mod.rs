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

use galatea_allocator::GlibcMallocTuner;
use galatea_gate::ledger::MemoryLedger;
use galatea_telemetry::{CustomFamilySnapshot, Logger, MetricKind, SeriesValue};

pub(crate) use limit::ModelMemoryLimit;
pub(crate) use models::{Heap, demand_options, model_metrics};
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

/// The allocator tuning of a server whose requests and responses may use as much memory as the
/// ledger allows.
pub(crate) fn beside(ledger: &MemoryLedger, allocator: GlibcMallocTuner) -> GlibcMallocTuner {
    match ledger.limit() {
        Some(bytes_max) => allocator.for_memory_limit(bytes_max),
        None => allocator,
    }
}

/// The ledger for the server's doors.
pub(crate) fn ledger(
    limit: MemoryLimit,
    models: Option<ModelMemoryLimit>,
    logger: &Logger,
) -> Arc<MemoryLedger> {
    let limit = match limit {
        MemoryLimit::Off => None,
        MemoryLimit::Bytes(bytes) => Some(bytes),
        MemoryLimit::Default => {
            machine::usable_bytes(Path::new("/")).map(|usable| default_limit(usable, models))
        }
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

/// Three quarters of the memory that models on demand leave, but at least a sixteenth of all.
fn default_limit(usable: usize, models: Option<ModelMemoryLimit>) -> usize {
    let left = usable.saturating_sub(models.map_or(0, |limit| limit.bytes_of(usable)));
    left.saturating_sub(left / 4).max(usable / 16)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_get_a_share_of_what_models_leave() {
        let limit = |models| default_limit(1_600, models);
        assert_eq!(limit(None), 1_200);
        assert_eq!(limit(Some(ModelMemoryLimit::Bytes(400))), 900);
        assert_eq!(limit(Some(ModelMemoryLimit::Percent(50))), 600);
        assert_eq!(limit(Some(ModelMemoryLimit::Percent(100))), 100);
        assert_eq!(limit(Some(ModelMemoryLimit::Bytes(9_999))), 100);
    }
}
