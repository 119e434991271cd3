//! From settings to a running server, and to its end.

use std::fmt;
use std::sync::Arc;

use galatea_backend::LogLevel as BackendLogLevel;
use galatea_engine::{LocalCache, LogSink, ResponseCache, Server, ServerOptions};
use galatea_infer::Status;
use galatea_repository::{Repository, RepositoryError};
use galatea_telemetry::{LogLevel, LogOptions, Logger, MetricsExporter};

use crate::backends::Backends;
use crate::doors::{Doors, OpenDoors};
use crate::environment::Environment;
use crate::flags::Settings;
use crate::shutdown::{StopSignals, count_down};
use crate::workers::Workers;
use crate::{backends, banner, models};

/// Why the program ends with an error. What has been logged already is not
/// said again.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.0)
    }
}

impl Failure {
    fn new(doing: &str, kind: &str, reason: impl fmt::Display) -> Self {
        Self(format!("{doing}: {kind} - {reason}"))
    }
}

/// Runs the server until a signal ends it.
pub(crate) fn run(settings: Settings, environment: &Environment) -> Result<(), Failure> {
    let logger = open_log(&settings, environment)?;
    settings.notes.iter().for_each(|note| logger.warning(note));
    for setting in backends::unused(&settings.backend_settings) {
        logger.warning(format_args!("--backend-config={setting} changes nothing"));
    }
    let server = create_server(&settings, environment, &logger)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("starting", "Internal", error))?;
    let mut signals = {
        let _inside = runtime.enter();
        StopSignals::catch()
            .map_err(|error| Failure::new("failed to register signal handler", "Internal", error))?
    };
    let workers = Workers::start(settings.http_threads)
        .map_err(|error| Failure::new("starting worker threads", "Internal", error))?;
    let metrics = Arc::new(MetricsExporter::new(settings.metrics_options.clone()));
    let doors =
        Doors { settings: &settings, workers: &workers, server: &server, metrics, logger: &logger };
    let doors = doors.open().map_err(Failure)?;
    let signal = runtime.block_on(signals.next());
    crate::print(&mut std::io::stdout(), &format!("Signal ({signal}) received."));
    stop(&server, doors, &runtime, settings.exit_timeout_secs, &logger)
}

fn open_log(settings: &Settings, environment: &Environment) -> Result<Logger, Failure> {
    let options = LogOptions { quote: environment.quote_log_messages, ..settings.log.clone() };
    let file = options.file.clone().unwrap_or_default();
    Logger::new(options)
        .map_err(|error| Failure(format!("can't open log file '{}': {error}", file.display())))
}

/// A server with its models, loaded as far as they can be.
fn create_server(
    settings: &Settings,
    environment: &Environment,
    logger: &Logger,
) -> Result<Arc<Server>, Failure> {
    const DOING: &str = "creating server";
    if settings.model_repositories.is_empty() {
        let reason = "--model-repository must be specified";
        return Err(Failure::new(DOING, "Invalid argument", reason));
    }
    let repository = Repository::open(&settings.model_repositories).map_err(|error| {
        let kind = match error {
            RepositoryError::Cloud { .. } => "Unsupported",
            RepositoryError::Open { .. } => "Invalid argument",
        };
        Failure::new(DOING, kind, error)
    })?;
    let log = log_sink(logger.clone());
    let server = Server::new(ServerOptions {
        name: settings.id.clone(),
        version: String::from(env!("CARGO_PKG_VERSION")),
        strict_readiness: settings.strict_readiness,
        hold_until_queued: environment.delay_scheduler,
        hold_until_backlogged: environment.backlog_delay_scheduler,
        load_retries: settings.load_retries,
        cache: cache(settings),
        host_policies: settings.host_policies.clone(),
        log: log.clone(),
    })
    .map_err(|status: Status| Failure::new(DOING, "Internal", status))?;
    let mut backends = Backends::new(settings, environment, log);
    let report = models::load_all(&server, &repository, settings, &mut backends, logger);
    banner::log_summary(logger, &server, settings, &report.reasons);
    if !report.all_loaded && settings.exit_on_error {
        return Err(Failure::new(DOING, "Internal", "failed to load all models"));
    }
    Ok(Arc::new(server))
}

/// Lines of the engine and of backends go to the same log.
fn log_sink(logger: Logger) -> LogSink {
    LogSink::new(move |level, location, message| {
        let level = match level {
            BackendLogLevel::Error => LogLevel::Error,
            BackendLogLevel::Warning => LogLevel::Warning,
            BackendLogLevel::Info => LogLevel::Info,
            BackendLogLevel::Verbose(level) => LogLevel::Verbose(level),
        };
        logger.log(level, location.into(), message);
    })
}

/// New requests are refused from now on; those that came have until the
/// timeout. Metrics can be read until the end.
fn stop(
    server: &Server,
    doors: OpenDoors,
    runtime: &tokio::runtime::Runtime,
    timeout_secs: u32,
    logger: &Logger,
) -> Result<(), Failure> {
    server.begin_exit();
    doors.stop_accepting();
    logger.info("Waiting for in-flight requests to complete.");
    let remaining = count_down(logger, timeout_secs, |wait| server.unload_all(wait));
    let Ok(remaining) = remaining else {
        let reason = "Exit timeout expired. Exiting immediately.";
        return Err(Failure::new("failed to stop server", "Internal", reason));
    };
    logger.info("All models are stopped and unloaded");
    if !doors.wait_drained(runtime, remaining) {
        // Every request that was taken has its answer. That a client doesn't
        // fetch it, or never finishes what it says, is no failure of ours.
        logger.warning("Exit timeout expired. Closing the connections that are left.");
    }
    Ok(())
}

fn cache(settings: &Settings) -> Option<Arc<dyn ResponseCache>> {
    let cache = settings.cache?;
    Some(Arc::new(LocalCache::new(cache.byte_size)))
}
