//! A service that echoes and a control that knows one model.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use galatea_infer::{
    InferenceRequest, InferenceResponse, InferenceService, LoadParameters, ModelConfigDocument,
    ModelMetadata, ModelState, ModelStatistics, OutputTensor, Pass, RepositoryEntry,
    ResponseSender, ServerControl, ServerMetadata, Status, TensorMetadata, api,
};
use galatea_tensor::DataType;

/// A request to which the test responds.
pub(crate) type HeldRequest = (InferenceRequest, ResponseSender);

/// Echoes inputs as outputs, or misbehaves, depending on the name of the model.
pub(crate) struct FakeService {
    pub(crate) requests: AtomicU32,
    held: Mutex<mpsc::Sender<HeldRequest>>,
}

impl FakeService {
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<HeldRequest>) {
        let (sender, receiver) = mpsc::channel();
        (Arc::new(Self { requests: AtomicU32::new(0), held: Mutex::new(sender) }), receiver)
    }
}

impl InferenceService for FakeService {
    fn infer(
        &self,
        _: Pass<api::Inference>,
        request: InferenceRequest,
        mut sender: ResponseSender,
    ) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match request.model_name.as_str() {
            "echo" => sender.send_final(Ok(echo(request))),
            "hold" => self.held.lock().unwrap().send((request, sender)).unwrap(),
            "panic" => panic!("on purpose"),
            "drop" => drop(sender),
            "twice" => {
                sender.send(Ok(echo(request.clone())));
                sender.send_final(Ok(echo(request)));
            }
            name => sender.fail(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> Status {
    Status::not_found(format!("Request for unknown model: '{name}' is not found"))
}

pub(crate) fn echo(request: InferenceRequest) -> InferenceResponse {
    if let Some(slot) = &request.classes {
        slot.set(&Arc::default());
    }
    InferenceResponse {
        model_name: request.model_name.into(),
        model_version: request.model_version.unwrap_or(1),
        id: request.id,
        parameters: request.parameters,
        outputs: request
            .inputs
            .into_iter()
            .map(|input| OutputTensor {
                name: input.name.into(),
                datatype: input.datatype,
                shape: input.shape,
                data: input.data,
            })
            .collect(),
    }
}

/// Knows the model `echo` in version 1.
#[derive(Default)]
pub(crate) struct FakeControl {
    pub(crate) unready: AtomicBool,
    pub(crate) changes: Mutex<Vec<String>>,
    /// If there is a barrier, statistics of all models wait for the test at it, twice.
    pub(crate) held_statistics: Mutex<Option<Arc<Barrier>>>,
    /// How often the statistics of all models were read.
    pub(crate) statistics_reads: AtomicU32,
}

impl FakeControl {
    fn find(&self, name: &str, version: Option<i64>) -> Result<(), Status> {
        match (name, version) {
            ("echo", None | Some(1)) => Ok(()),
            ("echo", Some(version)) => {
                Err(Status::unavailable(format!("'echo' version {version} is not at ready state")))
            }
            _ => Err(unknown(name)),
        }
    }
}

impl ServerControl for FakeControl {
    fn live(&self, _: Pass<api::Health>) -> bool {
        true
    }

    fn ready(&self, _: Pass<api::Health>) -> Result<bool, Status> {
        Ok(!self.unready.load(Ordering::SeqCst))
    }

    fn model_ready(
        &self,
        _: Pass<api::Health>,
        name: &str,
        version: Option<i64>,
    ) -> Result<bool, Status> {
        Ok(self.find(name, version).is_ok() && !self.unready.load(Ordering::SeqCst))
    }

    fn server_metadata(&self, _: Pass<api::Metadata>) -> ServerMetadata {
        ServerMetadata { name: "n".into(), version: "v".into(), extensions: vec!["statistics"] }
    }

    fn model_metadata(
        &self,
        _: Pass<api::Metadata>,
        name: &str,
        version: Option<i64>,
    ) -> Result<ModelMetadata, Status> {
        self.find(name, version)?;
        Ok(ModelMetadata {
            name: name.into(),
            versions: vec![1],
            platform: "identity".into(),
            inputs: vec![TensorMetadata {
                name: "x".into(),
                datatype: DataType::Uint8,
                shape: vec![-1],
            }],
            outputs: Vec::new(),
        })
    }

    fn model_config(
        &self,
        _: Pass<api::ModelConfig>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        self.find(name, version)?;
        // A configuration with the one input "x", TYPE_UINT8, dims [-1].
        let input = b"\x0a\x01x\x10\x02\x22\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        let protobuf = [&b"\x2a\x11"[..], input].concat();
        Ok(Arc::new(ModelConfigDocument { json: r#"{"name":"echo"}"#.into(), protobuf }))
    }

    fn config_for_inference(
        &self,
        _: Pass<api::Inference>,
        name: &str,
        version: Option<i64>,
    ) -> Result<Arc<ModelConfigDocument>, Status> {
        self.model_config(Pass::in_process(), name, version)
    }

    /// Every name selects a behaviour of the service, except that of the missing model.
    fn is_decoupled(
        &self,
        _: Pass<api::Inference>,
        name: &str,
        _version: Option<i64>,
    ) -> Result<bool, Status> {
        match name {
            "missing" => Err(Status::not_found("Request for unknown model: 'missing'")),
            _ => Ok(name == "decoupled"),
        }
    }

    fn scheduler_status(
        &self,
        _: Pass<api::Statistics>,
        name: &str,
        version: Option<i64>,
    ) -> Result<String, Status> {
        self.find(name, version).map(|()| String::from(r#"{"queues":[]}"#))
    }

    fn statistics(
        &self,
        _: Pass<api::Statistics>,
        name: Option<&str>,
        _version: Option<i64>,
    ) -> Result<Vec<ModelStatistics>, Status> {
        if name.is_some_and(|name| name != "echo") {
            return Err(Status::invalid_argument("requested model is not available"));
        }
        if name.is_none() {
            self.statistics_reads.fetch_add(1, Ordering::SeqCst);
            let held = self.held_statistics.lock().unwrap().take();
            held.iter().for_each(|barrier| {
                barrier.wait();
                barrier.wait();
            });
        }
        Ok(vec![ModelStatistics { name: "echo".into(), version: 1, ..ModelStatistics::default() }])
    }

    fn repository_index(
        &self,
        _: Pass<api::ModelRepository>,
        only_ready: bool,
    ) -> Result<Vec<RepositoryEntry>, Status> {
        let entry = |name: &str, state| RepositoryEntry {
            name: name.into(),
            version: None,
            state,
            reason: String::new(),
        };
        let mut entries = vec![entry("echo", Some(ModelState::Ready))];
        if !only_ready {
            entries.push(entry("other", None));
        }
        Ok(entries)
    }

    fn load_model(
        &self,
        _: Pass<api::ModelRepository>,
        name: &str,
        parameters: LoadParameters,
    ) -> Result<(), Status> {
        let LoadParameters { config, files } = parameters;
        let with = config.map(|config| format!(" config {config}")).unwrap_or_default();
        let files: String =
            files.iter().map(|(path, content)| format!(" {path} {content:?}")).collect();
        self.changes.lock().unwrap().push(format!("load {name}{with}{files}"));
        if name == "broken" { Err(Status::internal("failed to load 'broken'")) } else { Ok(()) }
    }

    fn unload_model(
        &self,
        _: Pass<api::ModelRepository>,
        name: &str,
        unload_dependents: bool,
    ) -> Result<(), Status> {
        self.changes.lock().unwrap().push(format!("unload {name} {unload_dependents}"));
        Ok(())
    }
}
