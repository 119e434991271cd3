//! Composing models that the test controls, and requests to an ensemble of these models.

mod decoupled;
mod endings;
mod flow;
mod gates;
mod inline;
mod shapes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use galatea_backend::{
    Backend, ComposingModels, Device, Instance, LogLevel, ModelFiles, ModelHost, Placement,
};
use galatea_config::{ComposingModel, ModelSpec, SupportedFeatures, validate_ensemble};
use galatea_infer::{
    AccessPass, AdmissionTimes, CancelToken, ExecutionSummary, ExecutionTimes, FailureReason,
    InferenceRequest, InferenceResponse, InferenceService, InputTensor, OutputTensor, Parameter,
    PendingRequest, Reply, RequestObserver, ResponseSender, Status, api,
};
use galatea_pbtxt::parse_config_draft;
use galatea_stdx::testing::LONG;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::EnsembleBackend;

/// A request that a composing model has not completed yet.
pub(super) struct ModelRequest {
    pub(super) request: InferenceRequest,
    pub(super) sender: ResponseSender,
}

/// Completes requests to a composing model immediately.
type Handler = dyn Fn(InferenceRequest, ResponseSender) + Send + Sync;

/// The composing models. They keep their requests until the test completes them.
#[derive(Default)]
pub(super) struct Models {
    specs: BTreeMap<String, Arc<ModelSpec>>,
    pub(super) pending: Mutex<Vec<ModelRequest>>,
    handlers: Mutex<BTreeMap<String, Arc<Handler>>>,
}

impl InferenceService for Models {
    fn infer(
        &self,
        _: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        sender: ResponseSender,
    ) {
        let handler = self.handlers.lock().unwrap().get(&request.model_name).cloned();
        match handler {
            Some(handle) => handle(*request, sender),
            None => self.pending.lock().unwrap().push(ModelRequest { request: *request, sender }),
        }
    }
}

impl ComposingModels for Models {
    fn spec(&self, name: &str, _: Option<i64>) -> Option<Arc<ModelSpec>> {
        self.specs.get(name).cloned()
    }
}

/// Records the ensemble's statistics and log.
#[derive(Default)]
pub(super) struct RecordingHost {
    models: Arc<Models>,
    pub(super) batches: Mutex<Vec<(u64, [Duration; 3])>>,
    pub(super) successes: Mutex<Vec<ExecutionSummary>>,
    pub(super) failures: Mutex<Vec<FailureReason>>,
    pub(super) log: Mutex<Vec<String>>,
}

impl std::fmt::Debug for RecordingHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordingHost")
    }
}

impl ModelHost for RecordingHost {
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes) {
        let durations = [times.input_time(), times.infer_time(), times.output_time()];
        self.batches.lock().unwrap().push((batch_size, durations));
    }

    fn model_version(&self) -> i64 {
        7
    }

    fn composing_models(&self) -> Option<Arc<dyn ComposingModels>> {
        Some(self.models.clone())
    }

    fn log(&self, _: LogLevel, message: &str) {
        self.log.lock().unwrap().push(message.to_owned());
    }
}

impl RequestObserver for RecordingHost {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, execution: &ExecutionSummary) {
        self.successes.lock().unwrap().push(*execution);
    }

    fn failed(&self, _: &AdmissionTimes, reason: FailureReason) {
        self.failures.lock().unwrap().push(reason);
    }
}

struct NoFiles;

impl ModelFiles for NoFiles {
    fn model_path(&self) -> &Path {
        Path::new("E")
    }

    fn version(&self) -> i64 {
        7
    }

    fn version_path(&self) -> &Path {
        Path::new("E/7")
    }

    fn resolve(&self, _: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found("no files"))
    }
}

fn spec(text: &str) -> ModelSpec {
    let draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft
        .into_validated_spec(&SupportedFeatures::default())
        .unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// Tensors, written as `NAME` for any size, `NAME:DIMS`, or `NAME:DIMS=>DIMS` for a reshape.
/// Optional tensors have a trailing `?`. All tensors have the type INT32.
fn tensors(side: &str, text: &str) -> String {
    let tensor = |text: &str| {
        let (text, optional) = match text.strip_suffix('?') {
            Some(text) => (text, "optional: true"),
            None => (text, ""),
        };
        let (name, dims) = text.split_once(':').unwrap_or((text, "-1"));
        let (dims, reshape) = match dims.split_once("=>") {
            Some((dims, shape)) => (dims, format!("reshape {{ shape: [{shape}] }}")),
            None => (dims, String::new()),
        };
        format!(
            "{side} {{ name: '{name}' data_type: TYPE_INT32 dims: [{dims}] {reshape} {optional} \
             }}\n"
        )
    };
    text.split_whitespace().map(tensor).collect()
}

/// A model, written as `name batch inputs > outputs`. A `*` after the name makes the model
/// decoupled.
fn model(text: &str) -> (String, Arc<ModelSpec>) {
    let (head, outputs) = text.split_once(" > ").unwrap();
    let (name, rest) = head.split_once(' ').unwrap();
    let (batch, inputs) = rest.split_once(' ').unwrap();
    let decoupled = name.ends_with('*');
    let name = name.trim_end_matches('*');
    let text = format!(
        "name: '{name}' backend: 'fake' max_batch_size: {batch} {} {} \
         model_transaction_policy {{ decoupled: {decoupled} }}",
        tensors("input", inputs),
        tensors("output", outputs)
    );
    (name.to_owned(), Arc::new(spec(&text)))
}

/// A step, written as `MODEL IN=tensor … > OUT=tensor …`.
fn step(text: &str) -> String {
    let map = |field: &str, text: &str| -> String {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| format!("{field} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let (inputs, outputs) = text.split_once(" > ").unwrap();
    let (model, inputs) = inputs.split_once(' ').unwrap();
    let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
    format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }}\n")
}

/// An ensemble and its models.
pub(super) struct TestEnsemble {
    pub(super) models: Arc<Models>,
    pub(super) host: Arc<RecordingHost>,
    instance: Mutex<Box<dyn Instance>>,
    batches: bool,
    _backend: EnsembleBackend,
}

impl TestEnsemble {
    /// Creates an ensemble. `head` is the ensemble without its steps, written as a model, and
    /// `limit` is `max_inflight_requests`.
    pub(super) fn new(head: &str, models: &[&str], steps: &[&str], limit: u32) -> Self {
        let (head, outputs) = head.split_once(" > ").unwrap();
        let (batch, inputs) = head.split_once(' ').unwrap();
        let steps: String = steps.iter().map(|text| step(text)).collect();
        let mut ensemble = spec(&format!(
            "name: 'E' platform: 'ensemble' max_batch_size: {batch} {} {} \
             ensemble_scheduling {{ {steps} max_inflight_requests: {limit} }}",
            tensors("input", inputs),
            tensors("output", outputs)
        ));
        let specs: BTreeMap<_, _> = models.iter().map(|text| model(text)).collect();
        validate_ensemble("E", &mut ensemble, |name| {
            let spec = specs.get(name)?.clone();
            Some(ComposingModel { id: name.to_owned(), spec })
        })
        .unwrap_or_else(|errors| panic!("{errors}"));
        let models = Arc::new(Models { specs, ..Models::default() });
        let host = Arc::new(RecordingHost { models: models.clone(), ..RecordingHost::default() });
        let backend = EnsembleBackend::new().unwrap();
        let batches = ensemble.max_batch_size > 0;
        let model = backend.load(Arc::new(ensemble), &NoFiles, host.clone()).unwrap();
        let at = Placement {
            name: String::from("E_0"),
            device: Device::Model,
            host_policy_settings: BTreeMap::new(),
        };
        let instance = Mutex::new(model.create_instance(&at).unwrap());
        Self { models, host, instance, batches, _backend: backend }
    }

    /// Sends a request with inputs written as `NAME=NUMBER`.
    pub(super) fn send(&self, inputs: &str) -> Client {
        self.send_request(request(inputs, self.batches))
    }

    pub(super) fn send_request(&self, request: InferenceRequest) -> Client {
        let (replies, inbox) = channel();
        let cancel = request.cancel.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            let _ = replies.send(reply);
        }));
        let dims = request.inputs.first().map(|input| input.shape.dims()[0]);
        let size = if self.batches { u32::try_from(dims.unwrap_or(1)).unwrap() } else { 1 };
        let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
        let pending = PendingRequest::new(request, sender, size, times, self.host.clone());
        self.instance.lock().unwrap().execute(vec![pending]).unwrap();
        Client { inbox, cancel }
    }

    /// Makes a model complete its requests immediately.
    pub(super) fn set_handler(
        &self,
        model: &str,
        handler: impl Fn(InferenceRequest, ResponseSender) + Send + Sync + 'static,
    ) {
        self.models.handlers.lock().unwrap().insert(model.to_owned(), Arc::new(handler));
    }

    /// The requests that composing models have not completed yet, in order, as `model(IN=1,…)`.
    pub(super) fn pending_requests(&self) -> Vec<String> {
        self.models
            .pending
            .lock()
            .unwrap()
            .iter()
            .map(|open| describe_request(&open.request))
            .collect()
    }

    /// The oldest open request to the model.
    pub(super) fn take(&self, model: &str) -> ModelRequest {
        let mut pending = self.models.pending.lock().unwrap();
        let index = pending.iter().position(|open| open.request.model_name == model);
        let index = index.unwrap_or_else(|| panic!("there is no request to {model}"));
        pending.remove(index)
    }

    /// Completes the oldest open request to the model.
    pub(super) fn complete(&self, model: &str, outputs: &str) {
        self.take(model).complete(outputs);
    }

    pub(super) fn failures(&self) -> Vec<FailureReason> {
        std::mem::take(&mut *self.host.failures.lock().unwrap())
    }

    pub(super) fn successes(&self) -> usize {
        self.host.successes.lock().unwrap().len()
    }
}

fn describe_request(request: &InferenceRequest) -> String {
    let inputs: Vec<String> =
        request.inputs.iter().map(|one| format!("{}={}", one.name, number(&one.data))).collect();
    format!("{}({})", request.model_name, inputs.join(","))
}

impl ModelRequest {
    pub(super) fn complete(self, outputs: &str) {
        let response = response(&self.request, outputs);
        self.sender.send_final(Ok(response));
    }

    /// Sends one response of several.
    pub(super) fn respond(&mut self, outputs: &str) {
        let response = response(&self.request, outputs);
        self.sender.send(Ok(response));
    }

    pub(super) fn complete_with(self, outputs: &str, parameters: Vec<Parameter>) {
        let response =
            InferenceResponse { parameters: parameters.into(), ..response(&self.request, outputs) };
        self.sender.send_final(Ok(response));
    }
}

/// The caller of the ensemble.
pub(super) struct Client {
    inbox: Receiver<Reply>,
    pub(super) cancel: CancelToken,
}

impl Client {
    /// The replies so far, written as `OUT=1,… end`.
    pub(super) fn replies(&self) -> Vec<String> {
        self.inbox.try_iter().map(|reply| describe_reply(&reply)).collect()
    }

    /// Waits for all replies.
    pub(super) fn wait(&self) -> Vec<String> {
        let mut replies = Vec::new();
        loop {
            let reply = self.inbox.recv_timeout(LONG).unwrap();
            replies.push(describe_reply(&reply));
            if reply.is_final() {
                return replies;
            }
        }
    }

    /// The last response, which must have arrived.
    pub(super) fn response(&self) -> InferenceResponse {
        match self.inbox.try_recv().unwrap() {
            Reply::Response { result, .. } => result.unwrap(),
            Reply::Finished => panic!("there is no response"),
        }
    }
}

fn describe_reply(reply: &Reply) -> String {
    let end = if reply.is_final() { " end" } else { "" };
    match reply {
        Reply::Finished => String::from("end"),
        Reply::Response { result: Err(status), .. } => {
            format!("{:?}: {}{end}", status.code(), status.message())
        }
        Reply::Response { result: Ok(response), .. } => {
            let outputs: Vec<String> = response
                .outputs
                .iter()
                .map(|output| format!("{}={}", output.name, number(&output.data)))
                .collect();
            format!("{}{end}", outputs.join(","))
        }
    }
}

/// A single number as a tensor's contents.
pub(super) fn contents(number: i32) -> Buffer {
    Buffer::from_vec(number.to_le_bytes().to_vec())
}

pub(super) fn number(data: &Buffer) -> i32 {
    i32::from_le_bytes(data.host_bytes().unwrap()[..4].try_into().unwrap())
}

fn one(batches: bool) -> Shape {
    Shape::new(if batches { &[1, 1] } else { &[1] }).unwrap()
}

/// Pairs of a name and a number.
fn pairs(text: &str) -> Vec<(String, i32)> {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, number)| (name.to_owned(), number.parse().unwrap())).collect()
}

pub(super) fn request(inputs: &str, batches: bool) -> InferenceRequest {
    let input = |(name, number)| InputTensor {
        name,
        datatype: DataType::Int32,
        shape: one(batches),
        data: contents(number),
    };
    InferenceRequest {
        id: String::from("r"),
        model_name: String::from("E"),
        inputs: pairs(inputs).into_iter().map(input).collect(),
        cancel: CancelToken::new(),
        ..InferenceRequest::default()
    }
}

/// A response whose outputs have the shape of the request's first input.
pub(super) fn response(request: &InferenceRequest, outputs: &str) -> InferenceResponse {
    let shape = request.inputs.first().map_or_else(|| one(false), |input| input.shape.clone());
    let output = |(name, number): (String, i32)| OutputTensor {
        name: Arc::from(name),
        datatype: DataType::Int32,
        shape: shape.clone(),
        data: contents(number),
    };
    InferenceResponse {
        model_name: Arc::from(request.model_name.as_str()),
        model_version: 1,
        id: request.id.clone(),
        parameters: Default::default(),
        outputs: pairs(outputs).into_iter().map(output).collect(),
    }
}
