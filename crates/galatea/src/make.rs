//! Builds a server with its models from the settings, for both the program and the C API.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use galatea_allocator::GlibcMallocTuner;
use galatea_backend_plugin::RepositoryAgents;
use galatea_bucket::BucketConnector;
use galatea_capi::{ReservedServerPointer, RunningServer, metric};
use galatea_control::{HistogramReading, ServerControl, ShmControl, ShmDisabled};
use galatea_devices::{DeviceSearchResult, Devices};
use galatea_dispatch::{LogSink, ModelMetricOptions};
use galatea_engine::{ControlMode, NamespaceMode, Server, ServerOptions};
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::{AccessPass, Code, Status};
use galatea_repository::{ModelRepositories, RepositoryError, UploadedModelFactory};
use galatea_shm::ShmRegistry;
use galatea_stdx::Lock;
use galatea_telemetry::{
    CustomFamilySnapshot, LogOptions, Logger, MetricKind, MetricsExporter, SeriesValue,
};

use crate::backends::{BackendInUse, Backends};
use crate::catalog::RepositoryCatalog;
use crate::definer::ModelDefiner;
use crate::environment::Environment;
use crate::flags::Settings;
use crate::python::PythonAccess;
use crate::shutdown::{DrainTimeout, LoadsAtShutdown, count_down};
use crate::{backends, banner, c_log, cache, gpus, memory};

/// The value of `--load-model` that selects all models.
const ALL_MODELS: &str = "*";

/// The version that the server reports: the compatible Triton release, with Galatea's own version
/// as build metadata. Tools that compare versions thus compare Triton's.
const SERVER_VERSION: &str = concat!("2.73.0+galatea.", env!("CARGO_PKG_VERSION"));

/// The parts from which a server is built.
pub(crate) struct ServerParts<'a> {
    /// The command-line settings.
    pub(crate) settings: &'a Arc<Settings>,
    /// The process environment.
    pub(crate) environment: Environment,
    /// The connector for repositories in buckets.
    pub(crate) buckets: &'a Arc<BucketConnector>,
    /// The process's allocator; `None` if the process belongs to a host program.
    pub(crate) allocator: Option<GlibcMallocTuner>,
    /// The server's log.
    pub(crate) logger: &'a Logger,
    /// The GPUs that models may use.
    pub(crate) devices: &'a Devices,
    /// The renderer of the server's metrics.
    pub(crate) exporter: &'a Arc<MetricsExporter>,
    /// The memory accounting for requests, responses and padded batches.
    pub(crate) ledger: &'a Arc<MemoryLedger>,
    /// The address by which C code identifies the server.
    pub(crate) reserved: &'a ReservedServerPointer,
    /// A callback that runs before models load.
    pub(crate) before_loads: &'a mut dyn FnMut(&Arc<Server>),
}

/// Opens the log that the settings specify and lets C code write to it.
pub(crate) fn open_log(settings: &Settings, environment: &Environment) -> Result<Logger, String> {
    let options = LogOptions { quote: environment.quote_log_messages, ..settings.log.clone() };
    let file = options.file.clone().unwrap_or_default();
    let logger = Logger::new(options)
        .map_err(|error| format!("can't open log file '{}': {error}", file.display()))?;
    c_log::use_for_c(logger.clone());
    Ok(logger)
}

/// Opens the log for the program, which falls back to the console if the file cannot be written. As
/// in Triton, a full disk does not keep a server from serving.
pub(crate) fn open_log_or_console(
    settings: &Settings,
    environment: &Environment,
) -> Result<Logger, String> {
    open_log(settings, environment).or_else(|reason| {
        let mut console = settings.clone();
        console.log.file = None;
        let logger = open_log(&console, environment)?;
        logger.error(format_args!("{reason}. The log goes to the console"));
        Ok(logger)
    })
}

/// Logs notes about the settings.
fn log_notes(settings: &Settings, devices: &Devices, logger: &Logger) {
    let without = &settings.gpus.notes_without;
    let holds = |note: &&String| devices.is_empty() || !without.contains(note);
    settings.notes.iter().filter(holds).for_each(|note| logger.warning(note));
    settings.tls_remarks().for_each(|remark| logger.warning(remark));
    for setting in backends::unused(settings) {
        logger.warning(format_args!("--backend-config={setting} changes nothing"));
    }
}

/// Creates a server and loads its models.
///
/// The server is registered at the reserved address before models load, so that backends
/// can call it while their models are loaded.
pub(crate) fn server(parts: ServerParts<'_>) -> Result<Arc<Server>, Status> {
    let ServerParts { settings, environment, allocator, logger, exporter, reserved, .. } = parts;
    let (buckets, before_loads, devices) = (parts.buckets, parts.before_loads, parts.devices);
    let (repository, failure) = open_or_empty(settings, buckets)?;
    let cache = cache::make(settings)?;
    gpus::prepare(devices, settings, logger);
    let heap = memory::Heap { ledger: parts.ledger.clone(), allocator: allocator.clone() };
    let (log, parallel_creation) =
        (log_sink(logger.clone()), environment.parallel_instance_loading);
    let (delay, backlog_delay) = (environment.delay_scheduler, environment.backlog_delay_scheduler);
    let folder = &environment.temporary_folder;
    let agents = RepositoryAgents::new(&settings.repoagent_directory, folder);
    let (agents, overlays) = (Arc::new(agents), UploadedModelFactory::new(folder));
    let (options, python) = (settings.scan_options(), Arc::new(PythonAccess::new(logger.clone())));
    let backends = Backends::new(
        settings.clone(),
        environment,
        allocator,
        log.clone(),
        reserved,
        python.clone(),
        devices.clone(),
    );
    let backends = Arc::new(backends.charging(parts.ledger.clone()));
    let definer = Arc::new(ModelDefiner {
        auto_complete: settings.auto_complete_config,
        options: options.clone(),
        model_code: settings.model_code,
        agents: agents.clone(),
        backends: backends.clone(),
        support: gpus::support(devices, settings),
        logger: logger.clone(),
    });
    let server = Arc::new(Server::new(ServerOptions {
        name: settings.id.clone(),
        version: String::from(SERVER_VERSION),
        strict_readiness: settings.strict_readiness,
        hold_until_queued: delay,
        hold_until_backlogged: backlog_delay,
        parallel_creation,
        gpu_memory_check: gpus::memory_check(devices, settings),
        catalog: Arc::new(RepositoryCatalog { repository, overlays, options, definer }),
        control: settings.control_mode,
        demand: memory::demand_options(settings, devices, heap, logger)?,
        namespaces: settings.namespaces,
        load_threads: settings.model_load_threads,
        load_retries: settings.load_retries,
        cache,
        host_policies: settings.host_policies.clone(),
        rate_limit: settings.rate_limit(),
        measurements: measurements(settings),
        main_cause_text: Some(galatea_verdict::model_main_cause_text),
        ledger: parts.ledger.clone(),
        log,
    })?);
    devices.on_lost(server.gpu_loss_handler());
    python.set_server(&server);
    reserved.set_server(Arc::new(running(&server, buckets, settings, logger, exporter, devices)));
    if let Some(status) = failure {
        logger.error(format_args!("{}: {status}", status.code().label()));
        server.mark_failed();
        return Ok(server);
    }
    before_loads(&server);
    let all_loaded = load_models(&server, settings);
    let (agents, backends) = (agents.loaded_agents(), backends.in_use());
    banner::log_summary(logger, &*server, settings, &in_use(&agents, &backends, devices, exporter));
    if !all_loaded && settings.exit_on_error {
        return Err(Status::internal("failed to load all models"));
    }
    Ok(server)
}

/// Collects the parts of the server that the log shows once its models are loaded.
fn in_use<'a>(
    agents: &'a BTreeSet<(String, PathBuf)>,
    backends: &'a [BackendInUse],
    devices: &'a Devices,
    exporter: &MetricsExporter,
) -> banner::BannerContents<'a> {
    banner::BannerContents { agents, backends, devices, measured_gpus: exporter.measured_gpus() }
}

/// Logs notes about the settings, finds the GPUs, and creates the metrics renderer that measures
/// them.
pub(crate) fn devices_and_exporter(
    settings: &Settings,
    environment: &Environment,
    logger: &Logger,
) -> (Devices, Arc<MetricsExporter>) {
    let DeviceSearchResult { devices, notes } = gpus::find(settings, environment);
    log_notes(settings, &devices, logger);
    gpus::log(&notes, logger);
    let exporter = MetricsExporter::new(settings.metrics_options.clone());
    let exporter = Arc::new(exporter.with_devices(devices.clone(), logger));
    (devices, exporter)
}

/// Loads the models that the settings request. Returns false if any load failed.
fn load_models(server: &Server, settings: &Settings) -> bool {
    match settings.control_mode {
        ControlMode::Explicit if settings.startup_models != [ALL_MODELS] => {
            server.load_named(&settings.startup_models)
        }
        ControlMode::None | ControlMode::Poll | ControlMode::Explicit => server.poll_repositories(),
        ControlMode::Demand => {
            server.discover_models();
            server.load_pinned(&settings.startup_models)
        }
    }
}

/// The measurements to record: for metrics, if a client can read them, and for the dashboard.
fn measurements(settings: &Settings) -> ModelMetricOptions {
    let distributions = settings.dashboard;
    if !settings.metrics.allow {
        return ModelMetricOptions { distributions, ..ModelMetricOptions::default() };
    }
    let options = &settings.metrics_options;
    let quantiles = options.summary_latencies.then(|| options.summary_quantiles.as_slice().into());
    ModelMetricOptions {
        distributions: distributions || options.galatea_histograms,
        first_response: options.histogram_latencies,
        quantiles,
        gpus: options.gpu,
    }
}

/// Creates the connector for repositories in buckets.
pub(crate) fn buckets(environment: &Environment) -> Arc<BucketConnector> {
    Arc::new(BucketConnector::new(environment.buckets.clone()))
}

/// Opens the repositories. If the server continues without repositories, returns an empty set and
/// the reason. As in Triton, such a server is never live.
fn open_or_empty(
    settings: &Settings,
    buckets: &Arc<BucketConnector>,
) -> Result<(ModelRepositories, Option<Status>), Status> {
    check_startup_models(settings)?;
    match open_repository(settings, buckets.clone()) {
        Ok(repository) => Ok((repository, None)),
        Err(status) if settings.exit_on_error => Err(status),
        Err(status) => Ok((ModelRepositories::default(), Some(status))),
    }
}

fn open_repository(
    settings: &Settings,
    buckets: Arc<BucketConnector>,
) -> Result<ModelRepositories, Status> {
    if settings.model_repositories.is_empty() {
        return Err(Status::invalid_argument("--model-repository must be specified"));
    }
    let opened = ModelRepositories::open_with(&settings.model_repositories, Some(buckets));
    let repository = opened.map_err(|error| {
        let code = match error {
            RepositoryError::Unreachable { .. } => Code::Unsupported,
            RepositoryError::Remote { .. } | RepositoryError::Missing { .. } => Code::Internal,
            RepositoryError::NotDirectory { .. } => Code::InvalidArgument,
        };
        Status::new(code, error.to_string())
    })?;
    Ok(match settings.namespaces {
        NamespaceMode::None => repository,
        NamespaceMode::Repositories => repository.with_namespaces(),
    })
}

fn check_startup_models(settings: &Settings) -> Result<(), Status> {
    let names = &settings.startup_models;
    if names.len() > 1 && names.iter().any(|name| name == ALL_MODELS) {
        let reason = "Wildcard model name '*' must be the ONLY startup model if specified at all.";
        return Err(Status::invalid_argument(reason));
    }
    Ok(())
}

/// Passes log lines from the engine and backends to the log.
fn log_sink(logger: Logger) -> LogSink {
    let asked = logger.clone();
    LogSink::new(move |level, location, message| {
        logger.log(level, location.into(), message);
    })
    .with_level_filter(move |level| asked.enabled(level))
}

/// The server as seen by C code.
fn running(
    server: &Arc<Server>,
    buckets: &Arc<BucketConnector>,
    settings: &Arc<Settings>,
    logger: &Logger,
    exporter: &Arc<MetricsExporter>,
    devices: &Devices,
) -> RunningServer {
    let (shown, exporter, allowed) = (server.clone(), exporter.clone(), settings.metrics.allow);
    let (polled, polls) = (server.clone(), settings.control_mode == ControlMode::Poll);
    let (stopped, buckets, logger) = (server.clone(), buckets.clone(), logger.clone());
    let exit_timeout_secs = settings.exit_timeout_secs;
    let is_stopped = Lock::new(false);
    RunningServer {
        service: server.clone(),
        control: server.clone(),
        devices: devices.clone(),
        // As in Triton, metrics created by C code are present even if the server's own are off.
        metrics: Box::new(move || {
            if allowed {
                metrics_text(&shown, &exporter, Vec::new())
            } else {
                MetricsExporter::render_custom(&made_in_c())
            }
        }),
        poll: Box::new(move || {
            if !polls {
                return Err(Status::unavailable("the server's control mode is not poll"));
            }
            polled.poll_repositories();
            Ok(())
        }),
        stop: Box::new(move |timeout| {
            let mut is_stopped = is_stopped.lock("stop the server once");
            if *is_stopped {
                return Ok(());
            }
            stopped.begin_exit();
            buckets.abort_requests();
            logger.info("Waiting for in-flight requests to complete.");
            let seconds = timeout.map_or(exit_timeout_secs, |timeout| {
                u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX)
            });
            count_down(&logger, seconds, LoadsAtShutdown::Awaited, |wait| {
                stopped.unload_all_detailed(wait)
            })
            .map_err(|DrainTimeout| {
                Status::internal("Exit timeout expired. Exiting immediately.")
            })?;
            *is_stopped = true;
            Ok(())
        }),
    }
}

/// Renders the metrics of a server, its doors, and C code.
pub(crate) fn metrics_text(
    server: &Server,
    exporter: &MetricsExporter,
    doors: Vec<CustomFamilySnapshot>,
) -> String {
    let models = memory::model_metrics(server);
    let custom: Vec<CustomFamilySnapshot> =
        doors.into_iter().chain(models).chain(made_in_c()).collect();
    // Requesting the statistics of all models never fails.
    let models = server.statistics(AccessPass::in_process(), None, None).unwrap_or_default();
    exporter.render(&models, server.cache_statistics().as_ref(), &custom)
}

pub(crate) fn made_in_c() -> Vec<CustomFamilySnapshot> {
    metric::metric_families_snapshot().into_iter().map(custom_family).collect()
}

fn custom_family(family: metric::MetricFamilySnapshot) -> CustomFamilySnapshot {
    let value = |value| match value {
        metric::MetricValue::Number(number) => SeriesValue::Number(number),
        metric::MetricValue::Histogram(metric::Histogram { bounds, counts, sum }) => {
            SeriesValue::Histogram(HistogramReading { bounds, counts, sum })
        }
    };
    let series = family.series.into_iter().map(|(labels, one)| (labels, value(one)));
    CustomFamilySnapshot {
        name: family.name,
        help: family.help,
        kind: match family.kind {
            metric::MetricKind::Counter => MetricKind::Counter,
            metric::MetricKind::Gauge => MetricKind::Gauge,
            metric::MetricKind::Histogram => MetricKind::Histogram,
        },
        series: series.collect(),
    }
}

/// The registry of shared-memory regions, if clients may share memory.
pub(crate) fn regions(
    settings: &Settings,
    devices: &Devices,
    logger: &Logger,
) -> Arc<dyn ShmControl> {
    if settings.allow_client_shm {
        let logger = logger.clone();
        let regions = ShmRegistry::new(devices.clone());
        Arc::new(regions.with_error_log(move |text| logger.error(text)))
    } else {
        Arc::new(ShmDisabled)
    }
}
