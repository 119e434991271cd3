//! Fakes for tests: a backend controlled by the test, files, and requests.
//!
//! Dependent crates access them through the `testing` feature.

#[cfg(test)]
pub(crate) mod sequences;
#[cfg(test)]
mod server;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, FileFingerprint, FileReadLimit, Instance,
    LoadedVersion, LogLevel, Model, ModelFiles, ModelHost, Placement, RefusedBatch,
};
use galatea_config::{ConfigDraft, ModelSpec};
use galatea_infer::{
    AccessPass, ExecutionReadings, ExecutionTimes, InferenceRequest, InferenceResponse,
    InferenceService, InputTensor, OutputTensor, PendingRequest, Reply, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
pub use galatea_stdx::testing::LONG;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::LogSink;

#[cfg(test)]
pub(crate) use self::server::{Failure, ServerSetup, TestServer, send, serve};

/// The model used by most tests, with one FP32 input and output of any length.
pub const ECHO: &str = r#"
    name: "echo" backend: "fake" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"#;

/// An instance's execution of a batch.
pub type FakeExecution = dyn Fn(&[PendingRequest]) -> Result<(), Status> + Send + Sync;

/// Log lines with their levels.
#[derive(Clone, Debug, Default)]
pub struct CapturedLog(Arc<Mutex<Vec<(LogLevel, String)>>>);

impl CapturedLog {
    /// Creates a log, along with the lines written to it.
    pub fn record() -> (LogSink, Self) {
        let lines = Self::default();
        let written = lines.clone();
        let log = LogSink::new(move |level, _, line| {
            written.0.lock().unwrap().push((level, line.to_string()));
        });
        (log, lines)
    }

    /// Discards the lines so far.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// The lines of this level, in order.
    pub fn of_level(&self, level: LogLevel) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|(one, _)| *one == level).map(|(_, line)| line.clone()).collect()
    }
}

/// A backend that replies to each request with its own input. The test decides what an instance
/// does before that.
pub struct FakeBackend {
    /// The execution policy.
    pub policy: ExecutionPolicy,
    /// The action that an instance performs before it replies.
    pub act: Arc<FakeExecution>,
    /// The executed batch sizes, in order.
    pub batches: Arc<Mutex<Vec<u32>>>,
    /// The backend's fingerprint.
    pub fingerprint: Option<BackendFingerprint>,
}

impl FakeBackend {
    /// Creates a backend that only replies.
    pub fn new(policy: ExecutionPolicy) -> Self {
        Self::with_action(policy, |_| Ok(()))
    }

    /// A backend that performs this action on each batch before it replies.
    pub fn with_action(
        policy: ExecutionPolicy,
        act: impl Fn(&[PendingRequest]) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        Self { policy, act: Arc::new(act), batches: Arc::default(), fingerprint: None }
    }

    /// A backend whose batches wait until the test releases each of them. The receiver announces
    /// each batch, and the sender releases one.
    pub fn gated() -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (entered, entries) = mpsc::channel();
        let (release, releases) = mpsc::channel();
        let releases = Mutex::new(releases);
        let backend = Self::with_action(ExecutionPolicy::Blocking, move |_| {
            let _ = entered.send(());
            let _ = releases.lock().unwrap().recv_timeout(LONG);
            Ok(())
        });
        (backend, entries, release)
    }
}

impl Backend for FakeBackend {
    fn execution_policy(&self, _spec: &ModelSpec) -> ExecutionPolicy {
        self.policy
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        _files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        if spec.parameters.contains_key("refuse_load") {
            return Err(Status::invalid_argument("refused as configured"));
        }
        let model = FakeModel { spec, host, act: self.act.clone(), batches: self.batches.clone() };
        Ok(Box::new(model))
    }

    fn fingerprint(&self, _: &LoadedVersion<'_>) -> Option<BackendFingerprint> {
        self.fingerprint.clone()
    }
}

#[derive(Clone)]
struct FakeModel {
    spec: Arc<ModelSpec>,
    host: Arc<dyn ModelHost>,
    act: Arc<FakeExecution>,
    batches: Arc<Mutex<Vec<u32>>>,
}

impl Model for FakeModel {
    fn create_instance(&self, _at: &Placement) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for FakeModel {
    fn execute(&mut self, requests: Vec<PendingRequest>) -> Result<(), RefusedBatch> {
        let now = Instant::now();
        let times = ExecutionTimes::from(ExecutionReadings {
            start: now,
            compute_start: now,
            compute_end: now,
            end: now,
        });
        let batch_size: u32 = requests.iter().map(PendingRequest::batch_size).sum();
        self.batches.lock().unwrap().push(batch_size);
        if let Err(status) = (self.act)(&requests) {
            return Err(RefusedBatch { requests, status });
        }
        self.host.record_batch(u64::from(batch_size), &times);
        for pending in requests {
            let input = &pending.request().inputs[0];
            let response = InferenceResponse {
                model_name: Arc::from(self.spec.name.as_str()),
                model_version: self.host.model_version(),
                id: pending.request().id.clone(),
                parameters: Default::default(),
                outputs: vec![OutputTensor {
                    name: Arc::from("OUT"),
                    datatype: input.datatype,
                    shape: input.shape.clone(),
                    data: input.data.clone(),
                }],
            };
            pending.complete(Ok(response), &times);
        }
        Ok(())
    }
}

/// A version's files, in memory.
#[derive(Default)]
pub struct FakeModelFiles {
    /// The version number.
    pub version: i64,
    /// Initial-state files, by name.
    pub initial_states: Vec<(&'static str, Vec<u8>)>,
    /// Warmup data files, by name.
    pub warmup: Vec<(&'static str, Vec<u8>)>,
    /// Files next to the version directories, by name.
    pub in_model_directory: Vec<(&'static str, Vec<u8>)>,
    /// The files' fingerprints.
    pub marks: Option<Vec<FileFingerprint>>,
}

impl FakeModelFiles {
    fn read(
        files: &[(&'static str, Vec<u8>)],
        name: &str,
        size: FileReadLimit,
    ) -> Result<Vec<u8>, Status> {
        let found = files.iter().find(|(known, _)| *known == name);
        let (_, bytes) = found.ok_or_else(|| Status::not_found(format!("no file '{name}'")))?;
        match size {
            FileReadLimit::Beginning(expected) => {
                Ok(bytes.iter().copied().take(usize::try_from(expected).unwrap()).collect())
            }
            FileReadLimit::AtMost(_) => Ok(bytes.clone()),
        }
    }
}

impl ModelFiles for FakeModelFiles {
    fn model_path(&self) -> &Path {
        Path::new("")
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn version_path(&self) -> &Path {
        Path::new("")
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found(format!("no file '{name}'")))
    }

    fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        self.marks.clone()
    }

    fn read_in_model_directory(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        Self::read(&self.in_model_directory, name, size)
    }

    fn read_initial_state(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        Self::read(&self.initial_states, name, size)
    }

    fn read_warmup(&self, name: &str, size: FileReadLimit) -> Result<Vec<u8>, Status> {
        Self::read(&self.warmup, name, size)
    }
}

/// A configuration, with its name and backend resolved.
pub fn resolved_draft(text: &str) -> ConfigDraft {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    let name = String::from(draft.name());
    draft.resolve_name_and_backend(&name, &[]).unwrap();
    draft
}

/// A request to [`ECHO`] with zeros of this shape.
pub fn echo_request(dims: &[i64]) -> InferenceRequest {
    let shape = Shape::new(dims).unwrap();
    let bytes = usize::try_from(shape.byte_size(DataType::Fp32).unwrap()).unwrap();
    InferenceRequest {
        model_name: String::from("echo"),
        inputs: vec![InputTensor {
            name: String::from("IN"),
            datatype: DataType::Fp32,
            shape,
            data: Buffer::from_vec(vec![0; bytes]),
        }],
        ..InferenceRequest::default()
    }
}

/// Receives the final reply to a request.
pub type ReplyReceiver = mpsc::Receiver<Result<InferenceResponse, Status>>;

/// Sends a request, and returns the inbox that receives its reply.
pub fn send_request(service: &dyn InferenceService, request: InferenceRequest) -> ReplyReceiver {
    let (replies, inbox) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        if let Reply::Response { result, .. } = reply {
            let _ = replies.send(result);
        }
    }));
    service.infer(AccessPass::in_process(), Box::new(request), sender);
    inbox
}
