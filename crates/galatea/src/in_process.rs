//! Servers that a program makes in its own process, through the functions of C or the package
//! for Python: the same server, without signals, and without network doors until it opens some
//! (`frontend`).

use std::sync::{Arc, OnceLock};

use galatea_capi::{ChosenOptions, ReservedAddress};
use galatea_devices::Devices;
use galatea_dispatch::HostPolicySetting;
use galatea_engine::Server;
use galatea_gate::ledger::Ledger;
use galatea_infer::Status;
use galatea_telemetry::{Logger, MetricsExporter};

use crate::doors::SharedByDoors;
use crate::environment::{Environment, SpanBatchVariables, VertexAiVariables};
use crate::flags::{self, CacheFlag, CacheSettings, ServerCommand, Settings};
use crate::{c_log, make, memory};

/// A server of this process.
pub struct InProcessServer {
    pub(crate) server: Arc<Server>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) environment: Environment,
    pub(crate) devices: Devices,
    pub(crate) exporter: Arc<MetricsExporter>,
    pub(crate) logger: Logger,
    /// The memory of requests, responses and padded batches.
    pub(crate) ledger: Arc<Ledger>,
    /// The parts that its doors share, from the first of them on.
    pub(crate) shared: OnceLock<SharedByDoors>,
}

/// Makes a server for `TRITONSERVER_ServerNew`, settled at the reserved address.
///
/// # Errors
///
/// If an option is wrong or models could not be loaded.
pub fn make_for_c(options: &ChosenOptions, reserved: &ReservedAddress) -> Result<(), Status> {
    make_in_process(options, reserved).map(drop)
}

/// Makes a server of this process, settled at the reserved address.
///
/// # Errors
///
/// If an option is wrong or models could not be loaded.
pub fn make_in_process(
    options: &ChosenOptions,
    reserved: &ReservedAddress,
) -> Result<InProcessServer, Status> {
    let settings = Arc::new(read(options)?);
    let environment = Environment::read();
    let logger = match c_log::of_process() {
        Some(logger) => logger,
        None => make::open_log(&settings, &environment).map_err(Status::invalid_argument)?,
    };
    let (devices, exporter) = make::devices_and_exporter(&settings, &environment, &logger);
    let buckets = make::buckets(&environment);
    let ledger = memory::ledger(settings.memory_limit, &logger);
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
        && let Some(running) = reserved.running()
    {
        // Models that were loaded are unloaded in order. The caller gets the reason for the
        // failure, not the result of the stop.
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

/// Most options are flags of the command line.
fn read(options: &ChosenOptions) -> Result<Settings, Status> {
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

/// Reads flags as the command line's.
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
