//! Helpers for this backend's tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{
    Backend, Device, Instance, LogLevel, Model, ModelFiles, ModelHost, Placement,
};
use galatea_backend_pytorch::{Library, PyTorchBackend, TorchOptions, TorchWorkers};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use serde_json::Value;

pub(crate) mod goldens;

/// The library; `None` if the variable that names it is not set, which skips the test.
pub(crate) fn library() -> Option<Arc<Library>> {
    static LIBRARY: LazyLock<Option<Arc<Library>>> = LazyLock::new(|| {
        let path = variable("GALATEA_TEST_TORCH")?;
        Some(Library::open(&path).unwrap())
    });
    LIBRARY.clone()
}

/// The path in an environment variable.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "a test has no caller that could pass it in")]
    let value = std::env::var_os(name);
    #[allow(clippy::print_stderr, reason = "a skipped test says why")]
    if value.is_none() {
        eprintln!("skipped: {name} is not set");
    }
    value.map(PathBuf::from)
}

pub(crate) fn backend(library: Arc<Library>) -> PyTorchBackend {
    let options = TorchOptions {
        processors: 2,
        temporary_folder: std::env::temp_dir(),
        cache_folder: Some(std::env::temp_dir().join("galatea-pytorch-test-cache")),
        devices: Devices::default(),
        account: Arc::new(MemoryAccount::of_server(Arc::default())),
        workers: Arc::new(NoWorkers),
    };
    PyTorchBackend::new(library, options)
}

/// Refuses every job, and shows it.
struct NoWorkers;

impl TorchWorkers for NoWorkers {
    fn describe(&self, _: &ModelSpec, _: &dyn ModelFiles, job: Value) -> Result<Value, Status> {
        Err(Status::unavailable(job.to_string()))
    }

    fn load(
        &self,
        _: Arc<ModelSpec>,
        _: &dyn ModelFiles,
        _: Arc<dyn ModelHost>,
        job: Value,
    ) -> Result<Box<dyn Model>, Status> {
        Err(Status::unavailable(job.to_string()))
    }
}

/// A temporary version directory.
pub(crate) struct Files {
    root: PathBuf,
    version: PathBuf,
}

impl Files {
    /// A version with links to these files, under these names.
    pub(crate) fn new(files: &[(&str, &Path)]) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("galatea-torch-test-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(folder);
        let version = root.join("1");
        fs::create_dir_all(&version).unwrap();
        for (name, path) in files {
            std::os::unix::fs::symlink(path, version.join(name)).unwrap();
        }
        Self { root, version }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl ModelFiles for Files {
    fn model_path(&self) -> &Path {
        &self.root
    }

    fn version(&self) -> i64 {
        1
    }

    fn version_path(&self) -> &Path {
        &self.version
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        let path = self.version.join(name);
        if path.exists() { Ok(path) } else { Err(Status::not_found("no such file")) }
    }
}

/// Keeps the warnings.
#[derive(Default)]
struct TestHost(Mutex<Vec<String>>);

impl ModelHost for TestHost {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}

    fn model_version(&self) -> i64 {
        1
    }

    fn log(&self, level: LogLevel, message: &str) {
        if level == LogLevel::Warning {
            self.0.lock().unwrap().push(message.to_owned());
        }
    }
}

#[derive(Debug)]
struct QuietObserver;

impl RequestObserver for QuietObserver {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

/// A loaded model with its instances.
pub(crate) struct TestModel {
    pub(crate) instances: Vec<Box<dyn Instance>>,
    pub(crate) warnings: Vec<String>,
    pub(crate) spec: Arc<ModelSpec>,
    _model: Box<dyn Model>,
}

pub(crate) fn spec(text: &str, file: &str) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &[file.to_owned()]).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
}

/// Loads `model.pt2` or `model.pt` with a configuration.
pub(crate) fn try_load(
    backend: &dyn Backend,
    files: &Files,
    spec: ModelSpec,
) -> Result<TestModel, Status> {
    let (spec, host) = (Arc::new(spec), Arc::new(TestHost::default()));
    let model = backend.load(spec.clone(), files, host.clone())?;
    let count = spec.instance_groups.iter().map(|group| group.count).sum::<u32>();
    let instance = |number: u32| {
        let name = format!("m_0_{number}");
        let host_policy_settings = BTreeMap::new();
        let at = Placement { name, device: Device::Cpu, host_policy_settings };
        model.create_instance(&at)
    };
    let instances = (0..count).map(instance).collect::<Result<_, _>>()?;
    let warnings = host.0.lock().unwrap().clone();
    Ok(TestModel { instances, warnings, spec, _model: model })
}

impl TestModel {
    /// Executes a batch on the first instance and returns the results in batch order.
    pub(crate) fn execute(
        &mut self,
        requests: Vec<InferenceRequest>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        execute(&mut *self.instances[0], self.spec.max_batch_size > 0, requests)
    }
}

/// Executes a batch and returns the results in batch order.
pub(crate) fn execute(
    instance: &mut dyn Instance,
    is_batched: bool,
    requests: Vec<InferenceRequest>,
) -> Vec<Result<InferenceResponse, Status>> {
    let pending = |request| pending(request, is_batched);
    let (pending, replies): (Vec<_>, Vec<_>) = requests.into_iter().map(pending).unzip();
    instance.execute(pending).unwrap();
    replies.iter().map(only_reply).collect()
}

fn pending(request: InferenceRequest, is_batched: bool) -> (PendingRequest, mpsc::Receiver<Reply>) {
    let (sender, replies) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| drop(sender.send(reply))));
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    let first = first.filter(|_| is_batched).unwrap_or(1);
    let batch_size = u32::try_from(first).unwrap().max(1);
    let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
    (PendingRequest::new(request, sender, batch_size, times, Arc::new(QuietObserver)), replies)
}

fn only_reply(replies: &mpsc::Receiver<Reply>) -> Result<InferenceResponse, Status> {
    match replies.try_recv().expect("the request was answered") {
        Reply::Response { result, .. } => result,
        Reply::Finished => panic!("finished without a response"),
    }
}
