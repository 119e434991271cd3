//! Helpers for this backend's tests.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Instant;

use galatea_backend::{
    Backend, Device, Instance, LogLevel, Model, ModelFiles, ModelHost, Placement,
};
use galatea_backend_tensorflow::{BackendOptions, GraphRuntimes, Library, TensorFlowBackend};
use galatea_config::{ConfigDraft, SupportedFeatures};
use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, InputTensor, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_runtime::RuntimeOnDemand;
use galatea_tensor::{Buffer, DataType, Shape};

/// The library; `None` if the variable that names it is not set, which skips the tests.
pub(crate) fn library() -> Option<Arc<Library>> {
    static LIBRARY: LazyLock<Option<Arc<Library>>> = LazyLock::new(|| {
        #[allow(clippy::disallowed_methods, reason = "a test has no caller that could pass it in")]
        let path = std::env::var_os("GALATEA_TEST_TENSORFLOW")?;
        Some(Library::open(Path::new(&path)).unwrap())
    });
    LIBRARY.clone()
}

/// A model of `tests/tensorflow/models`.
struct SuiteModel(PathBuf);

impl SuiteModel {
    fn new(name: &str) -> Self {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorflow/models");
        Self(models.join(name))
    }
}

impl ModelFiles for SuiteModel {
    fn model_path(&self) -> &Path {
        &self.0
    }

    fn version(&self) -> i64 {
        1
    }

    fn version_path(&self) -> &Path {
        &self.0
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
        let path = self.0.join("1").join(name);
        if path.exists() { Ok(path) } else { Err(Status::not_found("no such file")) }
    }
}

struct QuietHost;

impl ModelHost for QuietHost {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}

    fn model_version(&self) -> i64 {
        1
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

#[derive(Debug)]
struct QuietObserver;

impl RequestObserver for QuietObserver {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

/// A loaded model with one instance.
pub(crate) struct TestModel {
    instance: Box<dyn Instance>,
    _model: Box<dyn Model>,
}

/// Loads a model of the suite with a completed configuration.
pub(crate) fn load(library: &Arc<Library>, name: &str) -> TestModel {
    let (opened, path) = (library.clone(), library.file().path().to_path_buf());
    let runtimes = GraphRuntimes {
        tensorflow: Arc::new(RuntimeOnDemand::new(
            move || Ok(path.clone()),
            move |_| Ok(opened.clone()),
        )),
        openvino: RuntimeOnDemand::new(
            || Err(Status::not_found("not needed")),
            |_| Err(Status::not_found("not needed")),
        ),
    };
    let options = BackendOptions {
        temporary_folder: std::env::temp_dir(),
        backend_config: BTreeMap::new(),
        log: Arc::new(|_, _| ()),
        devices: Devices::default(),
        account: Arc::new(MemoryAccount::of_server(Arc::default())),
    };
    let backend = TensorFlowBackend::new(runtimes, options).unwrap();
    let files = SuiteModel::new(name);
    let config = fs::read_to_string(files.0.join("config.pbtxt"));
    let mut draft = match config {
        Ok(text) => parse_config_draft("config.pbtxt", &text).unwrap(),
        Err(_) => ConfigDraft::empty(),
    };
    draft.resolve_name_and_backend(name, &["model.savedmodel".to_owned()]).unwrap();
    backend.auto_complete_config(&mut draft, &files).unwrap();
    let spec = draft.into_validated_spec(&SupportedFeatures::default()).unwrap();
    let model = backend.load(Arc::new(spec), &files, Arc::new(QuietHost)).unwrap();
    let host_policy_settings = BTreeMap::new();
    let at = Placement { name: String::from("m_0_0"), device: Device::Cpu, host_policy_settings };
    TestModel { instance: model.create_instance(&at).unwrap(), _model: model }
}

impl TestModel {
    /// Executes a request with one input.
    pub(crate) fn execute(
        &mut self,
        name: &str,
        datatype: DataType,
        dims: &[i64],
        data: Buffer,
    ) -> InferenceResponse {
        self.execute_batch(name, vec![(datatype, dims.to_vec(), data)]).remove(0)
    }

    /// Executes a request with one input, which may fail.
    pub(crate) fn try_execute(
        &mut self,
        name: &str,
        datatype: DataType,
        dims: &[i64],
        data: Buffer,
    ) -> Result<InferenceResponse, Status> {
        self.results(name, vec![(datatype, dims.to_vec(), data)]).remove(0)
    }

    /// Executes a batch of requests with one input each.
    pub(crate) fn execute_batch(
        &mut self,
        name: &str,
        tensors: Vec<(DataType, Vec<i64>, Buffer)>,
    ) -> Vec<InferenceResponse> {
        self.results(name, tensors).into_iter().map(Result::unwrap).collect()
    }

    fn results(
        &mut self,
        name: &str,
        tensors: Vec<(DataType, Vec<i64>, Buffer)>,
    ) -> Vec<Result<InferenceResponse, Status>> {
        let requests = tensors.into_iter().map(|(datatype, dims, data)| {
            let shape = Shape::new(&dims).unwrap();
            let input = InputTensor { name: name.to_owned(), datatype, shape, data };
            pending(InferenceRequest { inputs: vec![input], ..InferenceRequest::default() })
        });
        let (pending, replies): (Vec<_>, Vec<_>) = requests.unzip();
        self.instance.execute(pending).unwrap();
        replies.iter().map(only_reply).collect()
    }
}

fn pending(request: InferenceRequest) -> (PendingRequest, mpsc::Receiver<Reply>) {
    let (sender, replies) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| drop(sender.send(reply))));
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    let batch_size = u32::try_from(first.unwrap_or(1)).unwrap().max(1);
    let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
    (PendingRequest::new(request, sender, batch_size, times, Arc::new(QuietObserver)), replies)
}

fn only_reply(replies: &mpsc::Receiver<Reply>) -> Result<InferenceResponse, Status> {
    match replies.try_recv().expect("the request was answered") {
        Reply::Response { result, .. } => result,
        Reply::Finished => panic!("finished without a response"),
    }
}
