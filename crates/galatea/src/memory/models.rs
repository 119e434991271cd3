//! The memory of models that are loaded on demand: its limit and its metrics.

use std::path::Path;
use std::sync::Arc;

use galatea_engine::{DemandOptions, Server};
use galatea_infer::Status;
use galatea_telemetry::{CustomFamilySnapshot, Logger, MetricKind, SeriesValue};

use super::limit::ModelMemoryLimit;
use super::{machine, processes};
use crate::flags::Settings;

/// The options for models that are loaded on demand; `None` in other control modes.
///
/// # Errors
///
/// `InvalidArgument` for flags that can't be combined; `Internal` if the limit is a percentage and
/// the machine's memory is unknown.
pub(crate) fn demand_options(
    settings: &Settings,
    logger: &Logger,
) -> Result<Option<DemandOptions>, Status> {
    let Some(limit) = settings.demand().map_err(Status::invalid_argument)? else {
        return Ok(None);
    };
    let bytes = match limit {
        ModelMemoryLimit::Bytes(bytes) => bytes,
        ModelMemoryLimit::Percent(percent) => {
            let usable = machine::usable_bytes(Path::new("/")).ok_or_else(|| {
                Status::internal(
                    "--model-memory: the size of the machine's memory is unknown, so a number of \
                     bytes is needed",
                )
            })?;
            usable / 100 * usize::from(percent)
        }
    };
    let mib = bytes >> 20;
    logger.info(format_args!("Models that are loaded on demand may hold {mib} MiB of memory"));
    let memory_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let meter = Arc::new(|| processes::memory_bytes(Path::new("/proc")));
    Ok(Some(DemandOptions { memory_bytes, meter }))
}

/// The metrics of models that are loaded on demand; none in other control modes.
pub(crate) fn model_metrics(server: &Server) -> Vec<CustomFamilySnapshot> {
    let Some(reading) = server.model_memory() else { return Vec::new() };
    let models = reading.models.iter();
    let of_models = models.map(|(model, bytes)| (vec![label("model", model)], number(*bytes)));
    let refusals = reading.refusals.iter();
    let refused = refusals.map(|(reason, count)| (vec![label("reason", reason)], number(*count)));
    let (gauge, counter) = (MetricKind::Gauge, MetricKind::Counter);
    vec![
        family(
            "galatea_model_memory_bytes",
            "Bytes of memory of a model that is resident, being loaded or being unloaded",
            gauge,
            of_models.collect(),
        ),
        single(
            "galatea_model_memory_used_bytes",
            "Bytes of memory of all models together, with the memory reserved for loads",
            gauge,
            reading.used_bytes,
        ),
        single(
            "galatea_model_memory_limit_bytes",
            "Bytes of memory that all models together may use",
            gauge,
            reading.limit_bytes,
        ),
        single("galatea_model_loads_total", "Loads on demand that began", counter, reading.loads),
        single(
            "galatea_model_load_failures_total",
            "Loads on demand that failed",
            counter,
            reading.failed_loads,
        ),
        single(
            "galatea_model_evictions_total",
            "Models that were unloaded to free their memory, or by clients",
            counter,
            reading.unloads,
        ),
        single(
            "galatea_model_waiting_requests",
            "Requests that wait until their model is loaded",
            gauge,
            reading.waiting,
        ),
        family(
            "galatea_model_refusals_total",
            "Requests that were refused because their model was not loaded",
            counter,
            refused.collect(),
        ),
    ]
}

type LabeledValue = (Vec<(String, String)>, SeriesValue);

fn family(
    name: &str,
    help: &str,
    kind: MetricKind,
    series: Vec<LabeledValue>,
) -> CustomFamilySnapshot {
    CustomFamilySnapshot { name: name.to_owned(), help: help.to_owned(), kind, series }
}

fn single(name: &str, help: &str, kind: MetricKind, value: u64) -> CustomFamilySnapshot {
    family(name, help, kind, vec![(Vec::new(), number(value))])
}

fn label(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Exact below 2^53.
fn number(value: u64) -> SeriesValue {
    SeriesValue::Number(value as f64)
}
