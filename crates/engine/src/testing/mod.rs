//! Backends under the test's control, and requests to them.

pub(crate) mod sequences;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{
    Backend, BackendFingerprint, ExecutionPolicy, ExpectedFileSize, FileFingerprint, Host,
    Instance, LoadedVersion, Model, ModelFiles, Placement, RefusedBatch, ResponseCache,
};
use galatea_config::{ConfigDraft, ModelSpec, Support};
use galatea_infer::{
    ExecutionTimes, InferenceRequest, InferenceResponse, InferenceService, InputTensor,
    LoadParameters, OutputTensor, PendingRequest, Reply, ResponseSender, Status,
};
use galatea_repository::{ListedModel, Lookup, Scan, ScanProblem};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::timer::Timer;
use crate::{
    Catalog, CatalogModel, ControlMode, HostPolicies, LoadFailure, LogSink, ModelDefinition,
    Namespaces, RateLimit, Server, ServerOptions,
};

/// The model that most tests use: one FP32 input and output of any length.
pub(crate) const ECHO: &str = r#"
    name: "echo" backend: "fake" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"#;

/// What an instance does with a batch.
type Act = dyn Fn(&[PendingRequest]) -> Result<(), Status> + Send + Sync;

/// Answers each request with its own input; what it does before is the
/// test's to say.
pub(crate) struct FakeBackend {
    pub(crate) policy: ExecutionPolicy,
    pub(crate) act: Arc<Act>,
    /// The batch sizes executed, in order.
    pub(crate) batches: Arc<Mutex<Vec<u32>>>,
    pub(crate) fingerprint: Option<BackendFingerprint>,
}

impl FakeBackend {
    pub(crate) fn new(policy: ExecutionPolicy) -> Self {
        Self::acting(policy, |_| Ok(()))
    }

    pub(crate) fn acting(
        policy: ExecutionPolicy,
        act: impl Fn(&[PendingRequest]) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        Self { policy, act: Arc::new(act), batches: Arc::default(), fingerprint: None }
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
        host: Arc<dyn Host>,
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
    host: Arc<dyn Host>,
    act: Arc<Act>,
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
        let times = ExecutionTimes { start: now, compute_start: now, compute_end: now, end: now };
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
                parameters: Vec::new(),
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

/// The files of a version that needs none, but for those that are given.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) version: i64,
    pub(crate) initial_states: Vec<(&'static str, Vec<u8>)>,
    pub(crate) warmup: Vec<(&'static str, Vec<u8>)>,
    pub(crate) beside_versions: Vec<(&'static str, Vec<u8>)>,
    pub(crate) marks: Option<Vec<FileFingerprint>>,
}

impl Files {
    fn read(
        files: &[(&'static str, Vec<u8>)],
        name: &str,
        size: ExpectedFileSize,
    ) -> Result<Vec<u8>, Status> {
        let found = files.iter().find(|(known, _)| *known == name);
        let (_, bytes) = found.ok_or_else(|| Status::not_found(format!("no file '{name}'")))?;
        let length = u64::try_from(bytes.len()).unwrap();
        match size {
            ExpectedFileSize::Exactly(expected) if length != expected => {
                Err(Status::invalid_argument(format!(
                    "file '{name}' has {length} bytes, but {expected} are expected"
                )))
            }
            ExpectedFileSize::Exactly(_) | ExpectedFileSize::AtMost(_) => Ok(bytes.clone()),
        }
    }
}

impl ModelFiles for Files {
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

    fn read_beside_versions(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        Self::read(&self.beside_versions, name, size)
    }

    fn read_initial_state(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        Self::read(&self.initial_states, name, size)
    }

    fn read_warmup(&self, name: &str, size: ExpectedFileSize) -> Result<Vec<u8>, Status> {
        Self::read(&self.warmup, name, size)
    }
}

pub(crate) fn draft(text: &str) -> ConfigDraft {
    let mut draft = ConfigDraft::from_pbtxt("config.pbtxt", text).unwrap();
    let name = String::from(draft.name());
    draft.resolve_identity(&name, &[]).unwrap();
    draft
}

/// A repository that lists one model.
struct OneModel {
    name: String,
}

impl Catalog for OneModel {
    fn names(&self) -> Vec<ListedModel> {
        vec![ListedModel { namespace: None, name: self.name.clone(), is_duplicate: false }]
    }

    fn scan(&self) -> Scan<CatalogModel> {
        let (path, reason) = (String::new(), String::new());
        Scan { problems: vec![ScanProblem::Repository { path, reason }], ..Scan::default() }
    }

    fn find(&self, _: &str, _: LoadParameters) -> Lookup<CatalogModel> {
        Lookup::Missing
    }
}

/// A server to be.
pub(crate) struct Setup {
    text: String,
    backend: Arc<dyn Backend>,
    files: Vec<Files>,
    hold_until_queued: u32,
    hold_until_backlogged: u32,
    load_retries: u32,
    log: LogSink,
    cache: Option<Arc<dyn ResponseCache>>,
    has_timer: bool,
    host_policies: HostPolicies,
    rate_limit: RateLimit,
}

impl Setup {
    pub(crate) fn new(text: impl Into<String>, backend: impl Backend + 'static) -> Self {
        Self {
            text: text.into(),
            backend: Arc::new(backend),
            files: vec![Files { version: 1, ..Files::default() }],
            hold_until_queued: 0,
            hold_until_backlogged: 0,
            load_retries: 0,
            log: LogSink::new(|_, _, _| {}),
            cache: None,
            has_timer: true,
            host_policies: HostPolicies::default(),
            rate_limit: RateLimit::Off,
        }
    }

    /// Nothing happens because time has passed.
    pub(crate) fn without_timer(mut self) -> Self {
        self.has_timer = false;
        self
    }

    pub(crate) fn files(mut self, files: Vec<Files>) -> Self {
        self.files = files;
        self
    }

    pub(crate) fn hold(mut self, until_queued: u32, until_backlogged: u32) -> Self {
        self.hold_until_queued = until_queued;
        self.hold_until_backlogged = until_backlogged;
        self
    }

    pub(crate) fn load_retries(mut self, retries: u32) -> Self {
        self.load_retries = retries;
        self
    }

    pub(crate) fn cache(mut self, cache: Arc<dyn ResponseCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    pub(crate) fn host_policies(mut self, policies: HostPolicies) -> Self {
        self.host_policies = policies;
        self
    }

    pub(crate) fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = limit;
        self
    }

    pub(crate) fn log(mut self, log: LogSink) -> Self {
        self.log = log;
        self
    }

    /// The server with its one model.
    pub(crate) fn load(self) -> (Arc<Server>, Vec<LoadFailure>) {
        let draft = draft(&self.text);
        let timer = if self.has_timer { Timer::start().unwrap() } else { Timer::stopped() };
        let options = ServerOptions {
            name: String::from("triton"),
            version: String::from("0"),
            strict_readiness: true,
            hold_until_queued: self.hold_until_queued,
            hold_until_backlogged: self.hold_until_backlogged,
            catalog: Arc::new(OneModel { name: String::from(draft.name()) }),
            control: ControlMode::None,
            namespaces: Namespaces::None,
            load_threads: 4,
            load_retries: self.load_retries,
            cache: self.cache,
            host_policies: self.host_policies,
            rate_limit: self.rate_limit,
            log: self.log,
        };
        let server = Server::with_timer(options, timer).unwrap();
        let files = self.files.into_iter().map(|files| Arc::new(files) as Arc<dyn ModelFiles>);
        let failures = server.load(vec![ModelDefinition {
            namespace: None,
            name: String::from(draft.name()),
            draft,
            backend: self.backend,
            versions: files.collect(),
            auto_complete: true,
            support: Support::default(),
            agents: None,
        }]);
        (Arc::new(server), failures)
    }

    /// The server with its one model, which loads.
    pub(crate) fn serve(self) -> Arc<Server> {
        let (server, failures) = self.load();
        assert!(failures.is_empty(), "{failures:?}");
        server
    }
}

/// A server with one model in these versions.
pub(crate) fn serve(
    text: &str,
    backend: FakeBackend,
    versions: &[i64],
    hold_until_queued: u32,
) -> (Arc<Server>, Vec<LoadFailure>) {
    let files = versions.iter().map(|&version| Files { version, ..Files::default() });
    Setup::new(text, backend).files(files.collect()).hold(hold_until_queued, 0).load()
}

/// A request to [`ECHO`] with this shape and as many zeros as it needs.
pub(crate) fn request(dims: &[i64]) -> InferenceRequest {
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

/// The final reply to one request, when it comes.
pub(crate) type Inbox = mpsc::Receiver<Result<InferenceResponse, Status>>;

/// Sends a request and returns where its reply will arrive.
pub(crate) fn send(server: &Server, request: InferenceRequest) -> Inbox {
    let (replies, inbox) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        if let Reply::Response { result, .. } = reply {
            let _ = replies.send(result);
        }
    }));
    server.infer(request, sender);
    inbox
}
