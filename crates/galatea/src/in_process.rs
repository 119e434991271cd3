//! Servers that a program creates in its own process, through the C API or the Python package. Such
//! a server works like any other, but without signal handling, and without network doors until the
//! program opens them (`frontend`).

use std::sync::{Arc, OnceLock};

use galatea_capi::{ReservedServerPointer, ServerCreateOptions};
use galatea_devices::Devices;
use galatea_dispatch::HostPolicySetting;
use galatea_engine::Server;
use galatea_gate::ledger::MemoryLedger;
use galatea_infer::Status;
use galatea_telemetry::{Logger, MetricsExporter};

use crate::doors::SharedByDoors;
use crate::environment::{Environment, SpanBatchVariables, VertexAiVariables};
use crate::flags::{self, CacheFlag, CacheSettings, ServerCommand, Settings};
use crate::{c_log, make, memory};

/// A server that runs in this process.
pub struct InProcessServer {
    pub(crate) server: Arc<Server>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) environment: Environment,
    pub(crate) devices: Devices,
    pub(crate) exporter: Arc<MetricsExporter>,
    pub(crate) logger: Logger,
    /// The memory accounting for requests, responses and padded batches.
    pub(crate) ledger: Arc<MemoryLedger>,
    /// The parts that the server's doors share, set when the first door opens.
    pub(crate) shared: OnceLock<SharedByDoors>,
}

/// Creates a server at the reserved address, for `TRITONSERVER_ServerNew`.
///
/// # Errors
///
/// Returns an error if an option is invalid or models could not be loaded.
pub fn make_for_c(
    options: &ServerCreateOptions,
    reserved: &ReservedServerPointer,
) -> Result<(), Status> {
    make_in_process(options, reserved).map(drop)
}

/// Creates a server in this process, at the reserved address.
///
/// # Errors
///
/// Returns an error if an option is invalid or models could not be loaded.
pub fn make_in_process(
    options: &ServerCreateOptions,
    reserved: &ReservedServerPointer,
) -> Result<InProcessServer, Status> {
    let settings = Arc::new(read(options)?);
    let environment = Environment::read();
    let logger = match c_log::of_process() {
        Some(logger) => logger,
        None => make::open_log(&settings, &environment).map_err(Status::invalid_argument)?,
    };
    let (devices, exporter) = make::devices_and_exporter(&settings, &environment, &logger);
    let buckets = make::buckets(&environment);
    let ledger = memory::ledger(settings.memory_limit, settings.model_memory, &logger);
    let made = make::server(make::ServerParts {
        settings: &settings,
        environment: environment.clone(),
        buckets: &buckets,
        allocator: None,
        logger: &logger,
        devices: &devices,
        exporter: &exporter,
        ledger: &ledger,
        reserved,
        before_loads: &mut |_| {},
    });
    if made.is_err()
        && let Some(running) = reserved.running_server()
    {
        // Unloads the models that did load, in order. The caller gets the reason for the failure,
        // not the result of the stop.
        let _ = (running.stop)(None);
    }
    let shared = OnceLock::new();
    made.map(|server| InProcessServer {
        server,
        settings,
        environment,
        devices,
        exporter,
        logger,
        ledger,
        shared,
    })
}

/// Reads the options, most of which are command-line flags.
fn read(options: &ServerCreateOptions) -> Result<Settings, Status> {
    let mut settings = parse(&options.flags)?;
    if let Some((name, config)) = &options.cache {
        settings.cache = Some(CacheSettings {
            flag: CacheFlag::CacheConfig,
            name: name.clone(),
            config: config.clone(),
            names_others: false,
        });
    }
    for [policy, setting, value] in &options.host_policies {
        if let Some(setting) = HostPolicySetting::by_name(setting) {
            settings.host_policies.set(policy, setting, value);
        }
    }
    Ok(settings)
}

/// Parses flags as on the command line.
pub(crate) fn parse(flags: &[String]) -> Result<Settings, Status> {
    let (vertex_ai, span_batches) = (VertexAiVariables::default(), SpanBatchVariables::default());
    match flags::parse(flags.iter().cloned(), &vertex_ai, &span_batches) {
        Ok(ServerCommand::Serve(settings)) => Ok(*settings),
        Ok(ServerCommand::Help(_) | ServerCommand::Version) => {
            Err(Status::invalid_argument("the options ask for no server"))
        }
        Err(error) => Err(Status::invalid_argument(error.to_string())),
    }
}
