//! The display of `galatea serve`: models while they load, then the server's addresses and an
//! example request.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_control::{ModelMetadata, ModelState, RepositoryEntry, ServerControl};
use galatea_engine::Server;
use galatea_gate::access::AccessRules;
use galatea_infer::AccessPass;
use galatea_load::{ServedModelInterface, curl_command};
use galatea_repository::ScanProblem;
use galatea_telemetry::Logger;
use galatea_tools::console::{ColourMode, Console, ReportFormat, Style, print_line};
use serde_json::{Value, json};

use crate::commands::sources::LinkOrigins;
use crate::doors::{Address, Addresses};
use crate::flags::Settings;
use crate::startup::{ExitError, StartupObserver};

/// The interval between updates of the progress line.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);

/// The display of a startup.
pub(super) struct StartDisplay {
    format: ReportFormat,
    progress: Console,
    results: Console,
    /// The log levels once the server is serving; `None` if the log isn't silent before that.
    later_log: Option<RequestedLogLevels>,
    /// True if a client may request inference without a key or a certificate.
    is_open: bool,
    has_dashboard: bool,
    places: LinkOrigins,
    server: Option<Arc<Server>>,
    follower: Option<ProgressThread>,
}

/// Builds the request that is shown for a model.
type MakeRequest<'a> = &'a dyn Fn(&RepositoryEntry) -> Option<String>;

/// The log levels that were requested.
struct RequestedLogLevels {
    warning: bool,
    error: bool,
}

/// The thread that shows loading models. It ends when its sender is dropped.
struct ProgressThread {
    until: Sender<()>,
    thread: JoinHandle<()>,
}

impl StartDisplay {
    /// Creates the display. The log is silent until the server is serving, unless the flags turn it
    /// on.
    pub(super) fn new(
        format: ReportFormat,
        settings: &mut Settings,
        colours: ColourMode,
        places: &LinkOrigins,
    ) -> Self {
        let log = &mut settings.log;
        let is_silent = !log.info && log.verbose_level == 0;
        let later_log =
            is_silent.then_some(RequestedLogLevels { warning: log.warning, error: log.error });
        if is_silent {
            (log.warning, log.error) = (false, false);
        }
        let has_rules = settings.http_rules != AccessRules::default();
        Self {
            format,
            progress: Console::on_stderr(colours),
            results: Console::on_stdout(colours),
            later_log,
            has_dashboard: settings.dashboard,
            is_open: !has_rules && !settings.http.tls.is_on(),
            places: places.clone(),
            server: None,
            follower: None,
        }
    }

    /// Prints the reason why the server failed.
    pub(super) fn explain(&self, failure: &ExitError) {
        let failed = self.server.as_deref().map_or(0, |server| {
            let is_ready = |entry: &RepositoryEntry| entry.state == Some(ModelState::Ready);
            self.entries(server).iter().filter(|entry| !is_ready(entry)).count()
        });
        let reason = match failure {
            ExitError::Start(_) if failed > 0 => String::from(
                "not all models can be served. With --exit-on-error=false the others are",
            ),
            ExitError::Logged(reason) => reason.trim_end().to_owned() + port_hint(reason),
            ExitError::Start(reason) | ExitError::Stop(reason) => reason.clone(),
        };
        if self.format == ReportFormat::Json {
            let models = self.server.as_deref().map(|server| self.models(server, None));
            let document = json!({ "error": reason, "models": models.unwrap_or_default() });
            print_line(&mut io::stdout(), &document.to_string());
        }
        let label = self.progress.paint(Style::Bad, "error:");
        print_line(&mut io::stderr(), &format!("{label} {reason}"));
    }

    /// Prints each model and its state.
    fn show_models(&self, server: &Server) {
        for entry in self.entries(server) {
            let name = match entry.version {
                Some(version) if version != 1 => format!("{} (version {version})", entry.name),
                _ => entry.name.clone(),
            };
            let line = if entry.state == Some(ModelState::Ready) {
                format!("{}   {name}", self.progress.paint(Style::Good, "ready"))
            } else {
                format!("{}  {name}: {}", self.progress.paint(Style::Bad, "failed"), entry.reason)
            };
            print_line(&mut io::stderr(), &line);
        }
    }

    fn show_addresses(&self, server: &Server, addresses: &Addresses) {
        let mut out = io::stdout();
        let mut show = |what: &str, address: Option<String>| {
            if let Some(address) = address {
                let what = format!("{what:<10}");
                let what = self.results.paint(Style::Strong, &what);
                print_line(&mut out, &format!("{what}{address}"));
            }
        };
        show("HTTP", addresses.http.as_ref().map(Address::url));
        show("gRPC", addresses.grpc.as_ref().map(Address::local));
        let metrics = addresses.metrics.as_ref();
        show("metrics", metrics.map(|address| format!("{}/metrics", address.url())));
        show("dashboard", self.dashboard(addresses));
        let request = self
            .entries(server)
            .iter()
            .find_map(|entry| self.request(server, entry, addresses.http.as_ref()));
        if let Some(request) = request {
            print_line(&mut out, &format!("\nTry it:\n\n{request}\n"));
        }
        if self.results.is_terminal() {
            print_line(&mut out, &self.results.paint(Style::Faint, "Ctrl-C stops the server."));
        }
    }

    fn dashboard(&self, addresses: &Addresses) -> Option<String> {
        let http = addresses.http.as_ref().filter(|_| self.has_dashboard)?;
        Some(format!("{}/dashboard", http.url()))
    }

    /// The models that should have loaded. The reasons refer to the files that the user passed.
    fn entries(&self, server: &Server) -> Vec<RepositoryEntry> {
        let mut entries = entries(server);
        for entry in &mut entries {
            entry.reason = explained(&self.places.named_in(&entry.reason));
        }
        entries
    }

    /// The models as JSON, each with an example request.
    fn models(&self, server: &Server, request: Option<MakeRequest<'_>>) -> Value {
        let model = |entry: &RepositoryEntry| {
            let mut model = json!({
                "name": entry.name,
                "version": entry.version.map(|version| version.to_string()),
                "state": entry.state.map(ModelState::name),
            });
            if !entry.reason.is_empty() {
                model["reason"] = json!(entry.reason);
            }
            if let Some(request) = request.and_then(|request| request(entry)) {
                model["request"] = json!(request);
            }
            model
        };
        self.entries(server).iter().map(model).collect()
    }

    /// A command that sends a request to a model.
    fn request(
        &self,
        server: &Server,
        entry: &RepositoryEntry,
        http: Option<&Address>,
    ) -> Option<String> {
        let is_ready = entry.state == Some(ModelState::Ready);
        let http = http.filter(|_| self.is_open && is_ready)?;
        curl_command(&interface(server, &entry.name)?, &http.url()).ok()
    }
}

impl StartupObserver for StartDisplay {
    fn loading(&mut self, server: &Arc<Server>) {
        self.server = Some(server.clone());
        let shows = self.format == ReportFormat::Text && self.progress.is_terminal();
        if !shows || self.later_log.is_none() {
            return;
        }
        let (until, ended) = channel::<()>();
        let (console, server, begin) = (self.progress, server.clone(), Instant::now());
        let follow = move || {
            while ended.recv_timeout(PROGRESS_PAUSE) == Err(RecvTimeoutError::Timeout) {
                console.show_progress(&progress(&entries(&server), begin.elapsed()));
            }
        };
        let thread = std::thread::Builder::new().name(String::from("progress")).spawn(follow);
        // Without the thread, only the progress line is missing.
        self.follower = thread.ok().map(|thread| ProgressThread { until, thread });
    }

    fn loaded(&mut self) {
        if let Some(ProgressThread { until, thread }) = self.follower.take() {
            drop(until);
            let _ = thread.join();
            self.progress.clear_progress();
        }
        if self.format == ReportFormat::Text
            && self.later_log.is_some()
            && let Some(server) = &self.server
        {
            self.show_models(server);
        }
    }

    fn stopping(&mut self, _: i32) {
        if self.format == ReportFormat::Text {
            print_line(&mut io::stdout(), "The server stops.");
        }
    }

    fn serving(&mut self, server: &Arc<Server>, addresses: &Addresses, logger: &Logger) {
        self.server = None;
        if let Some(RequestedLogLevels { warning, error }) = self.later_log {
            logger.set_warning(warning);
            logger.set_error(error);
        }
        match self.format {
            ReportFormat::Text => self.show_addresses(server, addresses),
            ReportFormat::Json => {
                let http = addresses.http.as_ref();
                let request = |entry: &RepositoryEntry| self.request(server, entry, http);
                let document = json!({
                    "http": http.map(Address::url),
                    "grpc": addresses.grpc.as_ref().map(Address::local),
                    "metrics": addresses.metrics.as_ref().map(|one| format!("{}/metrics", one.url())),
                    "dashboard": self.dashboard(addresses),
                    "process": std::process::id(),
                    "models": self.models(server, Some(&request)),
                });
                print_line(&mut io::stdout(), &document.to_string());
            }
        }
    }
}

/// The models that should have loaded, and everything that could not be read.
fn entries(server: &Server) -> Vec<RepositoryEntry> {
    let index = server.repository_index(AccessPass::in_process(), false).unwrap_or_default();
    let tried = index.into_iter().filter(|entry| entry.state.is_some());
    tried.chain(server.scan_problems().into_iter().map(unread)).collect()
}

/// An entry for a model or repository that could not be read at all. The index doesn't report the
/// reason.
fn unread(problem: ScanProblem) -> RepositoryEntry {
    let text = problem.to_string();
    let (name, reason) = match problem {
        ScanProblem::Model { name, reason } => (name, reason),
        ScanProblem::Duplicate { name } => (name, text),
        ScanProblem::Repository { path, reason } => (path, reason),
    };
    RepositoryEntry { name, version: None, state: Some(ModelState::Unavailable), reason }
}

/// Rewrites a reason for human readers.
fn explained(reason: &str) -> String {
    let cause = if reason.contains("Protobuf parsing failed") {
        " The file is no ONNX model, or it is damaged."
    } else {
        ""
    };
    format!("{reason}{cause}")
}

fn progress(entries: &[RepositoryEntry], elapsed: Duration) -> String {
    let names = |wanted: ModelState| {
        let of_it = entries.iter().filter(move |entry| entry.state == Some(wanted));
        of_it.map(|entry| entry.name.as_str()).collect::<Vec<_>>()
    };
    let (ready, loading) = (names(ModelState::Ready).len(), names(ModelState::Loading));
    let seconds = elapsed.as_secs_f64();
    format!("loading {} ({ready} ready, {seconds:.1} s)", loading.join(", "))
}

fn interface(server: &Server, model: &str) -> Option<ServedModelInterface> {
    let metadata = server.model_metadata(AccessPass::in_process(), model, None).ok()?;
    let config = server.model_config(AccessPass::in_process(), model, None).ok()?;
    let ModelMetadata { name, inputs, outputs, .. } = metadata;
    let tensor = |tensor: &galatea_control::TensorMetadata| {
        json!({
            "name": tensor.name,
            "datatype": tensor.datatype.protocol_name(),
            "shape": tensor.shape,
        })
    };
    let tensors = |tensors: &[galatea_control::TensorMetadata]| {
        tensors.iter().map(tensor).collect::<Vec<Value>>()
    };
    let metadata =
        json!({ "name": name, "inputs": tensors(&inputs), "outputs": tensors(&outputs) });
    ServedModelInterface::from_json(&metadata, &serde_json::from_str(&config.json).ok()?).ok()
}

/// If a port is already in use, returns a hint about the flag that selects another port.
fn port_hint(reason: &str) -> &'static str {
    let hints = [
        ("HTTP service", ". Choose another with --http-port"),
        ("GRPC service", ". Choose another with --grpc-port"),
        ("Metrics service", ". Choose another with --metrics-port"),
    ];
    let is_in_use = reason.trim_end().ends_with("already in use");
    let hint = hints.iter().find(|(service, _)| is_in_use && reason.contains(service));
    hint.map_or("", |(_, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_followed_by_the_flag_for_another() {
        let reason = "failed to start HTTP service: Unavailable - Socket '0.0.0.0:8000' already in \
                      use ";
        assert_eq!(port_hint(reason), ". Choose another with --http-port");
        assert_eq!(port_hint("failed to start HTTP service: Invalid argument"), "");
    }

    #[test]
    fn progress_names_what_loads() {
        let entry = |name: &str, state| RepositoryEntry {
            name: name.to_owned(),
            version: Some(1),
            state: Some(state),
            reason: String::new(),
        };
        let entries = [
            entry("a", ModelState::Ready),
            entry("b", ModelState::Loading),
            entry("c", ModelState::Loading),
        ];
        let line = progress(&entries, Duration::from_millis(1_500));
        assert_eq!(line, "loading b, c (1 ready, 1.5 s)");
    }
}
