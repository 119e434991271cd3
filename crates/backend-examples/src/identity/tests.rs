//! Tests models end to end, from the configuration to the response.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::{Backend, Device, ExecutionPolicy, Model};
use galatea_config::ConfigDraft;
use galatea_infer::{
    AdmissionTimes, Code, CorrelationId, InferenceRequest, InferenceResponse, InputTensor,
    ParameterValue, PendingRequest, Reply, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::identity::delays::Delays;
use crate::identity::{IdentityBackend, InputByteCounter, InputByteCounterFactory};
use crate::testing::{NoFiles, RecordingHost, placement, spec};

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

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}")
}

fn load(text: &str, host: &Arc<RecordingHost>) -> Result<Box<dyn Model>, Status> {
    IdentityBackend::default().load(Arc::new(spec(text)), &NoFiles, host.clone())
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
    let (results, batch_sizes) = execute_to_results(text, requests);
    (results.into_iter().map(Result::unwrap).collect(), batch_sizes)
}

fn execute_to_results(
    text: &str,
    requests: Vec<(u32, InferenceRequest)>,
) -> (Vec<Result<InferenceResponse, Status>>, Vec<u64>) {
    execute_with(&IdentityBackend::default(), text, requests)
}

fn execute_with(
    backend: &IdentityBackend,
    text: &str,
    requests: Vec<(u32, InferenceRequest)>,
) -> (Vec<Result<InferenceResponse, Status>>, Vec<u64>) {
    let host = Arc::<RecordingHost>::default();
    let model = backend.load(Arc::new(spec(text)), &NoFiles, host.clone()).unwrap();
    let mut instance = model.create_instance(&placement(Device::Cpu)).unwrap();
    let (sender, receiver) = mpsc::channel();
    let pending = requests.into_iter().map(|(batch_size, request)| {
        let results = sender.clone();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| {
            if let Reply::Response { result, .. } = reply {
                results.send(result).unwrap();
            }
        }));
        let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
        PendingRequest::new(request, sender, batch_size, times, host.clone())
    });
    instance.execute(pending.collect()).unwrap();
    let batch_sizes = host.batch_sizes.lock().unwrap().clone();
    (receiver.try_iter().collect(), batch_sizes)
}

#[test]
fn outputs_share_the_buffers_of_the_inputs() {
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
    let given = first.inputs[0].data.host_bytes().unwrap().as_ptr();
    let (responses, batch_sizes) = execute(&text, vec![(2, first), (2, second)]);
    assert_eq!(batch_sizes, [4]);
    let names: Vec<Vec<&str>> = responses
        .iter()
        .map(|response| response.outputs.iter().map(|output| &*output.name).collect())
        .collect();
    assert_eq!(names, [vec!["OUTPUT0", "OUTPUT1"], vec!["OUTPUT1"]]);
    let output = &responses[0].outputs[1];
    assert_eq!((output.datatype, output.shape.dims()), (DataType::Bytes, &[2, 1][..]));
    assert_eq!(output.data.host_bytes().unwrap().as_ptr(), given);
    assert_eq!((&*responses[0].model_name, responses[0].model_version), ("m", 3));
    assert_eq!(responses[0].id, "a");
}

/// Adds up the input sizes of all models.
#[derive(Clone, Default)]
struct Sum(Arc<AtomicUsize>);

impl InputByteCounterFactory for Sum {
    fn counter(&self, model: &str, version: i64) -> Result<Arc<dyn InputByteCounter>, Status> {
        assert_eq!((model, version), ("m", 3));
        Ok(Arc::new(self.clone()))
    }
}

impl InputByteCounter for Sum {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn inputs_that_are_repeated_are_counted() {
    let sum = Sum::default();
    let backend = IdentityBackend::with_input_byte_counters(Arc::new(sum.clone()));
    let text = config(
        &[INPUT, "name: 'INPUT1' data_type: TYPE_INT8 dims: [ -1 ]"],
        &[OUTPUT, "name: 'OUTPUT1' data_type: TYPE_INT8 dims: [ -1 ]"],
        "",
    );
    let whole = InferenceRequest {
        inputs: vec![
            tensor("INPUT0", DataType::Fp32, &[1, 3], vec![0; 12]),
            tensor("INPUT1", DataType::Int8, &[1, 5], vec![0; 5]),
        ],
        ..InferenceRequest::default()
    };
    let part = InferenceRequest { outputs: vec![String::from("OUTPUT1")], ..whole.clone() };
    execute_with(&backend, &text, vec![(1, whole), (1, part)]);
    assert_eq!(sum.0.load(Ordering::Relaxed), 12 + 5 + 5);
}

#[test]
fn responses_have_the_example_parameters() {
    let request = InferenceRequest {
        inputs: vec![tensor("INPUT0", DataType::Fp32, &[1, 0], vec![])],
        ..InferenceRequest::default()
    };
    let (responses, _) = execute(&config(&[INPUT], &[OUTPUT], ""), vec![(1, request)]);
    let parameters = responses[0].parameters.iter();
    let found: Vec<_> = parameters.map(|one| (one.name.as_str(), one.value.clone())).collect();
    let expected = [
        ("param0", ParameterValue::String("an example string parameter".to_owned())),
        ("param1", ParameterValue::Int64(42)),
        ("param2", ParameterValue::Bool(false)),
        ("param3", ParameterValue::Double(123.123)),
    ];
    assert_eq!(found, expected);
}

#[test]
fn output_of_an_omitted_optional_input_is_zeros() {
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
fn zeros_beyond_the_available_memory_are_an_error() {
    let dims = "data_type: TYPE_FP32 dims: [ 288230376151711744 ]";
    let input = format!("name: 'INPUT1' {dims} optional: true");
    let text = config(&[INPUT, &input], &[OUTPUT, &format!("name: 'OUTPUT1' {dims}")], "");
    let request = InferenceRequest {
        inputs: vec![tensor("INPUT0", DataType::Fp32, &[1, 1], vec![0; 4])],
        ..InferenceRequest::default()
    };
    let (results, _) = execute_to_results(&text, vec![(1, request)]);
    let status = results[0].as_ref().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "there are no 1152921504606846976 bytes for output 'OUTPUT1'");
}

#[test]
fn configurations_without_matching_pairs_are_refused() {
    let check = |inputs: &[&str], outputs: &[&str], expected: &str| {
        let host = Arc::<RecordingHost>::default();
        let Err(status) = load(&config(inputs, outputs, ""), &host) else {
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
fn models_with_delays_execute_on_a_thread_of_their_own() {
    let with = |parameters: &str| spec(&config(&[INPUT], &[OUTPUT], parameters));
    assert_eq!(IdentityBackend::default().execution_policy(&with("")), ExecutionPolicy::Inline);
    let delay = parameter("execute_delay_ms", "20");
    assert_eq!(
        IdentityBackend::default().execution_policy(&with(&delay)),
        ExecutionPolicy::Blocking
    );
    let milliseconds = |parameters: &str, instance: u64| {
        Delays::parse(&with(parameters)).unwrap().execution(instance)
    };
    assert_eq!(milliseconds(&delay, 5), Duration::from_millis(20));
    let multiplied = format!("{delay} {}", parameter("instance_wise_delay_multiplier", "3"));
    assert_eq!(milliseconds(&multiplied, 0), Duration::from_millis(20));
    assert_eq!(milliseconds(&multiplied, 2), Duration::from_millis(120));
}

#[test]
fn unusable_parameters_are_refused() {
    let check = |key: &str, value: &str, expected: &str| {
        let host = Arc::<RecordingHost>::default();
        let text = config(&[INPUT], &[OUTPUT], &parameter(key, value));
        let Err(status) = load(&text, &host) else { panic!("this must be refused: {key}") };
        assert!(status.message().contains(expected), "{status}");
    };
    check("execute_delay_ms", "soon", "'execute_delay_ms' is 'soon'");
    check("creation_delay_sec", "-1", "'creation_delay_sec' is '-1'");
    let tracing = |key, value| {
        format!("{} {}", parameter("enable_custom_tracing", "true"), parameter(key, value))
    };
    let refused = |rest: &str, expected: &str| {
        let host = Arc::<RecordingHost>::default();
        let Err(status) = load(&config(&[INPUT], &[OUTPUT], rest), &host) else { panic!("{rest}") };
        assert!(status.message().contains(expected), "{status}");
    };
    refused(&tracing("nested_span_count", "x"), "'nested_span_count' is 'x'");
    refused(&tracing("single_activity_frequency", "0"), "must be positive");
}

#[test]
fn a_model_needs_a_configuration() {
    let complete = |draft: &mut ConfigDraft| {
        draft.rename("x.identity");
        IdentityBackend::default().auto_complete_config(draft, &NoFiles)
    };
    let status = complete(&mut ConfigDraft::empty()).unwrap_err();
    let expected = "model configuration is not provided for model 'x.identity'";
    assert_eq!((status.code(), status.message()), (Code::NotFound, expected));
    assert_eq!(complete(&mut parse_config_draft("f", "").unwrap()), Ok(()));
    assert_eq!(complete(&mut ConfigDraft::from_json("f", "{}").unwrap()), Ok(()));
}

#[test]
fn an_instance_may_be_anywhere() {
    let host = Arc::<RecordingHost>::default();
    let model = load(&config(&[INPUT], &[OUTPUT], ""), &host).unwrap();
    assert!(model.create_instance(&placement(Device::Gpu(0))).is_ok());
    assert!(model.create_instance(&placement(Device::Model)).is_ok());
}

#[test]
fn batches_count_as_in_triton() {
    let text = config(&[INPUT], &[OUTPUT], "").replace("max_batch_size: 4", "max_batch_size: 0");
    let one = || InferenceRequest {
        inputs: vec![tensor("INPUT0", DataType::Fp32, &[1], vec![0; 4])],
        ..InferenceRequest::default()
    };
    let (_, batch_sizes) = execute(&text, vec![(1, one()), (1, one())]);
    assert_eq!(batch_sizes, [0], "without a batch dimension");
    let named = InferenceRequest {
        correlation_id: CorrelationId::Text(String::from("x")),
        id: String::from("r"),
        ..one()
    };
    let (results, _) = execute_to_results(&text, vec![(1, named), (1, one())]);
    let status = results[0].as_ref().unwrap_err();
    let expected = "[request id: r] correlation ID in request is not an unsigned int";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    assert!(results[1].is_ok());
}
