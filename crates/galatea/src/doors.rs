//! The endpoints, which are opened once the models are loaded and closed in order.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use galatea_control::ShmControl;
use galatea_devices::Devices;
use galatea_door::tls::{ApplicationProtocol, SharedTlsAcceptor};
use galatea_door::{DoorOptions, RunningDoor};
use galatea_engine::Server;
use galatea_gate::access::{AccessGate, AccessRules};
use galatea_gate::ledger::MemoryLedger;
use galatea_grpc::{GrpcOptions, TestDelays};
use galatea_http::{
    AllowedHosts, Dashboard, HttpOptions, OpenAiMeters, OrcaReportSource, RequestLog,
    TrafficRecorder,
};
use galatea_infer::{LogLevel, Status};
use galatea_telemetry::{Logger, MetricsExporter};
use galatea_trace::Tracer;

use crate::certificates::Certificates;
use crate::connections::ConnectionOptions;
use crate::environment::CloudVariables;
use crate::error_paths::DoorServices;
use crate::flags::tls::{self, TlsFlags};
use crate::flags::{DoorSettings, Settings};
use crate::listeners::bind;
use crate::load_report::load_report;
use crate::make::{made_in_c, metrics_text};
use crate::memory;
use crate::openai_metrics;
use crate::shutdown::PATIENCE_SECS;
use crate::tenants::TenantsFile;
use crate::watched_files::WatchedFiles;
use crate::workers::Workers;

/// The parts needed to open endpoints.
pub(crate) struct DoorSetup<'a> {
    /// The doors to open, and their addresses.
    pub(crate) settings: &'a Settings,
    /// The threads that serve the doors.
    pub(crate) workers: &'a Workers,
    /// The server.
    pub(crate) server: &'a Arc<Server>,
    /// The server as the doors see it.
    pub(crate) served: DoorServices,
    /// The memory accounting for requests and responses.
    pub(crate) ledger: &'a Arc<MemoryLedger>,
    /// The shared-memory regions of clients.
    pub(crate) regions: Arc<dyn ShmControl>,
    /// Response delays for Triton's own tests.
    pub(crate) grpc_delays: TestDelays,
    /// The cache of Hugging Face's libraries.
    pub(crate) hub_cache: Option<PathBuf>,
    /// The settings that cloud platforms pass to the server.
    pub(crate) clouds: &'a CloudVariables,
    /// The request tracer.
    pub(crate) tracer: &'a Arc<Tracer>,
    /// The GPUs.
    pub(crate) devices: &'a Devices,
    /// The source of the metrics.
    pub(crate) metrics: Arc<MetricsExporter>,
    /// The measurements of the OpenAI endpoint.
    pub(crate) meters: Arc<OpenAiMeters>,
    /// The file of tenants, if callers need keys.
    pub(crate) tenants: Option<TenantsFile>,
    /// The log, which reports the open endpoints.
    pub(crate) logger: &'a Logger,
}

/// The parts shared by all of a server's doors, including those opened later.
pub(crate) struct SharedByDoors {
    /// The memory accounting for requests and responses.
    pub(crate) ledger: Arc<MemoryLedger>,
    /// The shared-memory regions of clients.
    pub(crate) regions: Arc<dyn ShmControl>,
    /// The request tracer.
    pub(crate) tracer: Arc<Tracer>,
}

/// The address at which clients on this machine can reach an endpoint.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    socket: SocketAddr,
    has_tls: bool,
}

/// The addresses of the open endpoints.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) http: Option<Address>,
    pub(crate) grpc: Option<Address>,
    pub(crate) metrics: Option<Address>,
}

impl Address {
    /// Returns the address as host and port.
    pub(crate) fn local(&self) -> String {
        if self.socket.ip().is_unspecified() {
            format!("localhost:{}", self.socket.port())
        } else {
            self.socket.to_string()
        }
    }

    /// Returns the address as a URL.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.has_tls { "https" } else { "http" }, self.local())
    }
}

/// The HTTP endpoint's views of the server, which Triton doesn't have.
struct ServerViews {
    dashboard: Option<Dashboard>,
    recorder: Option<TrafficRecorder>,
}

/// The open endpoints. Dropping this value closes them.
pub(crate) struct OpenDoors {
    grpc: Option<galatea_grpc::RunningGrpcServer>,
    http: Option<RunningDoor>,
    /// The dashboard at the HTTP endpoint. Its streams end before the endpoint does.
    dashboard: Option<Dashboard>,
    /// Records traffic until the endpoint closes.
    recorder: Option<TrafficRecorder>,
    /// The OpenAI door.
    openai: Option<RunningDoor>,
    /// The cloud doors.
    clouds: Vec<RunningDoor>,
    /// The metrics door. It stays open until the end, so that clients can observe the shutdown.
    metrics: Option<RunningDoor>,
    /// The files that are to be checked for changes.
    watched: WatchedFiles,
}

impl DoorSetup<'_> {
    /// Opens the enabled endpoints.
    ///
    /// The error is the message with which the program ends.
    pub(crate) fn open(&self) -> Result<OpenDoors, Status> {
        let settings = self.settings;
        let options = ConnectionOptions::new(&settings.connections);
        let mut certificates = Vec::new();
        let dashboard = settings.dashboard.then(|| self.dashboard());
        let recorder =
            settings.traffic_recording.then(|| TrafficRecorder::new(self.server.clone()));
        let shown = ServerViews { dashboard: dashboard.clone(), recorder: recorder.clone() };
        let http = options.http.clone();
        Ok(OpenDoors {
            grpc: self.grpc(&settings.grpc, options.grpc, &mut certificates)?,
            http: self.http(&settings.http, http, shown, &mut certificates)?,
            dashboard,
            recorder,
            openai: self.openai(options.http.clone(), &mut certificates)?,
            clouds: self.clouds(&options.http)?,
            metrics: self.metrics(&settings.metrics, options.metrics)?,
            watched: WatchedFiles { certificates, tenants: self.tenants.clone() },
        })
    }

    fn grpc(
        &self,
        door: &DoorSettings,
        connections: DoorOptions,
        certificates: &mut Vec<Certificates>,
    ) -> Result<Option<galatea_grpc::RunningGrpcServer>, Status> {
        let protocol = ApplicationProtocol::Http2;
        let tls = self.tls("GRPC service", door, tls::GRPC, protocol, certificates)?;
        let start = |socket| {
            let DoorServices { service, control } = self.served.clone();
            let mut options = GrpcOptions::default();
            options.door = connections;
            options.ledger = self.ledger.clone();
            options.gate = self.gate(&self.settings.grpc_rules);
            options.header_forward.clone_from(&self.settings.grpc_header_forward);
            options.response_pool_size = self.settings.grpc_response_pool_size;
            options.log = Some(Arc::new(self.logger.clone()));
            options.test_delays = self.grpc_delays;
            options.response_compression = self.settings.grpc_response_compression;
            options.keepalive.clone_from(&self.settings.grpc_keepalive);
            options.limits.input_bytes_max = self.settings.http_input_bytes_max;
            options.regions = self.regions.clone();
            options.tracing = Some(self.tracer.clone());
            options.explanations = Some(galatea_verdict::text);
            options.tls = tls;
            galatea_grpc::start(self.workers.handles(), socket, service, control, options)
        };
        self.start("GRPC service", "GRPCInferenceService", &door.address, door, start)
    }

    fn http(
        &self,
        door: &DoorSettings,
        connections: DoorOptions,
        shown: ServerViews,
        certificates: &mut Vec<Certificates>,
    ) -> Result<Option<RunningDoor>, Status> {
        let protocol = ApplicationProtocol::Http1;
        let tls = self.tls("HTTP service", door, tls::HTTP, protocol, certificates)?;
        let has_openai = door.allow && self.settings.openai.is_on_http_port;
        let openai = has_openai.then(|| self.openai_options(connections.clone())).transpose()?;
        let start = |socket| {
            let DoorServices { service, control } = self.served.clone();
            let header_forward = self.settings.http_header_forward.clone();
            let common = self.http_options(connections);
            let ServerViews { dashboard, recorder } = shown;
            let options = HttpOptions { header_forward, tls, dashboard, recorder, ..common };
            let workers = self.workers.handles();
            match openai {
                None => galatea_http::start_inference_endpoint(
                    workers, socket, service, control, options,
                ),
                Some(openai) => galatea_http::start_inference_endpoint_with_openai(
                    workers, socket, service, control, options, openai,
                ),
            }
        };
        self.start("HTTP service", "HTTPService", &door.address, door, start)
    }

    /// Creates the gate of an endpoint with these rules.
    pub(crate) fn gate(&self, rules: &AccessRules) -> AccessGate {
        let tenants = self.tenants.as_ref().map(TenantsFile::directory);
        AccessGate::new(rules.clone()).with_tenants(tenants)
    }

    /// The options that all HTTP doors share: the same rules and limits apply to each.
    pub(crate) fn http_options(&self, connections: DoorOptions) -> HttpOptions {
        HttpOptions {
            door: connections,
            input_bytes_max: self.settings.http_input_bytes_max,
            gate: self.gate(&self.settings.http_rules),
            ledger: self.ledger.clone(),
            log: Some(Arc::new(self.logger.clone())),
            request_log: Some(request_log(self.logger.clone())),
            load_report: Some(OrcaReportSource::new(|| load_report(&made_in_c()))),
            regions: self.regions.clone(),
            tracing: Some(self.tracer.clone()),
            explanations: Some(galatea_verdict::text),
            ..HttpOptions::default()
        }
    }

    /// Creates the dashboard, served under this machine's names and the names in the settings. IP
    /// addresses and the name `localhost` always work.
    fn dashboard(&self) -> Dashboard {
        let given = self.settings.dashboard_hosts.iter().cloned();
        // The endpoint may listen on a name other than the machine's own host name.
        let listens = [self.settings.http.address.clone(), host_name()];
        let meters = self.meters.clone();
        Dashboard::new(
            self.server.clone(),
            self.ledger.clone(),
            AllowedHosts::new(given.chain(listens)),
            self.devices.clone(),
            Arc::new(move || meters.read()),
        )
    }

    /// Renders the metrics.
    pub(crate) fn metrics_renderer(&self) -> Arc<dyn Fn() -> String + Send + Sync> {
        let (server, exporter) = (self.server.clone(), self.metrics.clone());
        let (ledger, meters) = (self.ledger.clone(), self.meters.clone());
        let tenants = self.tenants.clone();
        Arc::new(move || {
            let mut families = memory::metrics(&ledger);
            families.extend(tenants.iter().flat_map(TenantsFile::metrics));
            families.append(&mut openai_metrics::families(&meters));
            metrics_text(&server, &exporter, families)
        })
    }

    fn metrics(
        &self,
        door: &DoorSettings,
        connections: DoorOptions,
    ) -> Result<Option<RunningDoor>, Status> {
        let render = self.metrics_renderer();
        let start = |socket| {
            galatea_http::start_metrics(self.workers.handles(), socket, render, connections)
        };
        let address = self.settings.metrics_address();
        self.start("Metrics service", "Metrics Service", address, door, start)
    }

    /// Reads the certificates of an endpoint, if it is enabled and uses TLS.
    pub(crate) fn tls(
        &self,
        name: &str,
        door: &DoorSettings,
        flags: TlsFlags,
        protocol: ApplicationProtocol,
        certificates: &mut Vec<Certificates>,
    ) -> Result<Option<SharedTlsAcceptor>, Status> {
        if !door.allow || !door.tls.is_on() {
            return Ok(None);
        }
        let opened = Certificates::open(&door.tls, flags, protocol, self.logger)
            .map_err(|error| failed(name, &Status::invalid_argument(error.to_string())))?;
        let tls = opened.tls();
        certificates.push(opened);
        Ok(Some(tls))
    }

    /// Binds and starts one endpoint, if it is enabled.
    pub(crate) fn start<D>(
        &self,
        name: &str,
        started: &str,
        address: &str,
        door: &DoorSettings,
        start: impl FnOnce(TcpListener) -> io::Result<D>,
    ) -> Result<Option<D>, Status> {
        if !door.allow {
            return Ok(None);
        }
        let listener = bind(address, door).map_err(|status| failed(name, &status))?;
        let running = start(listener.socket)
            .map_err(|error| Status::internal(format!("failed to start {name}: {error}")))?;
        self.logger.info(format_args!("Started {started} at {}", listener.display_address));
        Ok(Some(running))
    }
}

/// The error, as a log line, for an endpoint that can't be opened.
pub(crate) fn failed(name: &str, status: &Status) -> Status {
    let (code, reason) = (status.code(), status.message());
    Status::new(code, format!("failed to start {name}: {} - {reason}", code.label()))
}

impl OpenDoors {
    /// Takes the files that are to be watched. There are none left afterwards.
    pub(crate) fn take_watched_files(&mut self) -> WatchedFiles {
        std::mem::take(&mut self.watched)
    }

    /// The addresses of the endpoints, according to the settings with which they were opened.
    pub(crate) fn addresses(&self, settings: &Settings) -> Addresses {
        let address = |socket, door: &DoorSettings| Address { socket, has_tls: door.tls.is_on() };
        let http = self.http.as_ref().map(RunningDoor::address);
        let grpc = self.grpc.as_ref().map(|door| door.address());
        let metrics = self.metrics.as_ref().map(RunningDoor::address);
        Addresses {
            http: http.map(|socket| address(socket, &settings.http)),
            grpc: grpc.map(|socket| address(socket, &settings.grpc)),
            metrics: metrics.map(|socket| address(socket, &settings.metrics)),
        }
    }

    /// The port of the first open endpoint.
    pub(crate) fn port(&self) -> Option<u16> {
        let http = [&self.http, &self.metrics].into_iter().flatten().map(RunningDoor::address);
        let grpc = self.grpc.iter().map(|door| door.address());
        http.chain(grpc).next().map(|address| address.port())
    }

    /// Stops serving, first over HTTP, then over gRPC. No new connections are accepted. Open
    /// connections have until the timeout; gRPC connections last only as long as they have calls.
    /// Returns the number of seconds that remain.
    pub(crate) async fn stop(&self, timeout_secs: u32, logger: &Logger) -> u32 {
        let mut remaining = timeout_secs;
        // As in Triton, the stop doesn't wait for cloud connections, which stay open.
        self.clouds.iter().for_each(RunningDoor::begin_drain);
        self.dashboard.iter().for_each(Dashboard::close_streams);
        self.recorder.iter().for_each(TrafficRecorder::end);
        if let Some(http) = &self.http {
            http.begin_drain();
            let what = "HTTP service connections";
            remaining = wait_for_connections(logger, remaining, what, http).await;
        }
        if let Some(openai) = &self.openai {
            openai.begin_drain();
            let what = "OpenAI service connections";
            remaining = wait_for_connections(logger, remaining, what, openai).await;
        }
        if let Some(grpc) = &self.grpc {
            grpc.begin_drain();
            let what = "gRPC service connections and inference handlers";
            remaining = wait_for_connections(logger, remaining, what, grpc).await;
        }
        remaining
    }

    /// Closes the remaining HTTP connections and cancels their executing requests. Cloud
    /// connections get a second to write pending responses.
    pub(crate) async fn close_http(&self) {
        self.http.iter().chain(&self.openai).for_each(RunningDoor::close);
        let mut written = std::pin::pin!(tokio::time::sleep(Duration::from_secs(1)));
        for cloud in &self.clouds {
            tokio::select! {
                () = cloud.drained() => {}
                () = &mut written => {}
            }
            cloud.close();
        }
    }

    /// Closes the remaining gRPC connections. Their calls are cancelled and have a second to end.
    pub(crate) async fn close_grpc(&self) {
        let Some(grpc) = &self.grpc else { return };
        grpc.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), grpc.drained()).await;
    }

    /// Waits up to a second for all responses to be written, even after the timeout. Called once
    /// every request has its response. Returns true if all were written.
    pub(crate) async fn have_written(&self) -> bool {
        let Some(grpc) = &self.grpc else { return true };
        tokio::time::timeout(Duration::from_secs(1), grpc.drained()).await.is_ok()
    }
}

/// Waits until a door has no connections, logging once a second. If all connections are idle, they
/// are closed. No request is lost. Returns the number of seconds that remain.
async fn wait_for_connections(
    logger: &Logger,
    timeout_secs: u32,
    what: &str,
    door: &RunningDoor,
) -> u32 {
    for remaining in (1..=timeout_secs).rev() {
        if timeout_secs - remaining >= PATIENCE_SECS {
            door.close_if_all_idle(PATIENCE_SECS);
        }
        let count = door.draining_connection_count();
        if count == 0 {
            return remaining;
        }
        logger.info(format_args!("Timeout {remaining}: Found {count} {what}"));
        if tokio::time::timeout(Duration::from_secs(1), door.drained()).await.is_ok() {
            return remaining;
        }
    }
    0
}

/// The host name of this machine; empty if the system doesn't report one.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Logs HTTP requests if verbose logging is on.
fn request_log(logger: Logger) -> RequestLog {
    let asked = logger.clone();
    let is_on = move || asked.enabled(LogLevel::Verbose(1));
    RequestLog::new(is_on, move |line| logger.verbose(1, line))
}
