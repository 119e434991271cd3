//! Whole models, from configuration to answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::{
    Backend, Device, ExecutionPolicy, Host, LogLevel, Model, ModelFiles, Placement,
};
use galatea_config::{ConfigDraft, ModelSpec, Support};
use galatea_infer::{
    Code, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest, InferenceResponse,
    InputTensor, PendingRequest, Reply, RequestObserver, RequestTimes, ResponseSender, Status,
};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::IdentityBackend;
use crate::parameters::Parameters;

struct NoFiles;

impl ModelFiles for NoFiles {
    fn model_path(&self) -> &Path {
        Path::new("m")
    }

    fn version(&self) -> i64 {
        3
    }

    fn version_path(&self) -> &Path {
        Path::new("m/3")
    }

    fn resolve(&self, _: &str) -> Result<PathBuf, Status> {
        Err(Status::not_found("no files"))
    }
}

#[derive(Debug, Default)]
struct Books {
    batches: Mutex<Vec<u64>>,
}

impl Host for Books {
    fn batch_executed(&self, batch_size: u64, _: &ExecutionTimes) {
        self.batches.lock().unwrap().push(batch_size);
    }

    fn model_version(&self) -> i64 {
        3
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

impl RequestObserver for Books {
    fn succeeded(&self, _: u32, _: &RequestTimes, _: &ExecutionSummary) {}
    fn failed(&self, _: &RequestTimes, _: FailureReason) {}
}

const INPUT: &str = "name: 'INPUT0' data_type: TYPE_FP32 dims: [ -1 ]";
const OUTPUT: &str = "name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ -1 ]";

fn config(inputs: &[&str], outputs: &[&str], rest: &str) -> String {
    format!(
        "name: 'm' backend: 'identity' max_batch_size: 4
         input [ {{ {} }} ] output [ {{ {} }} ] {rest}",
        inputs.join(" }, { "),
        outputs.join(" }, { ")
    )
}

fn spec(text: &str) -> ModelSpec {
    let draft = ConfigDraft::from_pbtxt("config.pbtxt", text).unwrap();
    draft.finish(&Support::default()).unwrap()
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}")
}

fn load(text: &str, books: &Arc<Books>) -> Result<Box<dyn Model>, Status> {
    IdentityBackend.load(Arc::new(spec(text)), &NoFiles, books.clone())
}

fn cpu() -> Placement {
    Placement {
        name: String::from("m_0_0"),
        device: Device::Cpu,
        host_policy_settings: BTreeMap::new(),
    }
}

fn tensor(name: &str, datatype: DataType, dims: &[i64], data: Vec<u8>) -> InputTensor {
    let shape = Shape::new(dims).unwrap();
    InputTensor { name: name.to_owned(), datatype, shape, data: Buffer::from_vec(data) }
}

/// Executes one batch of a model.
fn execute(
    text: &str,
    requests: Vec<(u32, InferenceRequest)>,
) -> (Vec<InferenceResponse>, Vec<u64>) {
    let (outcomes, batches) = outcomes(text, requests);
    (outcomes.into_iter().map(Result::unwrap).collect(), batches)
}

fn outcomes(
    text: &str,
    requests: Vec<(u32, InferenceRequest)>,
) -> (Vec<Result<InferenceResponse, Status>>, Vec<u64>) {
    let books = Arc::new(Books::default());
    let mut instance = load(text, &books).unwrap().instance(&cpu()).unwrap();
    let (responses, inbox) = mpsc::channel();
    let pending = requests.into_iter().map(|(batch_size, request)| {
        let responses = responses.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            if let Reply::Response { outcome, .. } = reply {
                responses.send(outcome).unwrap();
            }
        }));
        let times = RequestTimes { arrival: Instant::now(), queued: Instant::now() };
        PendingRequest::new(request, sender, batch_size, times, books.clone())
    });
    instance.execute(pending.collect()).unwrap();
    let batches = books.batches.lock().unwrap().clone();
    (inbox.try_iter().collect(), batches)
}

#[test]
fn outputs_are_the_buffers_of_the_inputs() {
    let text = config(
        &["name: 'INPUT1' data_type: TYPE_STRING dims: [ 1 ]", INPUT],
        &["name: 'OUTPUT1' data_type: TYPE_STRING dims: [ 1 ]", OUTPUT],
        "",
    );
    let first = InferenceRequest {
        id: String::from("a"),
        inputs: vec![
            tensor("INPUT1", DataType::Bytes, &[2, 1], vec![1, 0, 0, 0, 7, 0, 0, 0, 0]),
            tensor("INPUT0", DataType::Fp32, &[2, 0], vec![]),
        ],
        ..InferenceRequest::default()
    };
    let second = InferenceRequest { outputs: vec![String::from("OUTPUT1")], ..first.clone() };
    let given = first.inputs[0].data.host().unwrap().as_ptr();
    let (responses, batches) = execute(&text, vec![(2, first), (2, second)]);
    assert_eq!(batches, [4]);
    let names: Vec<Vec<&str>> = responses
        .iter()
        .map(|response| response.outputs.iter().map(|output| &*output.name).collect())
        .collect();
    assert_eq!(names, [vec!["OUTPUT0", "OUTPUT1"], vec!["OUTPUT1"]]);
    let output = &responses[0].outputs[1];
    assert_eq!((output.datatype, output.shape.dims()), (DataType::Bytes, &[2, 1][..]));
    assert_eq!(output.data.host().unwrap().as_ptr(), given);
    assert_eq!((&*responses[0].model_name, responses[0].model_version), ("m", 3));
    assert_eq!(responses[0].id, "a");
}

#[test]
fn what_is_left_out_is_zero() {
    let optional = "name: 'INPUT1' data_type: TYPE_STRING dims: [ -1, 2 ] optional: true";
    let text = config(
        &[INPUT, optional],
        &[OUTPUT, "name: 'OUTPUT1' data_type: TYPE_STRING dims: [ -1, 2 ]"],
        "",
    );
    let request = InferenceRequest {
        inputs: vec![tensor("INPUT0", DataType::Fp32, &[3, 1], vec![0; 12])],
        ..InferenceRequest::default()
    };
    let (responses, _) = execute(&text, vec![(3, request)]);
    let output = &responses[0].outputs[1];
    assert_eq!((output.shape.dims(), output.data.len()), (&[3, 1, 2][..], 24));
}

#[test]
fn more_zeros_than_there_is_memory_are_an_error() {
    let dims = "data_type: TYPE_FP32 dims: [ 288230376151711744 ]";
    let input = format!("name: 'INPUT1' {dims} optional: true");
    let text = config(&[INPUT, &input], &[OUTPUT, &format!("name: 'OUTPUT1' {dims}")], "");
    let request = InferenceRequest {
        inputs: vec![tensor("INPUT0", DataType::Fp32, &[1, 1], vec![0; 4])],
        ..InferenceRequest::default()
    };
    let (outcomes, _) = outcomes(&text, vec![(1, request)]);
    let status = outcomes[0].as_ref().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "there are no 1152921504606846976 bytes for output 'OUTPUT1'");
}

#[test]
fn configurations_that_are_no_identity() {
    let check = |inputs: &[&str], outputs: &[&str], expected: &str| {
        let books = Arc::new(Books::default());
        let Err(status) = load(&config(inputs, outputs, ""), &books) else {
            panic!("this must be refused: {expected}")
        };
        assert_eq!(status.message(), format!("model 'm': {expected}"));
    };
    let second = INPUT.replace('0', "1");
    check(&[INPUT, &second], &[OUTPUT], "model configuration must have equal input/output pairs");
    check(
        &[&INPUT.replace("INPUT0", "X")],
        &[OUTPUT],
        "expected input name to follow INPUT<index> pattern, got 'X'",
    );
    check(
        &[INPUT],
        &[&OUTPUT.replace("OUTPUT0", "X")],
        "expected output name to follow OUTPUT<index> pattern, got 'X'",
    );
    check(
        &[&second],
        &[OUTPUT],
        "expected input and output indices to match, got 'OUTPUT0' without 'INPUT0'",
    );
    check(
        &[INPUT],
        &[&OUTPUT.replace("FP32", "INT8")],
        "expected input and output datatype to match, got TYPE_FP32 and TYPE_INT8",
    );
    check(
        &[INPUT],
        &[&OUTPUT.replace("-1", "2")],
        "expected input and output shape to match, got [-1] and [2]",
    );
}

#[test]
fn delays_need_a_thread() {
    let with = |parameters: &str| spec(&config(&[INPUT], &[OUTPUT], parameters));
    assert_eq!(IdentityBackend.policy(&with("")), ExecutionPolicy::Inline);
    let delay = parameter("execute_delay_ms", "20");
    assert_eq!(IdentityBackend.policy(&with(&delay)), ExecutionPolicy::Blocking);
    let milliseconds = |parameters: &str, instance: u64| {
        Parameters::parse(&with(parameters)).unwrap().delay(instance)
    };
    assert_eq!(milliseconds(&delay, 5), Duration::from_millis(20));
    let multiplied = format!("{delay} {}", parameter("instance_wise_delay_multiplier", "3"));
    assert_eq!(milliseconds(&multiplied, 0), Duration::from_millis(20));
    assert_eq!(milliseconds(&multiplied, 2), Duration::from_millis(120));
}

#[test]
fn parameters_that_are_refused() {
    let check = |key: &str, value: &str, expected: &str| {
        let books = Arc::new(Books::default());
        let text = config(&[INPUT], &[OUTPUT], &parameter(key, value));
        let Err(status) = load(&text, &books) else { panic!("this must be refused: {key}") };
        assert!(status.message().contains(expected), "{status}");
    };
    check("execute_delay_ms", "soon", "'execute_delay_ms' is 'soon'");
    check("creation_delay_sec", "-1", "'creation_delay_sec' is '-1'");
    check("enable_custom_tracing", "true", "'enable_custom_tracing' is not supported");
}

#[test]
fn instances_on_a_gpu_are_refused() {
    let books = Arc::new(Books::default());
    let model = load(&config(&[INPUT], &[OUTPUT], ""), &books).unwrap();
    assert!(model.instance(&Placement { device: Device::Gpu(0), ..cpu() }).is_err());
    assert!(model.instance(&Placement { device: Device::Model, ..cpu() }).is_ok());
}
