//! Starts a server from its settings, runs it, and stops it.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use galatea_allocator::GlibcMallocTuner;
use galatea_backend_plugin::exit_without_destructors;
use galatea_bucket::BucketConnector;
use galatea_capi::ReservedServerPointer;
use galatea_engine::{ControlMode, Server};
use galatea_gate::ledger::MemoryLedger;
use galatea_telemetry::{Logger, MetricsExporter};
use galatea_tools::console::print_line;

use crate::backends;
use crate::children;
use crate::doors::{Addresses, DoorSetup, OpenDoors};
use crate::environment::Environment;
use crate::error_paths;
use crate::flags::{Settings, open_loads};
use crate::make;
use crate::memory;
use crate::shutdown::{LoadsAtShutdown, PATIENCE_SECS, StopSignals, Stopped, count_down};
use crate::tenants::TenantsFile;
use crate::tracing;
use crate::watched_files;
use crate::workers::Workers;

/// The reason why the program ends with an error. A reason that was logged is not printed again.
#[derive(Debug)]
pub(crate) enum ExitError {
    /// The server didn't start.
    Start(String),
    /// The server didn't start, and the log contains the reason.
    Logged(String),
    /// The server didn't stop: models may still be executing.
    Stop(String),
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(reason) | Self::Logged(reason) | Self::Stop(reason) => {
                write!(f, "error: {reason}")
            }
        }
    }
}

impl ExitError {
    fn start(doing: &str, kind: &str, reason: impl fmt::Display) -> Self {
        Self::Start(format!("{doing}: {kind} - {reason}"))
    }

    fn stop(reason: impl fmt::Display) -> Self {
        Self::Stop(format!("failed to stop server: Internal - {reason}"))
    }
}

/// An observer of startup, in addition to the log.
pub(crate) trait StartupObserver {
    /// Called when the server is about to load its models.
    fn loading(&mut self, server: &Arc<Server>);

    /// Called when the models are loaded or startup has failed.
    fn loaded(&mut self);

    /// Called when the server is serving clients.
    fn serving(&mut self, server: &Arc<Server>, addresses: &Addresses, logger: &Logger);

    /// Called when a signal is stopping the server.
    fn stopping(&mut self, signal: i32);
}

/// An observer that does nothing; startup is reported only in the log.
pub(crate) struct UnobservedStartup;

impl StartupObserver for UnobservedStartup {
    fn loading(&mut self, _: &Arc<Server>) {}
    fn loaded(&mut self) {}
    fn serving(&mut self, _: &Arc<Server>, _: &Addresses, _: &Logger) {}
    fn stopping(&mut self, signal: i32) {
        print_line(&mut io::stdout(), &format!("Signal ({signal}) received."));
    }
}

/// Returns freed memory to the system after bursts, in a server whose requests and responses may
/// use as much memory as the ledger allows.
fn trim(
    ledger: &Arc<MemoryLedger>,
    allocator: GlibcMallocTuner,
    logger: &Logger,
) -> impl Future<Output = Infallible> + use<> {
    let allocator = memory::beside(ledger, allocator);
    memory::trim_after_bursts(allocator, ledger.clone(), logger.clone())
}

/// Reads the file of tenants, if there is one.
fn open_tenants(settings: &Settings, logger: &Logger) -> Result<Option<TenantsFile>, ExitError> {
    TenantsFile::open(settings.tenants_file.as_deref(), logger)
        .map_err(|status| logged(logger, &status))
}

/// Ends the program after the server has stopped; `tell` prints a failure that is not in the log.
pub(crate) fn end_with(
    result: Result<Stopped, ExitError>,
    tell: impl FnOnce(&ExitError),
) -> ExitCode {
    let failure = match result {
        Ok(Stopped::Whole) => return ExitCode::SUCCESS,
        // A backend library is still working.
        Ok(Stopped::WithLoads(_)) => exit_without_destructors(0),
        Err(failure) => failure,
    };
    tell(&failure);
    // Threads may still be working on unfinished requests, so the server's parts are not destroyed.
    // Models may still be executing after a failed stop, so their libraries are not destroyed
    // either.
    match failure {
        ExitError::Start(_) | ExitError::Logged(_) => end(1),
        ExitError::Stop(_) => exit_without_destructors(1),
    }
}

#[allow(clippy::disallowed_methods)] // The program's main has nothing left to do.
fn end(code: i32) -> ExitCode {
    std::process::exit(code)
}

/// Logs an error with which the program ends.
fn logged(logger: &Logger, status: &galatea_infer::Status) -> ExitError {
    logger.error(status.message());
    ExitError::Logged(status.message().to_owned())
}

/// Serves until a signal ends it. Startup is only shown in the log.
pub(crate) fn serve(
    settings: Settings,
    mut environment: Environment,
    allocator: GlibcMallocTuner,
) -> ExitCode {
    for warning in settings.warnings() {
        print_line(&mut io::stderr(), warning);
    }
    backends::quiet_tensorflow(&settings, &mut environment);
    let result = run(settings, environment, allocator, &mut UnobservedStartup);
    end_with(result, |failure| {
        if !matches!(failure, ExitError::Logged(_)) {
            print_line(&mut io::stderr(), &failure.to_string());
        }
    })
}

/// Runs the server until a signal ends it.
pub(crate) fn run(
    settings: Settings,
    environment: Environment,
    allocator: GlibcMallocTuner,
    watch: &mut dyn StartupObserver,
) -> Result<Stopped, ExitError> {
    let logger = open_log(&settings, &environment)?;
    let (devices, exporter) = make::devices_and_exporter(&settings, &environment, &logger);
    let settings = Arc::new(settings);
    // Backend libraries identify the server by this address until the end.
    let reserved = ReservedServerPointer::new();
    let hub_cache = environment.hub_cache.clone();
    let (grpc_delays, clouds) = (environment.grpc_delays, environment.clouds.clone());
    let temporary_folder = environment.temporary_folder.clone();
    let (collector, buckets) = (environment.collector.clone(), make::buckets(&environment));
    let ledger = memory::ledger(settings.memory_limit, settings.model_memory, &logger);
    let server = make::server(make::ServerParts {
        settings: &settings,
        environment,
        buckets: &buckets,
        allocator: Some(allocator.clone()),
        logger: &logger,
        devices: &devices,
        exporter: &exporter,
        ledger: &ledger,
        reserved: &reserved,
        before_loads: &mut |server| watch.loading(server),
    });
    watch.loaded();
    let server = server
        .map_err(|status| ExitError::start("creating server", status.code().label(), status))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ExitError::start("starting", "Internal", error))?;
    let mut signals = catch_signals(&runtime)?;
    let workers = Workers::start(settings.http_threads)
        .map_err(|error| ExitError::start("starting worker threads", "Internal", error))?;
    let tracer = tracing::make(&settings.trace, &collector, &server, &logger)
        .map_err(|error| ExitError::start("creating tracer", "Invalid argument", error))?;
    let doors = DoorSetup {
        meters: Arc::default(),
        settings: &settings,
        ledger: &ledger,
        workers: &workers,
        server: &server,
        served: error_paths::door_services(&server, &settings, &temporary_folder),
        regions: make::regions(&settings, &devices, &logger),
        grpc_delays,
        hub_cache,
        clouds: &clouds,
        tracer: &tracer,
        devices: &devices,
        metrics: exporter.clone(),
        tenants: open_tenants(&settings, &logger)?,
        logger: &logger,
    };
    let mut doors = doors.open().map_err(|status| logged(&logger, &status))?;
    watch.serving(&server, &doors.addresses(&settings), &logger);
    // Connections made while requests drain also get the newest certificates.
    runtime.spawn(watched_files::reload_changed(doors.take_watched_files(), logger.clone()));
    let trimming = trim(&ledger, allocator, &logger);
    let outcome = runtime.block_on(async {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            never = follow_repositories(&server, &settings) => match never {},
            never = trimming => match never {},
            never = poll_gauges(&exporter, settings.metrics.allow) => match never {},
        };
        watch.stopping(signal);
        // As in Triton, further signals have no effect: requests get their full time.
        stop(&server, &doors, &buckets, settings.exit_timeout_secs, &logger).await
    });
    tracer.stop();
    // A scan of a slow repository may still be running, or a load whose caller is gone.
    runtime.shutdown_background();
    if !matches!(outcome, Ok(Stopped::Whole)) {
        children::kill_all(&logger);
    }
    outcome
}

/// Opens the log, and begins it with warnings about the permissions of other machines.
fn open_log(settings: &Settings, environment: &Environment) -> Result<Logger, ExitError> {
    let logger = make::open_log_or_console(settings, environment).map_err(ExitError::Start)?;
    open_loads(settings).iter().for_each(|remark| logger.warning(remark));
    Ok(logger)
}

fn catch_signals(runtime: &tokio::runtime::Runtime) -> Result<StopSignals, ExitError> {
    let _inside = runtime.enter();
    StopSignals::catch()
        .map_err(|error| ExitError::start("failed to register signal handler", "Internal", error))
}

/// Polls the repositories for changes, if enabled.
async fn follow_repositories(server: &Arc<Server>, settings: &Settings) -> Infallible {
    if settings.control_mode != ControlMode::Poll || settings.repository_poll_secs == 0 {
        return std::future::pending().await;
    }
    let interval = Duration::from_secs(u64::from(settings.repository_poll_secs));
    loop {
        tokio::time::sleep(interval).await;
        let server = server.clone();
        // Loading takes as long as the models need; signals must not wait for it.
        let _ = tokio::task::spawn_blocking(move || server.poll_repositories()).await;
    }
}

/// Polls the machine's gauges, even if no client reads them.
pub(crate) async fn poll_gauges(exporter: &MetricsExporter, is_allowed: bool) -> Infallible {
    if !is_allowed {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(exporter.poll_pause()).await;
        exporter.poll();
    }
}

/// Stops the network service, then the models: steps 2 to 9 of [`crate::shutdown`].
async fn stop(
    server: &Arc<Server>,
    doors: &OpenDoors,
    buckets: &BucketConnector,
    timeout_secs: u32,
    logger: &Logger,
) -> Result<Stopped, ExitError> {
    let mut stopping = std::pin::pin!(doors.stop(timeout_secs, logger));
    let patience = tokio::time::sleep(Duration::from_secs(PATIENCE_SECS.into()));
    let remaining = tokio::select! {
        remaining = &mut stopping => remaining,
        () = patience => {
            let models = server.clone();
            // A repository agent may be notified. If it panics, its load keeps waiting.
            let _ = tokio::task::spawn_blocking(move || models.cancel_pending_loads()).await;
            stopping.await
        }
    };
    server.begin_exit();
    buckets.abort_requests();
    logger.info("Waiting for in-flight requests to complete.");
    let (models, log) = (server.clone(), logger.clone());
    // The countdown blocks; meanwhile, the doors finish their responses.
    let counting = tokio::task::spawn_blocking(move || {
        count_down(&log, remaining, LoadsAtShutdown::GivenUp, |wait| {
            models.unload_all_detailed(wait)
        })
    });
    let Ok(Ok(stopped)) = counting.await else {
        let reason = "Exit timeout expired. Exiting immediately.";
        return Err(ExitError::stop(reason));
    };
    // The doors must not close earlier: work that is executing at the timeout must not pass for
    // finished.
    doors.close_http().await;
    match stopped {
        Stopped::Whole => logger.info("All models are stopped and unloaded"),
        Stopped::WithLoads(count) => {
            logger.warning(format_args!("loads in progress were given up: {count}"))
        }
    }
    if !doors.have_written().await {
        // Every admitted request has its response. A client that doesn't read its response, or
        // never finishes its request, is not a server failure.
        logger.warning("Exit timeout expired. Closing the connections that are left.");
    }
    Ok(stopped)
}
