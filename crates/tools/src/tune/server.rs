//! The server on which candidates are measured: it loads the model with each candidate's
//! configuration.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galatea_load::{HttpConnection, Protocol, Target, encode_path_segment, ready_models};
use galatea_traffic::{RecordedExecution, TrafficLine};
use serde_json::{Value, json};

use crate::bench::local::LocalServer;
use crate::record::stream::{Connection, ReceivedLine};

/// The maximum time for a model to load.
const LOAD_TIME_MAX: Duration = Duration::from_mins(10);

/// The time to wait for the last recorded executions.
const RECORDING_PAUSE: Duration = Duration::from_millis(300);

/// A server with one model.
pub(super) struct TunedServer {
    _server: LocalServer,
    pub(super) target: Target,
    pub(super) model: String,
    /// The model's untuned configuration.
    pub(super) config: Value,
}

impl TunedServer {
    /// Starts the server.
    pub(super) fn start(model: &str, flags: &[String]) -> Result<Self, String> {
        let mut flags = flags.to_vec();
        let own =
            ["--model-control-mode=explicit", "--load-model=*", "--allow-traffic-recording=true"];
        flags.extend(own.map(String::from));
        let server = LocalServer::start(&[model.to_owned()], &flags, &[Protocol::Http])?;
        let target = server.targets.first().cloned().ok_or("the server has no HTTP endpoint")?;
        let mut models = ready_models(&target)?;
        models.dedup();
        let [name] = models.as_slice() else {
            return Err(format!(
                "one model is tuned at a time, not {}: {}",
                models.len(),
                models.join(", ")
            ));
        };
        let path = format!("/v2/models/{}/config", encode_path_segment(name));
        let config = call(&target, "GET", &path, "")?;
        let model = name.clone();
        Ok(Self { _server: server, target, model, config })
    }

    /// Loads the model with another configuration.
    pub(super) fn load(&self, config: &Value) -> Result<(), String> {
        let path = format!("/v2/repository/models/{}/load", encode_path_segment(&self.model));
        let body = json!({ "parameters": { "config": config.to_string() } }).to_string();
        call(&self.target, "POST", &path, &body).map(drop)
    }

    /// Starts recording executions.
    pub(super) fn record(&self) -> Result<Recorder, String> {
        let mut connection = Connection::open(&self.target.address)?;
        let header = [(String::from("Galatea-Traffic"), String::from("1"))];
        let path = format!("/v2/models/{}/traffic", encode_path_segment(&self.model));
        let status = connection.request(&path, &header)?;
        if status != 200 {
            return Err(format!("executions can't be recorded: status {status}"));
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let (sender, executions) = mpsc::channel();
        let thread = std::thread::spawn(move || read(&mut connection, &seen, &sender));
        Ok(Recorder { is_over, thread, executions })
    }
}

/// A recording of executions in progress.
pub(super) struct Recorder {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
    executions: mpsc::Receiver<RecordedExecution>,
}

impl Recorder {
    /// Takes the executions recorded since the last call.
    pub(super) fn take(&self) -> Vec<RecordedExecution> {
        std::thread::sleep(RECORDING_PAUSE);
        self.executions.try_iter().collect()
    }

    /// Ends the recording.
    pub(super) fn finish(self) -> Result<(), String> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().map_err(|_| String::from("the recording failed"))?
    }
}

fn read(
    connection: &mut Connection,
    is_over: &AtomicBool,
    executions: &mpsc::Sender<RecordedExecution>,
) -> Result<(), String> {
    while !is_over.load(Ordering::Acquire) {
        match connection.line(Instant::now() + RECORDING_PAUSE)? {
            ReceivedLine::Line(text) => {
                if let TrafficLine::Execution(execution) = TrafficLine::parse(&text)? {
                    let _ = executions.send(execution);
                }
            }
            ReceivedLine::Nothing => {}
            ReceivedLine::End => break,
        }
    }
    Ok(())
}

/// Calls an endpoint that returns a document or nothing.
fn call(target: &Target, method: &str, path: &str, body: &str) -> Result<Value, String> {
    let address = &target.address;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let reply = runtime.block_on(async {
        let exchange =
            async { HttpConnection::connect(address).await?.exchange(request.as_bytes()).await };
        let timed_out = |_| ErrorKind::TimedOut.to_string();
        tokio::time::timeout(LOAD_TIME_MAX, exchange).await.map_err(timed_out)?
    })?;
    let document: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    match reply.status {
        200 => Ok(document),
        status => Err(format!("{status} {}", document["error"].as_str().unwrap_or_default())),
    }
}
