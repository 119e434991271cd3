//! From settings to a running server, and to its end.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use galatea_backend::LogLevel as BackendLogLevel;
use galatea_engine::{ControlMode, LocalCache, LogSink, ResponseCache, Server, ServerOptions};
use galatea_infer::Status;
use galatea_repository::{Overlays, Repository, RepositoryError, ScanOptions};
use galatea_telemetry::{LogLevel, LogOptions, Logger, MetricsExporter};

use crate::backends::Backends;
use crate::doors::{Doors, OpenDoors};
use crate::environment::Environment;
use crate::flags::Settings;
use crate::models::{Definer, RepositoryCatalog};
use crate::shutdown::{StopSignals, count_down};
use crate::workers::Workers;
use crate::{backends, banner};

const DOING: &str = "creating server";

/// What `--load-model` takes for all models.
const ALL_MODELS: &str = "*";

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
pub(crate) fn run(settings: Settings, environment: Environment) -> Result<(), Failure> {
    let logger = open_log(&settings, &environment)?;
    crate::c_log::use_for_c(logger.clone());
    let settings = Arc::new(settings);
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
    let outcome = runtime.block_on(async {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            never = follow_repositories(&server, &settings) => match never {},
        };
        crate::print(&mut std::io::stdout(), &format!("Signal ({signal}) received."));
        tokio::select! {
            outcome = stop(&server, &doors, settings.exit_timeout_secs, &logger) => outcome,
            signal = signals.next() => {
                let reason = format!("signal ({signal}) received again: exiting immediately");
                Err(Failure::new("failed to stop server", "Internal", reason))
            }
        }
    });
    // What still runs then is a look at repositories that answer slowly, or a
    // load that nobody waits for any more.
    runtime.shutdown_background();
    outcome
}

/// Follows changes of the repositories, if that is wanted.
async fn follow_repositories(server: &Arc<Server>, settings: &Settings) -> Infallible {
    if settings.control_mode != ControlMode::Poll || settings.repository_poll_secs == 0 {
        return std::future::pending().await;
    }
    let interval = Duration::from_secs(u64::from(settings.repository_poll_secs));
    loop {
        tokio::time::sleep(interval).await;
        let server = server.clone();
        // Loading takes as long as models do; signals must not wait for it.
        let _ = tokio::task::spawn_blocking(move || server.follow_repositories()).await;
    }
}

fn open_log(settings: &Settings, environment: &Environment) -> Result<Logger, Failure> {
    let options = LogOptions { quote: environment.quote_log_messages, ..settings.log.clone() };
    let file = options.file.clone().unwrap_or_default();
    Logger::new(options)
        .map_err(|error| Failure(format!("can't open log file '{}': {error}", file.display())))
}

/// A server with its models, loaded as far as they can be.
fn create_server(
    settings: &Arc<Settings>,
    environment: Environment,
    logger: &Logger,
) -> Result<Arc<Server>, Failure> {
    check_startup_models(settings)?;
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
    let (delay, backlog_delay) = (environment.delay_scheduler, environment.backlog_delay_scheduler);
    let catalog = Arc::new(RepositoryCatalog {
        repository,
        overlays: Overlays::new(&environment.temporary_folder),
        options: ScanOptions { config_name: settings.model_config_name.clone() },
        definer: Arc::new(Definer {
            auto_complete: settings.auto_complete_config,
            backends: Backends::new(settings.clone(), environment, log.clone()),
            logger: logger.clone(),
        }),
        logger: logger.clone(),
    });
    let server = Server::new(ServerOptions {
        name: settings.id.clone(),
        version: String::from(env!("CARGO_PKG_VERSION")),
        strict_readiness: settings.strict_readiness,
        hold_until_queued: delay,
        hold_until_backlogged: backlog_delay,
        catalog,
        control: settings.control_mode,
        load_threads: settings.model_load_threads,
        load_retries: settings.load_retries,
        cache: cache(settings),
        host_policies: settings.host_policies.clone(),
        log,
    })
    .map_err(|status: Status| Failure::new(DOING, "Internal", status))?;
    let all_loaded = match settings.control_mode {
        ControlMode::Explicit if settings.startup_models != [ALL_MODELS] => {
            server.load_named(&settings.startup_models)
        }
        ControlMode::None | ControlMode::Poll | ControlMode::Explicit => {
            server.follow_repositories()
        }
    };
    banner::log_summary(logger, &server, settings);
    if !all_loaded && settings.exit_on_error {
        return Err(Failure::new(DOING, "Internal", "failed to load all models"));
    }
    Ok(Arc::new(server))
}

fn check_startup_models(settings: &Settings) -> Result<(), Failure> {
    let names = &settings.startup_models;
    if names.len() > 1 && names.iter().any(|name| name == ALL_MODELS) {
        let reason = "Wildcard model name '*' must be the ONLY startup model if specified at all.";
        return Err(Failure::new(DOING, "Invalid argument", reason));
    }
    Ok(())
}

fn cache(settings: &Settings) -> Option<Arc<dyn ResponseCache>> {
    let cache = settings.cache?;
    Some(Arc::new(LocalCache::new(cache.byte_size)))
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
async fn stop(
    server: &Arc<Server>,
    doors: &OpenDoors,
    timeout_secs: u32,
    logger: &Logger,
) -> Result<(), Failure> {
    server.begin_exit();
    doors.stop_accepting();
    logger.info("Waiting for in-flight requests to complete.");
    let (models, log) = (server.clone(), logger.clone());
    // It waits, and a second signal must be heard.
    let counting = tokio::task::spawn_blocking(move || {
        count_down(&log, timeout_secs, |wait| models.unload_all(wait))
    });
    let Ok(Ok(remaining)) = counting.await else {
        let reason = "Exit timeout expired. Exiting immediately.";
        return Err(Failure::new("failed to stop server", "Internal", reason));
    };
    logger.info("All models are stopped and unloaded");
    if !doors.wait_drained(remaining).await {
        // Every request that was taken has its answer. That a client doesn't
        // fetch it, or never finishes what it says, is no failure of ours.
        logger.warning("Exit timeout expired. Closing the connections that are left.");
    }
    Ok(())
}
