//! Tests of the program from outside: its output, its listeners and its exit.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests as well.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use galatea_stdx::testing::wait_until;
use rustix::process::{Pid, Signal, kill_process};

/// A model repository that is removed on drop.
struct Repository(PathBuf);

impl Repository {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("galatea-program-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn model(self, name: &str, config: &str, versions: &[&str]) -> Self {
        let folder = self.0.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("config.pbtxt"), config).unwrap();
        for version in versions {
            std::fs::create_dir(folder.join(version)).unwrap();
        }
        self
    }

    fn identity(self, name: &str, versions: &[&str]) -> Self {
        self.model(name, IDENTITY, versions)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const IDENTITY: &str = r#"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"#;

const BROKEN: &str = r#"backend: "no_such_backend""#;

fn program(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_galatea"));
    command.args(flags).env_remove("TRITON_SERVER_ESCAPE_LOG_MESSAGES");
    command
}

fn run(flags: &[&str]) -> (Output, String, String) {
    let output = program(flags).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (standard, errors) = (text(&output.stdout), text(&output.stderr));
    (output, standard, errors)
}

/// A server on ports chosen by the system.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The server's standard output so far.
    seen: String,
}

impl Server {
    fn start(repository: &Repository, flags: &[&str]) -> Self {
        let mut command = program(&[
            "--http-port=0",
            "--grpc-port=0",
            "--metrics-port=0",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
        ]);
        command.arg("--model-repository").arg(repository.path()).args(flags);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output, seen: String::new() }
    }

    /// Reads until a line contains `text`; returns the rest of that line.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "it ended without '{text}':\n{}", self.seen);
            self.seen.push_str(&line);
            if let Some((_, rest)) = line.split_once(text) {
                return rest.trim().trim_end_matches('"').to_owned();
            }
        }
    }

    fn stop(mut self, signal: Signal) -> (ExitStatus, String) {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(process, signal).unwrap();
        self.output.read_to_string(&mut self.seen).unwrap();
        (self.child.wait().unwrap(), self.seen.clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status code and body of a GET request.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn the_server_starts_serves_and_stops() {
    let repository = Repository::new().identity("one", &["1", "3"]).identity("two", &["7"]);
    let mut server = Server::start(&repository, &[]);
    let grpc = server.wait_for("Started GRPCInferenceService at ");
    let http = server.wait_for("Started HTTPService at ");
    let metrics = server.wait_for("Started Metrics Service at ");
    for row in ["| one   | 3       | READY  |", "| two   | 7       | READY  |"] {
        assert!(server.seen.contains(row), "{}", server.seen);
    }
    assert!(server.seen.contains("| server_id"), "{}", server.seen);
    let backend = "| identity | built in | {\"cmdline\":{\"auto-complete-config\":\"true\",";
    assert!(server.seen.contains(backend), "{}", server.seen);
    assert!(grpc.starts_with("127.0.0.1:") && !grpc.ends_with(":0"), "{grpc}");
    assert_eq!(get(&http, "/v2/health/ready").0, 200);
    let (status, text) = get(&metrics, "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("nv_inference_count{model=\"one\",version=\"3\"} 0"), "{text}");
    let (status, log) = server.stop(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{log}");
    for line in [
        "Signal (15) received.",
        "Waiting for in-flight requests to complete.",
        // Idle models take a moment to end, possibly the whole second until the next poll.
        "Timeout 30: Found ",
        ": Found 0 model versions that have in-flight inferences",
        "successfully unloaded 'two' version 7",
    ] {
        assert!(log.contains(line), "no '{line}' in\n{log}");
    }
}

#[test]
fn an_interrupt_stops_the_server() {
    let repository = Repository::new();
    let flags = ["--exit-timeout-secs=0", "--backend-config=tensorflow,version=2"];
    let mut server = Server::start(&repository, &flags);
    server.wait_for("Started Metrics Service at ");
    let (status, log) = server.stop(Signal::INT);
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("Signal (2) received."), "{log}");
}

#[test]
fn flags_without_effect_are_in_the_log_once() {
    // Without a repository, the program ends after the notes about its flags.
    let (output, _, errors) = run(&[
        "--grpc-http2-max-pings-without-data=4",
        "--grpc-http2-max-pings-without-data=5",
        "--backend-config=identity,version=2",
        "--metrics-config=colour=red",
    ]);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for line in [
        "'--grpc-http2-max-pings-without-data' has no effect",
        "--backend-config=identity,version=2 changes nothing",
        "the metrics setting 'colour=red' is unknown and changes nothing",
    ] {
        assert_eq!(errors.matches(line).count(), 1, "'{line}' in\n{errors}");
    }
}

#[test]
fn a_request_that_takes_too_long_does_not_delay_the_stop() {
    let slow = "parameters { key: \"execute_delay_ms\" value { string_value: \"600000\" } }\n";
    let repository = Repository::new().model("slow", &format!("{IDENTITY}{slow}"), &["1"]);
    let mut server = Server::start(&repository, &["--exit-timeout-secs=1"]);
    let http = server.wait_for("Started HTTPService at ");
    let metrics = server.wait_for("Started Metrics Service at ");
    let body = r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":[1]}]}"#;
    let head = "POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length";
    // The first request executes and the second waits, as the metrics show.
    let clients = [(); 2].map(|()| {
        let mut stream = TcpStream::connect(&http).unwrap();
        write!(stream, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    });
    let waiting = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"} 1";
    wait_until("a request waits", || get(&metrics, "/metrics").1.contains(waiting));
    let (status, log) = server.stop(Signal::TERM);
    drop(clients);
    assert_eq!(status.code(), Some(1), "{log}");
    for line in [
        "Timeout 1: Found 2 HTTP service connections",
        "Timeout 0: Found 1 model versions that have in-flight inferences",
    ] {
        assert!(log.contains(line), "no '{line}' in\n{log}");
    }
}

#[test]
fn a_client_that_never_finishes_does_not_make_the_stop_fail() {
    let repository = Repository::new().identity("m", &["1"]);
    let mut server = Server::start(&repository, &["--exit-timeout-secs=1"]);
    let http = server.wait_for("Started HTTPService at ");
    server.wait_for("Started Metrics Service at ");
    let mut stream = TcpStream::connect(&http).unwrap();
    let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99";
    write!(stream, "{head}\r\nExpect: 100-continue\r\n\r\n").unwrap();
    // The server asks the client to continue, and the client doesn't.
    let mut told = [0; 12];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"HTTP/1.1 100");
    let (status, log) = server.stop(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("Timeout 1: Found 1 HTTP service connections"), "{log}");
    drop(stream);
}

#[test]
fn endpoints_that_are_off_are_not_started() {
    let repository = Repository::new();
    let flags = ["--allow-grpc=false", "--allow-metrics=false"];
    let mut server = Server::start(&repository, &flags);
    server.wait_for("Started HTTPService at ");
    let (status, log) = server.stop(Signal::TERM);
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains("GRPC") && !log.contains("Metrics Service"), "{log}");
}

#[test]
fn a_model_that_fails_ends_the_start_unless_told_otherwise() {
    let repository = Repository::new().identity("good", &["1"]).model("bad", BROKEN, &["1"]);
    let path = repository.path().display().to_string();
    let (output, standard, errors) = run(&["--model-repository", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(standard.contains("| bad "), "{standard}");
    assert!(errors.contains("no_such_backend"), "{errors}");
    assert!(errors.ends_with("error: creating server: Internal - failed to load all models\n"));

    let mut server =
        Server::start(&repository, &["--exit-on-error=false", "--strict-readiness=false"]);
    let http = server.wait_for("Started HTTPService at ");
    assert_eq!(get(&http, "/v2/models/good/ready").0, 200);
    assert_eq!(get(&http, "/v2/health/ready").0, 200);
    assert_eq!(server.stop(Signal::TERM).0.code(), Some(0));
}

#[test]
fn a_model_that_fails_is_tried_again() {
    let repository = Repository::new().model("bad", BROKEN, &["1"]);
    let path = repository.path().display().to_string();
    let (output, _, errors) = run(&["--model-repository", &path, "--model-load-retry-count=2"]);
    assert_eq!(output.status.code(), Some(1));
    let again = "'bad' version 1 failed to load and is tried again: unable to find backend";
    assert_eq!(errors.matches(again).count(), 2, "{errors}");
}

#[test]
fn the_verbose_log_shows_requests() {
    let repository = Repository::new().identity("m", &["1"]);
    let mut server = Server::start(&repository, &["--log-verbose=2"]);
    let http = server.wait_for("Started HTTPService at ");
    assert!(server.seen.contains("'m' version 1: configuration {"), "{}", server.seen);
    let mut stream = TcpStream::connect(&http).unwrap();
    let request = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 13";
    write!(stream, "{request}\r\n\r\n{{\"inputs\":[]}}").unwrap();
    server.wait_for("a request is refused: [request id: <id_unknown>] expected 1 inputs");
    server.wait_for("HTTP POST /v2/models/m/infer: 400 Bad Request {");
    let asked =
        r#"{"id":"q","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}]}"#;
    let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length";
    write!(stream, "{head}: {}\r\n\r\n{asked}", asked.len()).unwrap();
    server.wait_for("model 'm' version 1 is asked: inputs INPUT0 INT32 [1,1]");
    server.wait_for("[request id: q] model 'm' version 1 answers after ");
    server.stop(Signal::TERM);
}

#[test]
// row: MR-02
fn a_model_without_a_version_to_serve_fails() {
    let policy = "version_policy { specific { versions: [ 9 ] } }\n";
    let repository = Repository::new().model("m", &format!("{policy}{IDENTITY}"), &["1", "2"]);
    let path = repository.path().display().to_string();
    let (output, _, errors) = run(&["--model-repository", &path]);
    assert_eq!(output.status.code(), Some(1));
    for text in [
        "version 9 is specified for model 'm', but the version directory is not present",
        "at least one version must be available under the version policy of model 'm'",
    ] {
        assert!(errors.contains(text), "no '{text}' in\n{errors}");
    }
}

#[test]
fn a_wrong_command_line_is_explained_in_a_paragraph() {
    let (output, standard, errors) = run(&["--no-such-flag=1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(standard, "");
    assert!(errors.starts_with("Bad option: \"--no-such-flag\".\nunrecognized option\n"));
    assert!(errors.lines().count() < 12 && errors.contains("galatea --help"), "{errors}");
}

#[test]
fn help_and_version_end_with_success() {
    let (output, standard, errors) = run(&["--help"]);
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    assert!(standard.contains("  --model-repository <string>\n"), "{standard}");
    let (output, standard, _) = run(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let first = standard.lines().next();
    assert_eq!(first, Some(concat!("galatea ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_server_needs_a_usable_repository() {
    let check = |flags: &[&str], expected: &str| {
        let (output, _, errors) = run(flags);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(errors, format!("error: creating server: {expected}\n"));
    };
    check(&[], "Invalid argument - --model-repository must be specified");
    check(&["--model-repository=gs://"], "Internal - No bucket name found in path: gs://");
    check(
        &["--model-repository=/no/such/folder"],
        "Internal - failed to stat file /no/such/folder",
    );
}

#[test]
fn a_port_that_is_taken_ends_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let repository = Repository::new();
    let (output, _, errors) = run(&[
        "--model-repository",
        &repository.path().display().to_string(),
        "--http-address=127.0.0.1",
        &format!("--http-port={port}"),
        "--grpc-port=0",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let reason = format!("Unavailable - Socket '127.0.0.1:{port}' already in use ");
    let line = format!("] \"failed to start HTTP service: {reason}\"\n");
    assert!(errors.ends_with(&line), "{errors}");
}

#[test]
fn the_log_goes_to_the_chosen_file() {
    let repository = Repository::new().identity("m", &["1"]);
    let log = repository.path().with_extension("log");
    let mut server = Server::start(
        &repository,
        &["--log-format=ISO8601", "--log-file", &log.display().to_string()],
    );
    wait_until("the server has started", || {
        assert!(server.child.try_wait().unwrap().is_none(), "it ended");
        std::fs::read_to_string(&log).unwrap_or_default().contains("Started Metrics")
    });
    let (status, printed) = server.stop(Signal::TERM);
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(printed, "Signal (15) received.\n");
    let first = text.lines().next().unwrap();
    assert_eq!(first.as_bytes().get(10).copied(), Some(b'T'), "{first}");
    assert_eq!(first.as_bytes().get(19).copied(), Some(b'Z'), "{first}");
}
