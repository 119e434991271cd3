//! The memory of models that are loaded on demand: its limit and its metrics.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use galatea_allocator::{GlibcMallocTuner, release_free_memory};
use galatea_devices::Devices;
use galatea_engine::{DemandOptions, GpuMemory, GpuMemoryReading, ProcessMemory, Server};
use galatea_gate::ledger::MemoryLedger;
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
    devices: &Devices,
    heap: Heap,
    logger: &Logger,
) -> Result<Option<DemandOptions>, Status> {
    let Some(limit) = settings.demand().map_err(Status::invalid_argument)? else {
        return Ok(None);
    };
    let bytes = match limit {
        ModelMemoryLimit::Bytes(bytes) => bytes,
        ModelMemoryLimit::Percent(_) => {
            let usable = machine::usable_bytes(Path::new("/")).ok_or_else(|| {
                Status::internal(
                    "--model-memory: the size of the machine's memory is unknown, so a number of \
                     bytes is needed",
                )
            })?;
            limit.bytes_of(usable)
        }
    };
    let mib = bytes >> 20;
    logger.info(format_args!("Models that are loaded on demand may hold {mib} MiB of memory"));
    let memory_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let memory = process_memory(heap);
    let gpus = gpu_memory(settings, devices, logger)?;
    Ok(Some(DemandOptions { memory_bytes, memory, gpus }))
}

/// The GPUs whose memory is limited; none without GPUs.
fn gpu_memory(
    settings: &Settings,
    devices: &Devices,
    logger: &Logger,
) -> Result<BTreeMap<u16, GpuMemory>, Status> {
    let mut gpus = BTreeMap::new();
    if devices.is_empty() {
        return Ok(gpus);
    }
    for (gpu, limit) in &settings.gpus.model_memory {
        let number = i32::from(*gpu);
        let refused = |error: &dyn Display| {
            Status::invalid_argument(format!("--model-gpu-memory: GPU {gpu}: {error}"))
        };
        let device = devices.device(number).map_err(|error| refused(&error))?;
        let total = device.memory_use().map_err(|error| refused(&error))?.total;
        let bytes = limit.bytes_of(total);
        let mib = bytes >> 20;
        logger.info(format_args!("Models on demand may hold {mib} MiB of memory on GPU {gpu}"));
        let (devices, uuid) = (devices.clone(), device.info().uuid.clone());
        let measure = move || {
            let memory = devices.device(number).ok()?.memory_use().ok()?;
            u64::try_from(memory.total - memory.free).ok()
        };
        let limit_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        gpus.insert(*gpu, GpuMemory { uuid, limit_bytes, measure: Arc::new(measure) });
    }
    Ok(gpus)
}

/// The heap of the process, and the part of it that requests and responses hold.
pub(crate) struct Heap {
    pub(crate) ledger: Arc<MemoryLedger>,
    /// The process's allocator; `None` if the process belongs to a host program, whose ends of heaps
    /// are not released.
    pub(crate) allocator: Option<GlibcMallocTuner>,
}

/// Measures and releases the memory of the server.
fn process_memory(Heap { ledger, allocator }: Heap) -> ProcessMemory {
    let allocator = allocator.map(|allocator| super::beside(&ledger, allocator));
    let measure = move || {
        let held = u64::try_from(ledger.held()).unwrap_or(u64::MAX);
        Some(processes::memory_bytes(Path::new("/proc"))?.saturating_sub(held))
    };
    let release = move || match &allocator {
        Some(allocator) => allocator.release_free_memory(),
        None => release_free_memory(),
    };
    ProcessMemory { measure: Arc::new(measure), release: Arc::new(release) }
}

/// The metrics of models that are loaded on demand; none in other control modes.
pub(crate) fn model_metrics(server: &Server) -> Vec<CustomFamilySnapshot> {
    let Some(reading) = server.model_memory() else { return Vec::new() };
    let models = reading.models.iter();
    let of_models = models.map(|(model, bytes)| (vec![label("model", model)], number(*bytes)));
    let refusals = reading.refusals.iter();
    let refused = refusals.map(|(reason, count)| (vec![label("reason", reason)], number(*count)));
    let (gauge, counter) = (MetricKind::Gauge, MetricKind::Counter);
    let mut families = vec![
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
    ];
    families.extend(gpu_metrics(&reading.gpus));
    families
}

/// The metrics of the GPUs whose memory is limited; none without limits.
fn gpu_metrics(gpus: &[GpuMemoryReading]) -> Vec<CustomFamilySnapshot> {
    if gpus.is_empty() {
        return Vec::new();
    }
    let on = |gpu: &GpuMemoryReading| label("gpu_uuid", &gpu.uuid);
    let of_models = gpus.iter().flat_map(|gpu| {
        let models = gpu.models.iter();
        models.map(move |(model, bytes)| (vec![label("model", model), on(gpu)], number(*bytes)))
    });
    let each = |value: fn(&GpuMemoryReading) -> u64| {
        gpus.iter().map(|gpu| (vec![on(gpu)], number(value(gpu)))).collect()
    };
    vec![
        family(
            "galatea_model_gpu_memory_bytes",
            "Bytes of GPU memory of a model that is resident, being loaded or being unloaded",
            MetricKind::Gauge,
            of_models.collect(),
        ),
        family(
            "galatea_model_gpu_memory_used_bytes",
            "Bytes of GPU memory of all models together, with the memory reserved for loads",
            MetricKind::Gauge,
            each(|gpu| gpu.used_bytes),
        ),
        family(
            "galatea_model_gpu_memory_limit_bytes",
            "Bytes of GPU memory that all models together may use",
            MetricKind::Gauge,
            each(|gpu| gpu.limit_bytes),
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
