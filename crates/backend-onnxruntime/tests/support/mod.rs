//! Helpers for this backend's tests.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod onnx;
pub(crate) mod sequence;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{
    Backend, Device, Instance, LogLevel, Model, ModelFiles, ModelHost, Placement,
};
use galatea_backend_onnxruntime::{BackendOptions, OnnxRuntimeBackend, OrtLibrary};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AdmissionTimes, Code, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, InputTensor, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, Shape};

/// An account without a limit.
pub(crate) fn unlimited() -> Arc<MemoryAccount> {
    Arc::new(MemoryAccount::of_server(Arc::default()))
}

/// The path of ONNX Runtime's library, which these tests require.
pub(crate) fn library_path() -> PathBuf {
    #[allow(clippy::disallowed_methods, reason = "a test has no caller that could pass it in")]
    if let Some(path) = std::env::var_os("GALATEA_TEST_ONNXRUNTIME") {
        return PathBuf::from(path);
    }
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/onnxruntime");
    find_library(&cache).unwrap_or_else(|| {
        panic!(
            "there is no libonnxruntime.so below '{}': get it with `cargo xtask \
             fetch-onnxruntime`, or name another in GALATEA_TEST_ONNXRUNTIME",
            cache.display()
        )
    })
}

fn find_library(folder: &Path) -> Option<PathBuf> {
    let entries: Vec<PathBuf> =
        fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let is_library = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libonnxruntime.so")
    };
    let found = entries.iter().find(is_library).cloned();
    found
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| find_library(path)))
}

/// The library. It is opened only once, because opening it changes the environment, which other
/// threads read.
pub(crate) fn library() -> Arc<OrtLibrary> {
    static LIBRARY: LazyLock<Arc<OrtLibrary>> =
        LazyLock::new(|| OrtLibrary::open(&library_path()).unwrap());
    LIBRARY.clone()
}

/// The library's log lines. All backends in the process share the first backend's log.
pub(crate) static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) fn backend() -> OnnxRuntimeBackend {
    backend_with(&[])
}

/// A backend with these command-line settings.
pub(crate) fn backend_with(config: &[(&str, &str)]) -> OnnxRuntimeBackend {
    try_backend(config).unwrap()
}

pub(crate) fn try_backend(config: &[(&str, &str)]) -> Result<OnnxRuntimeBackend, Status> {
    let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    let backend_config: BTreeMap<String, String> = config.iter().map(own).collect();
    let log = Arc::new(|level: LogLevel, line: &str| {
        LOG.lock().unwrap().push(format!("{level:?} {line}"));
    });
    let options = BackendOptions {
        processors: 2,
        backend_config,
        log,
        devices: Devices::default(),
        account: unlimited(),
    };
    OnnxRuntimeBackend::new(library(), options)
}

/// A temporary version directory.
pub(crate) struct Files {
    root: PathBuf,
    version: PathBuf,
}

impl Files {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("galatea-onnxruntime-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let version = root.join("1");
        for (name, contents) in files {
            let path = version.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        Self { root, version }
    }

    pub(crate) fn model(graph: onnx::Graph) -> Self {
        Self::new(&[("model.onnx", &graph.bytes())])
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

    fn resolve_in_model_directory(&self, name: &str) -> Result<PathBuf, Status> {
        let path = self.root.join(name);
        if path.exists() { Ok(path) } else { Err(Status::not_found("no such file")) }
    }
}

/// Records the statistics that a model reports.
#[derive(Debug, Default)]
pub(crate) struct RecordingHost {
    pub(crate) batches: Mutex<Vec<u64>>,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: Mutex<Vec<FailureReason>>,
    pub(crate) log: Mutex<Vec<String>>,
}

impl ModelHost for RecordingHost {
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes) {
        let readings = times.readings();
        assert!(
            readings.start <= readings.compute_start
                && readings.compute_start <= readings.compute_end
        );
        assert!(readings.compute_end <= readings.end);
        self.batches.lock().unwrap().push(batch_size);
    }

    fn model_version(&self) -> i64 {
        1
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.log.lock().unwrap().push(format!("{level:?} {message}"));
    }
}

impl RequestObserver for RecordingHost {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, _: &AdmissionTimes, reason: FailureReason) {
        self.failed.lock().unwrap().push(reason);
    }
}

/// Parses `text` as the configuration of the model `m`.
pub(crate) fn spec(text: &str) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
    draft.into_validated_spec(&SupportedFeatures::default()).unwrap()
}

pub(crate) fn cpu() -> Placement {
    Placement {
        name: String::from("m_0_0"),
        device: Device::Cpu,
        host_policy_settings: BTreeMap::new(),
    }
}

/// A loaded model with one instance.
pub(crate) struct TestModel {
    pub(crate) instance: Box<dyn Instance>,
    pub(crate) model: Box<dyn Model>,
    pub(crate) host: Arc<RecordingHost>,
}

pub(crate) fn try_load(files: &Files, config: &str) -> Result<TestModel, Status> {
    let host = Arc::new(RecordingHost::default());
    let model = backend().load(Arc::new(spec(config)), files, host.clone())?;
    Ok(TestModel { instance: model.create_instance(&cpu())?, model, host })
}

/// Loads a model. Panics with the error if loading fails.
pub(crate) fn load(graph: onnx::Graph, config: &str) -> TestModel {
    try_load(&Files::model(graph), config).unwrap()
}

impl TestModel {
    /// Executes a batch and returns the results in batch order.
    pub(crate) fn execute(
        &mut self,
        requests: Vec<InferenceRequest>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        execute(self.instance.as_mut(), &self.host, requests)
    }

    /// Executes one request.
    pub(crate) fn execute_one(
        &mut self,
        request: InferenceRequest,
    ) -> Result<InferenceResponse, Status> {
        self.execute(vec![request]).remove(0)
    }
}

pub(crate) fn execute(
    instance: &mut dyn Instance,
    host: &Arc<RecordingHost>,
    requests: Vec<InferenceRequest>,
) -> Vec<Result<InferenceResponse, Status>> {
    let (pending, replies): (Vec<_>, Vec<_>) =
        requests.into_iter().map(|request| pending(request, host)).unzip();
    instance.execute(pending).unwrap();
    replies.iter().map(only_reply).collect()
}

pub(crate) fn pending(
    request: InferenceRequest,
    host: &Arc<RecordingHost>,
) -> (PendingRequest, mpsc::Receiver<Reply>) {
    let (sender, replies) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        let _ = sender.send(reply);
    }));
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    let batch_size = u32::try_from(first.unwrap_or(1)).unwrap().max(1);
    let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
    (PendingRequest::new(request, sender, batch_size, times, host.clone()), replies)
}

pub(crate) fn only_reply(replies: &mpsc::Receiver<Reply>) -> Result<InferenceResponse, Status> {
    let reply = replies.try_recv().expect("the request was answered");
    assert!(reply.is_final());
    assert!(replies.try_recv().is_err());
    match reply {
        Reply::Response { result, .. } => result,
        Reply::Finished => panic!("finished without a response"),
    }
}

/// A request with these inputs.
pub(crate) fn request(inputs: Vec<InputTensor>) -> InferenceRequest {
    InferenceRequest { id: String::from("r"), inputs, ..InferenceRequest::default() }
}

pub(crate) fn tensor(name: &str, datatype: DataType, dims: &[i64], data: Vec<u8>) -> InputTensor {
    let shape = Shape::new(dims).unwrap();
    InputTensor { name: name.to_owned(), datatype, shape, data: Buffer::from_vec(data) }
}

pub(crate) fn int32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// An output's dimensions and bytes.
pub(crate) fn output<'a>(response: &'a InferenceResponse, name: &str) -> (&'a [i64], &'a [u8]) {
    let output = response.outputs.iter().find(|output| *output.name == *name).unwrap();
    (output.shape.dims(), output.data.host_bytes().unwrap())
}

/// The code and message of an error.
pub(crate) fn failure<T>(result: Result<T, Status>) -> (Code, String) {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}
