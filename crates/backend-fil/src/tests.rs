//! Tests models end to end, from the file to the response.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{Backend, Device, LogLevel, Model, ModelFiles, ModelHost, Placement};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_infer::{
    AdmissionTimes, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, InputTensor, PendingRequest, Reply, RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::FilBackend;

/// A model with one tree, which classifies a row as positive if its second feature is at least
/// 0.25.
const BINARY: &str = r#"{"version": [3, 2, 0], "learner": {
    "learner_model_param":
        {"base_score": "5E-1", "num_class": "0", "num_feature": "2", "num_target": "1"},
    "objective": {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}},
    "gradient_booster": {"name": "gbtree", "model": {"tree_info": [0], "trees": [{
        "left_children": [1, -1, -1], "right_children": [2, -1, -1],
        "split_indices": [1, 0, 0], "split_conditions": [0.25, -1.0, 1.0],
        "default_left": [1, 0, 0], "sum_hessian": [4.0, 1.0, 3.0]
    }]}}
}}"#;

/// The input and output of a batching model. `dims` are the output's dimensions.
fn tensors(dims: &str) -> String {
    format!(
        "max_batch_size: 8 backend: 'fil'
         input {{ name: 'input__0' data_type: TYPE_FP32 dims: [ 2 ] }}
         output {{ name: 'output__0' data_type: TYPE_FP32 dims: {dims} }}"
    )
}

fn parameters(values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, value) in values {
        text += &format!("\nparameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}");
    }
    text
}

/// The parameters of a JSON classifier.
const CLASSIFIER: [(&str, &str); 2] = [("model_type", "xgboost_json"), ("is_classifier", "true")];
const PROBABILITIES: [(&str, &str); 3] = [CLASSIFIER[0], CLASSIFIER[1], ("predict_proba", "true")];

fn spec(text: &str) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("m", &[]).unwrap();
    draft
        .into_validated_spec(&SupportedFeatures::default())
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// A version directory with one file.
struct OneFile(PathBuf);

impl OneFile {
    fn new(test: &str, content: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("galatea-fil-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("xgboost.json"), content).unwrap();
        Self(folder)
    }
}

impl Drop for OneFile {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

impl ModelFiles for OneFile {
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
        let path = self.0.join(name);
        let missing = || Status::not_found(format!("there is no '{name}'"));
        if path.exists() { Ok(path) } else { Err(missing()) }
    }
}

#[derive(Debug, Default)]
struct RecordingHost {
    batches: Mutex<Vec<u64>>,
    lines: Mutex<Vec<String>>,
}

impl ModelHost for RecordingHost {
    fn record_batch(&self, batch_size: u64, times: &ExecutionTimes) {
        let readings = times.readings();
        assert!(readings.start <= readings.compute_start && readings.compute_end <= readings.end);
        self.batches.lock().unwrap().push(batch_size);
    }

    fn model_version(&self) -> i64 {
        7
    }

    fn log(&self, _: LogLevel, line: &str) {
        self.lines.lock().unwrap().push(line.to_owned());
    }
}

impl RequestObserver for RecordingHost {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}

    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

fn try_load(
    test: &str,
    config: &str,
    model: &str,
) -> Result<(Box<dyn Model>, Arc<RecordingHost>), Status> {
    let host = Arc::new(RecordingHost::default());
    let files = OneFile::new(test, model);
    let model = FilBackend.load(Arc::new(spec(config)), &files, host.clone())?;
    Ok((model, host))
}

fn request(rows: &[[f32; 2]], outputs: &[&str]) -> InferenceRequest {
    let dims = [i64::try_from(rows.len()).unwrap(), 2];
    let bytes = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let mut request = InferenceRequest::default();
    request.inputs.push(InputTensor {
        name: String::from("input__0"),
        datatype: DataType::Fp32,
        shape: Shape::new(&dims).unwrap(),
        data: Buffer::from_vec(bytes),
    });
    request.outputs = outputs.iter().map(|&name| name.into()).collect();
    request
}

type Responses = Vec<Result<InferenceResponse, Status>>;

/// Executes a batch on a model's only instance.
fn execute(
    model: &dyn Model,
    host: &Arc<RecordingHost>,
    requests: Vec<InferenceRequest>,
) -> Responses {
    let host_policy_settings = BTreeMap::new();
    let at = Placement { name: String::from("m_0_0"), device: Device::Cpu, host_policy_settings };
    let mut instance = model.create_instance(&at).unwrap();
    let (mut batch, mut replies) = (Vec::new(), Vec::new());
    for request in requests {
        let (sender, receiver) = mpsc::channel();
        let sender = ResponseSender::new(Box::new(move |reply: Reply| drop(sender.send(reply))));
        let rows = u32::try_from(request.inputs[0].shape.dims()[0]).unwrap();
        let times = AdmissionTimes { arrival: Instant::now(), queued: Instant::now() };
        batch.push(PendingRequest::new(request, sender, rows, times, host.clone()));
        replies.push(receiver);
    }
    instance.execute(batch).unwrap();
    let response = |receiver: mpsc::Receiver<Reply>| match receiver.try_recv().unwrap() {
        Reply::Response { result, .. } => result,
        Reply::Finished => panic!("finished without a response"),
    };
    replies.into_iter().map(response).collect()
}

/// The name, dimensions and values of each output.
fn outputs(response: &Result<InferenceResponse, Status>) -> Vec<(&str, &[i64], Vec<f32>)> {
    let response = response.as_ref().unwrap();
    let values = |data: &Buffer| {
        let bytes = data.host_bytes().unwrap();
        bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
    };
    let one = |output: &'_ galatea_infer::OutputTensor| values(&output.data);
    response
        .outputs
        .iter()
        .map(|output| (&*output.name, output.shape.dims(), one(output)))
        .collect()
}

#[test]
fn each_request_of_a_batch_gets_its_rows() {
    let config = tensors("[ 1 ]") + &parameters(&CLASSIFIER);
    let (model, host) = try_load("batch", &config, BINARY).unwrap();
    let requests =
        vec![request(&[[9.0, 0.0], [0.0, 1.0]], &[]), request(&[[0.0, 0.25]], &["output__0"])];
    let responses = execute(&*model, &host, requests);
    // Triton omits dimensions of size 1.
    assert_eq!(outputs(&responses[0]), [("output__0", &[2][..], vec![0.0, 1.0])]);
    assert_eq!(outputs(&responses[1]), [("output__0", &[1][..], vec![1.0])]);
    assert_eq!(*host.batches.lock().unwrap(), [3]);
}

#[test]
fn probabilities_have_a_column_for_each_class_if_the_configuration_asks_for_two() {
    let rows = [[0.0, f32::NAN], [0.0, 7.0]];
    let high = 1.0 / (1.0 + (-1.0_f32).exp());
    let low = 1.0 / (1.0 + 1.0_f32.exp());
    for (dims, shape, expected) in [
        ("[ 1 ]", &[2][..], vec![low, high]),
        ("[ 2 ]", &[2, 2], vec![1.0 - low, low, 1.0 - high, high]),
    ] {
        let config = tensors(dims) + &parameters(&PROBABILITIES);
        let (model, host) = try_load("probabilities", &config, BINARY).unwrap();
        let responses = execute(&*model, &host, vec![request(&rows, &[])]);
        let found = outputs(&responses[0]);
        assert_eq!((found[0].0, found[0].1), ("output__0", shape));
        let pairs = found[0].2.iter().zip(&expected);
        assert!(
            pairs.clone().all(|(found, expected)| (found - expected).abs() < 1e-6),
            "{pairs:?}"
        );
    }
}

#[test]
fn contributions_add_up_to_the_sum() {
    let config = tensors("[ 1 ]")
        + "output { name: 'treeshap_output' data_type: TYPE_FP32 dims: [ 3 ] }"
        + &parameters(&CLASSIFIER);
    let (model, host) = try_load("contributions", &config, BINARY).unwrap();
    let both = request(&[[0.0, 0.0]], &[]);
    let one = request(&[[0.0, 1.0]], &["treeshap_output"]);
    let responses = execute(&*model, &host, vec![both, one]);
    // Three of four training rows reached the leaf 1, and one reached the leaf -1, so the expected
    // value is 0.5.
    let expected = ("treeshap_output", &[1, 3][..], vec![0.0, -1.5, 0.5]);
    assert_eq!(outputs(&responses[0])[1], expected);
    assert_eq!(outputs(&responses[1]), [("treeshap_output", &[1, 3][..], vec![0.0, 0.5, 0.5])]);
}

#[test]
fn rows_without_batching_are_the_first_dimension() {
    let config = "backend: 'fil'
         input { name: 'input__0' data_type: TYPE_FP32 dims: [ -1, 2 ] }
         output { name: 'output__0' data_type: TYPE_FP32 dims: [ -1, 1 ] }"
        .to_owned()
        + &parameters(&CLASSIFIER);
    let (model, host) = try_load("unbatched", &config, BINARY).unwrap();
    let responses = execute(&*model, &host, vec![request(&[[0.0, 0.0], [0.0, 1.0]], &[])]);
    assert_eq!(outputs(&responses[0]), [("output__0", &[2][..], vec![0.0, 1.0])]);
}

#[test]
fn a_row_of_another_size_is_refused() {
    let config = tensors("[ 1 ]").replace("dims: [ 2 ]", "dims: [ -1 ]") + &parameters(&CLASSIFIER);
    let (model, host) = try_load("size", &config, BINARY).unwrap();
    let mut wrong = request(&[[0.0, 0.0]], &[]);
    wrong.inputs[0].shape = Shape::new(&[2, 1]).unwrap();
    let status = execute(&*model, &host, vec![wrong]).remove(0).unwrap_err();
    let text = "input 'input__0' has shape [2,1], but the model takes 2 values for each row";
    assert_eq!(status.message(), text);
}

#[test]
fn removed_parameters_are_in_the_log() {
    let config = tensors("[ 1 ]") + &parameters(&[CLASSIFIER[0], ("output_class", "true")]);
    let (_, host) = try_load("removed", &config, BINARY).unwrap();
    let expected = "model 'm': The `output_class` parameter has been removed in 25.09 release. Use \
                    `is_classifier` instead.";
    assert_eq!(*host.lines.lock().unwrap(), [expected]);
}

#[test]
fn what_the_backend_can_not_serve_is_refused_at_load() {
    let check = |config: String, model: &str, expected: &str| {
        let status = try_load("refused", &config, model).map(|_| ()).unwrap_err();
        assert!(status.message().contains(expected), "{}", status.message());
    };
    let classifier = parameters(&CLASSIFIER);
    let of = |text: &str, from: &str, to: &str| text.replace(from, to) + &classifier;
    let good = tensors("[ 1 ]");
    check(good.clone(), BINARY, "Required parameter is_classifier not found in config");
    check(good.clone() + &classifier, "{", "xgboost.json': ");
    check(good.clone() + &parameters(&CLASSIFIER[1..]), BINARY, "unable to find 'xgboost.model'");
    check(of(&good, "input__0", "rows"), BINARY, "takes the input 'input__0', not 'rows'");
    check(of(&good, "output__0", "y"), BINARY, "'output__0' and 'treeshap_output', not 'y'");
    let other = of(&good, "TYPE_FP32 dims: [ 2 ]", "TYPE_FP64 dims: [ 2 ]");
    check(other, BINARY, "'input__0' must have the datatype TYPE_FP32, not TYPE_FP64");
    let wide = of(&good, "dims: [ 2 ]", "dims: [ 3 ]");
    check(wide, BINARY, "'input__0' has 3 values for each row, but the model takes 2");
    let text = "output__0 has 2 values for each row, but the model gives 1";
    check(tensors("[ 2 ]") + &classifier, BINARY, text);
    let explained =
        good + "output { name: 'treeshap_output' data_type: TYPE_FP32 dims: [ 3 ] }" + &classifier;
    let without = BINARY.replace(", \"sum_hessian\": [4.0, 1.0, 3.0]", "");
    check(explained, &without, "Model does not have node statistics.");
}
