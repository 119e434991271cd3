//! Tests models end to end, with a network that is a Rust function.

mod network;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use galatea_backend::{Backend, Device, Instance, LogLevel, ModelFiles, ModelHost, Placement};
use galatea_config::{ModelSpec, SupportedFeatures};
use galatea_infer::{
    AdmissionTimes, CancelToken, ExecutionSummary, ExecutionTimes, FailureReason, InferenceRequest,
    InferenceResponse, InputTensor, Parameter, ParameterValue, PendingRequest, Reply,
    RequestObserver, ResponseSender, Status,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};

use self::network::{FakeNetworks, NetworkShape};
use crate::{NetworkBackend, TextBackend};

/// A tokenizer of words, whose numbers are small.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4}}}"#;
const PROMPTS: &str = r#"{"prompts": {"query": "d "}}"#;
const CLASSIFIER: &str = r#"{"architectures": ["XForSequenceClassification"],
    "id2label": {"0": "no", "1": "yes"}}"#;
const CROSS_ENCODER: &str = r#"{"architectures": ["XForSequenceClassification"],
    "id2label": {"0": "LABEL_0"}, "sbert_ce_default_activation_function":
    "torch.nn.modules.linear.Identity"}"#;

/// A version directory.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("galatea-text-{}-{test}", std::process::id()));
        let all = [("tokenizer.json", TOKENIZER), ("onnx/model.onnx", "")];
        for (name, content) in all.iter().chain(files) {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

impl ModelFiles for Folder {
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
        if path.exists() { Ok(path) } else { Err(Status::not_found(format!("no '{name}'"))) }
    }
}

#[derive(Debug, Default)]
struct Quiet;

impl ModelHost for Quiet {
    fn record_batch(&self, _: u64, _: &ExecutionTimes) {}
    fn model_version(&self) -> i64 {
        7
    }
    fn log(&self, _: LogLevel, _: &str) {}
}

impl RequestObserver for Quiet {
    fn succeeded(&self, _: u32, _: &AdmissionTimes, _: &ExecutionSummary) {}
    fn failed(&self, _: &AdmissionTimes, _: FailureReason) {}
}

/// A model with its network's record of runs.
struct Fixture {
    spec: ModelSpec,
    instance: Box<dyn Instance>,
    /// The padded shape of each run.
    runs: Arc<Mutex<Vec<Vec<i64>>>>,
}

fn load(folder: &Folder, config: &str, shape: NetworkShape) -> Result<Fixture, String> {
    let runs = Arc::default();
    let networks = FakeNetworks { shape, runs: Arc::clone(&runs) };
    let network = NetworkBackend {
        name: String::from("fake"),
        backend: Arc::new(networks),
        support: SupportedFeatures::default(),
    };
    let backend = TextBackend::new(network);
    let text = format!("backend: 'text' {config}");
    let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
    draft.resolve_name_and_backend("m", &[]).unwrap();
    let message = |status: Status| status.message().to_owned();
    backend.auto_complete_config(&mut draft, folder).map_err(message)?;
    let spec = draft.into_validated_spec(&SupportedFeatures::default());
    let spec = spec.map_err(|errors| errors.to_string())?;
    let model = backend.load(Arc::new(spec.clone()), folder, Arc::new(Quiet)).map_err(message)?;
    let placement = Placement {
        name: String::from("m_0_0"),
        device: Device::Cpu,
        host_policy_settings: Default::default(),
    };
    let instance = model.create_instance(&placement).map_err(message)?;
    Ok(Fixture { spec, instance, runs })
}

/// A request with texts in one or two inputs.
struct Texts<'a> {
    inputs: &'a [(&'a str, &'a [&'a [u8]])],
    parameters: &'a [(&'a str, ParameterValue)],
}

type Replies = mpsc::Receiver<Result<InferenceResponse, Status>>;

fn pending(texts: &Texts<'_>) -> (PendingRequest, Replies) {
    cancellable(texts, CancelToken::default())
}

fn cancellable(texts: &Texts<'_>, cancel: CancelToken) -> (PendingRequest, Replies) {
    let mut request = InferenceRequest { cancel, ..InferenceRequest::default() };
    let mut rows = 0;
    for (name, listed) in texts.inputs {
        let mut data = Vec::new();
        listed.iter().for_each(|text| push_bytes_element(&mut data, text).unwrap());
        rows = listed.len();
        request.inputs.push(InputTensor {
            name: (*name).to_owned(),
            datatype: DataType::Bytes,
            shape: Shape::new(&[i64::try_from(rows).unwrap(), 1]).unwrap(),
            data: Buffer::from_vec(data),
        });
    }
    let parameters = texts.parameters.iter();
    request.parameters = parameters
        .map(|(name, value)| Parameter { name: (*name).to_owned(), value: value.clone() })
        .collect();
    let (sent, replies) = mpsc::channel();
    let sender = ResponseSender::new(Box::new(move |reply: Reply| {
        if let Reply::Response { result, .. } = reply {
            sent.send(result).unwrap();
        }
    }));
    let now = Instant::now();
    let times = AdmissionTimes { arrival: now, queued: now };
    let rows = u32::try_from(rows).unwrap();
    (PendingRequest::new(request, sender, rows, times, Arc::new(Quiet)), replies)
}

/// An output of the response, or the error.
fn output(replies: &Replies, name: &str) -> Result<(Vec<i64>, Vec<f32>), String> {
    let reply = replies.try_recv().expect("one reply");
    assert!(replies.try_recv().is_err(), "only one reply");
    let response = reply.map_err(|status| status.message().to_owned())?;
    assert_eq!(response.model_version, 7);
    let output = response.outputs.iter().find(|output| &*output.name == name).unwrap();
    let bytes = output.data.host_bytes().unwrap().as_chunks().0;
    let values = bytes.iter().map(|bytes| match output.datatype {
        DataType::Fp32 => f32::from_le_bytes(*bytes),
        DataType::Int32 => f32::from(i16::try_from(i32::from_le_bytes(*bytes)).unwrap()),
        _ => panic!("another type"),
    });
    Ok((output.shape.dims().to_vec(), values.collect()))
}

impl Fixture {
    /// Executes one request.
    fn infer(&mut self, texts: &Texts<'_>, name: &str) -> Result<(Vec<i64>, Vec<f32>), String> {
        let (request, replies) = pending(texts);
        self.instance.execute(vec![request]).unwrap();
        output(&replies, name)
    }

    fn embed(
        &mut self,
        texts: &[&[u8]],
        parameters: &[(&str, ParameterValue)],
    ) -> Result<(Vec<i64>, Vec<f32>), String> {
        self.infer(&Texts { inputs: &[("text", texts)], parameters }, "embedding")
    }
}

#[test]
fn an_embedding_is_pooled_from_the_tokens_of_its_text_only() {
    let folder = Folder::new("pooled", &[("config.json", "{\"hidden_size\": 2}")]);
    let mut model = load(&folder, "", NetworkShape::PerToken).unwrap();
    assert_eq!((model.spec.max_batch_size, model.spec.outputs[0].dims.clone()), (2048, vec![2]));
    // The vector of a token is its number and the length of the padded row.
    let found = model.embed(&[b"a b", b"d"], &[]).unwrap();
    assert_eq!(found, (vec![2, 2], vec![1.5, 2.0, 4.0, 2.0]));
    let counts = model.infer(
        &Texts { inputs: &[("text", &[b"a b", b"", b"c"])], parameters: &[] },
        "num_input_tokens",
    );
    assert_eq!(counts.unwrap(), (vec![3, 1], vec![2.0, 0.0, 1.0]));
}

#[test]
fn texts_of_all_requests_are_sorted_into_runs() {
    let folder = Folder::new("runs", &[]);
    let config = "parameters { key: 'text_run_tokens' value: { string_value: '120' } }";
    let mut model = load(&folder, config, NetworkShape::PerToken).unwrap();
    let long = "a ".repeat(100);
    let (first, first_replies) =
        pending(&Texts { inputs: &[("text", &[long.as_bytes(), b"a"])], parameters: &[] });
    let (second, second_replies) =
        pending(&Texts { inputs: &[("text", &[b"b b", b"c"])], parameters: &[] });
    model.instance.execute(vec![first, second]).unwrap();
    assert_eq!(*model.runs.lock().unwrap(), [[3, 2], [1, 100]]);
    let first = output(&first_replies, "embedding").unwrap();
    assert_eq!(first, (vec![2, 2], vec![1.0, 100.0, 1.0, 2.0]));
    let second = output(&second_replies, "embedding").unwrap();
    assert_eq!(second, (vec![2, 2], vec![2.0, 2.0, 3.0, 2.0]));
}

#[test]
fn a_failed_run_and_an_invalid_text_affect_only_their_requests() {
    let folder = Folder::new("failed", &[]);
    let config = "parameters { key: 'text_run_tokens' value: { string_value: '10' } }";
    let mut model = load(&folder, config, NetworkShape::PerToken).unwrap();
    let request = |texts: &[&[u8]]| pending(&Texts { inputs: &[("text", texts)], parameters: &[] });
    // The network refuses rows of 13 tokens.
    let (unlucky, unlucky_replies) = request(&["a ".repeat(13).as_bytes(), b"a"]);
    let (binary, binary_replies) = request(&[b"a", b"\xff"]);
    let (good, good_replies) = request(&[b"a"]);
    model.instance.execute(vec![unlucky, binary, good]).unwrap();
    assert_eq!(output(&unlucky_replies, "embedding").unwrap_err(), "13 is unlucky");
    let error = output(&binary_replies, "embedding").unwrap_err();
    assert!(error.starts_with("input 'text': element 1 is not UTF-8"), "{error}");
    assert_eq!(output(&good_replies, "embedding").unwrap(), (vec![1, 2], vec![1.0, 1.0]));
}

#[test]
fn cancelled_requests_are_not_executed() {
    let folder = Folder::new("cancelled", &[]);
    let mut model = load(&folder, "", NetworkShape::PerToken).unwrap();
    let texts = Texts { inputs: &[("text", &[b"a"])], parameters: &[] };
    let (request, replies) = cancellable(&texts, CancelToken::new());
    request.request().cancel.cancel();
    model.instance.execute(vec![request]).unwrap();
    let error = output(&replies, "embedding").unwrap_err();
    assert_eq!(error, "request cancelled before its execution");
    assert!(model.runs.lock().unwrap().is_empty());
}

#[test]
fn requests_have_options() {
    let prompts = ("config_sentence_transformers.json", PROMPTS);
    let folder = Folder::new("options", &[prompts]);
    let config = "parameters { key: 'text_normalize' value: { string_value: 'true' } }
        parameters { key: 'text_max_tokens' value: { string_value: '3' } }";
    let mut model = load(&folder, config, NetworkShape::PerToken).unwrap();
    let text = |value: &str| ParameterValue::String(value.to_owned());
    let (no, yes) = (ParameterValue::Bool(false), ParameterValue::Bool(true));
    let mut check = |parameters: &[(&str, ParameterValue)], expected: Result<&[f32], &str>| {
        let found = model.embed(&[b"c c"], parameters).map(|(_, values)| values);
        assert_eq!(found, expected.map(<[f32]>::to_vec).map_err(str::to_owned));
    };
    let raw = ("normalize", no.clone());
    check(std::slice::from_ref(&raw), Ok(&[3.0, 2.0]));
    check(&[("dimensions", ParameterValue::Int64(1))], Ok(&[1.0]));
    check(&[("dimensions", ParameterValue::Int64(1)), raw.clone()], Ok(&[3.0]));
    check(&[("prompt", text("a ")), ("normalize", no.clone())], Ok(&[7.0 / 3.0, 3.0]));
    check(&[("prompt_name", text("query")), raw.clone()], Ok(&[10.0 / 3.0, 3.0]));
    check(&[("prompt", text("a a ")), raw], Ok(&[5.0 / 3.0, 3.0]));
    let long = [("prompt", text("a a ")), ("truncate", no)];
    check(&long, Err("input 'text', element 0: the text has more than 3 tokens"));
    let long = "a".repeat((1 << 20) + 1);
    for (parameter, expected) in [
        (("dimensions", ParameterValue::Int64(3)), "the value must be a number from 1 to 2"),
        (("dimensions", yes.clone()), "the value must be a number from 1 to 2"),
        (("normalize", text("x")), "the value must be a boolean"),
        (("prompt", yes.clone()), "the value must be a string"),
        (("prompt", text(&long)), "the text has 1048577 bytes, and the limit is 1048576"),
        (("prompt_name", text("x")), "the model has no prompt 'x': it has 'query'"),
        (("raw_scores", yes), "the model has no scores"),
    ] {
        let expected = format!("parameter '{}': {expected}", parameter.0);
        check(&[parameter], Err(&expected));
    }
    let both = [("prompt", text("a")), ("prompt_name", text("query"))];
    check(&both, Err("parameter 'prompt_name': 'prompt' and 'prompt_name' exclude each other"));
    check(&[("anything", text("x"))], Ok(&[3.0 / 13.0_f32.sqrt(), 2.0 / 13.0_f32.sqrt()]));
}

#[test]
fn classifiers_and_cross_encoders_have_scores() {
    let folder = Folder::new("classifier", &[("config.json", CLASSIFIER)]);
    let mut model = load(&folder, "", NetworkShape::Logits(2)).unwrap();
    let request = Texts { inputs: &[("text", &[b"?", b"b b b"])], parameters: &[] };
    let (shape, values) = model.infer(&request, "scores").unwrap();
    assert_eq!((shape, values[0]), (vec![2, 2], 0.5));
    let parameters = [("raw_scores", ParameterValue::Bool(true))];
    let request = Texts { inputs: request.inputs, parameters: &parameters };
    let (_, values) = model.infer(&request, "scores").unwrap();
    // The outputs are the sum of the tokens' numbers and of their texts' numbers.
    assert_eq!(values, [0.0, 0.0, 6.0, 0.0]);
    let folder = Folder::new("cross-encoder", &[("config.json", CROSS_ENCODER)]);
    let mut model = load(&folder, "", NetworkShape::Logits(1)).unwrap();
    let names: Vec<&str> = model.spec.inputs.iter().map(|input| &*input.name).collect();
    assert_eq!(names, ["query", "text"]);
    let inputs: &[(&str, &[&[u8]])] = &[("query", &[b"a", b"a b"]), ("text", &[b"b", b"c"])];
    let found = model.infer(&Texts { inputs, parameters: &[] }, "scores").unwrap();
    assert_eq!(found, (vec![2, 1], vec![3.0, 6.0]));
    // A prompt precedes the query.
    let parameters = [("prompt", ParameterValue::String(String::from("d ")))];
    let found = model.infer(&Texts { inputs, parameters: &parameters }, "scores").unwrap();
    assert_eq!(found, (vec![2, 1], vec![7.0, 10.0]));
}

#[test]
fn dense_layers_change_the_length_of_embeddings() {
    let modules = r#"[{"path": "", "type": "x.Transformer"}, {"path": "p", "type": "x.Pooling"},
        {"path": "d", "type": "x.Dense"}]"#;
    let dense = r#"{"in_features": 2, "out_features": 3, "bias": false,
        "activation_function": "torch.nn.Identity"}"#;
    let header = r#"{"linear.weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}"#;
    let weights = [0.5_f32, 0.0, 0.0, 2.0, 2.0, 0.5].map(f32::to_le_bytes);
    let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), weights.as_flattened()];
    let content = String::from_utf8(content.concat()).unwrap();
    let files = [
        ("modules.json", modules),
        ("p/config.json", "{}"),
        ("d/config.json", dense),
        ("d/model.safetensors", &content),
    ];
    let folder = Folder::new("dense", &files);
    let mut model = load(&folder, "", NetworkShape::PerToken).unwrap();
    assert_eq!(model.spec.outputs[0].dims, [3]);
    let found = model.embed(&[b"a b", b"d"], &[]).unwrap();
    assert_eq!(found, (vec![2, 3], vec![0.75, 4.0, 4.0, 2.0, 4.0, 9.0]));
    let dimensions = [("dimensions", ParameterValue::Int64(1))];
    assert_eq!(model.embed(&[b"d"], &dimensions).unwrap().1, [2.0]);
    // A network whose output is an embedding contains the layers.
    let error = load(&folder, "", NetworkShape::Embedding).err().unwrap();
    let expected = "the network's output 'sentence_embedding': an embedding has 2 values, but the \
                    last dense layer returns 3";
    assert_eq!(error, expected);
}

#[test]
fn a_classifier_returns_all_its_scores() {
    let labels = "{\"architectures\": [\"XForSequenceClassification\"], \"num_labels\": 3000}";
    let folder = Folder::new("labels", &[("config.json", labels)]);
    let mut model = load(&folder, "", NetworkShape::Logits(3000)).unwrap();
    let inputs: &[(&str, &[&[u8]])] = &[("text", &[b"a"])];
    let (shape, values) = model.infer(&Texts { inputs, parameters: &[] }, "scores").unwrap();
    assert_eq!((shape, values.len()), (vec![1, 3000], 3000));
    let error = load(&folder, "", NetworkShape::Logits(2)).err().unwrap();
    assert_eq!(error, "text model 'm': output 'scores': dims must be [ 2 ], without reshape");
}

#[test]
fn an_embedding_of_the_network_is_used_as_it_is() {
    let folder = Folder::new("embedded", &[]);
    let config = "parameters { key: 'text_pooling' value: { string_value: 'none' } }";
    for config in ["", config] {
        let mut model = load(&folder, config, NetworkShape::Embedding).unwrap();
        let found = model.embed(&[b"a b"], &[]).unwrap();
        assert_eq!(found, (vec![1, 2], vec![3.0, 0.0]));
    }
}

#[test]
fn configurations_that_contradict_the_model_are_refused() {
    let folder = Folder::new("refused", &[]);
    let check = |config: &str, expected: &str| {
        let error = load(&folder, config, NetworkShape::PerToken).err().unwrap();
        assert_eq!(error, expected, "{config}");
    };
    let text = "input { name: 'text' data_type: TYPE_STRING dims: [ 1 ] }";
    check(
        "input { name: 'texts' data_type: TYPE_STRING dims: [ 1 ] }",
        "text model 'm': input 'text' is missing",
    );
    check(
        "input { name: 'text' data_type: TYPE_FP32 dims: [ 1 ] }",
        "text model 'm': input 'text': the data type must be TYPE_STRING",
    );
    check(
        "input { name: 'text' data_type: TYPE_STRING dims: [ 2 ] }",
        "text model 'm': input 'text': dims must be [ 1 ], without reshape",
    );
    check(
        &format!("{text} input {{ name: 'x' data_type: TYPE_STRING dims: [ 1 ] }}"),
        "text model 'm': input 'x': the model has no such input: its inputs are 'text'",
    );
    check(
        "output { name: 'embedding' data_type: TYPE_FP32 dims: [ 3 ] }",
        "text model 'm': output 'embedding': dims must be [ 2 ], without reshape",
    );
    check(
        "output { name: 'scores' data_type: TYPE_FP32 dims: [ 2 ] }",
        "text model 'm': output 'scores': the model has no such output: its outputs are \
         'embedding' and 'num_input_tokens'",
    );
    check(
        "model_transaction_policy { decoupled: true }",
        "text model 'm': model_transaction_policy: a text model can't be decoupled",
    );
    check(
        "batch_output { target_name: 'embedding' source_input: 'text' \
         kind: BATCH_SCATTER_WITH_INPUT_SHAPE }",
        "text model 'm': batch_output is not supported",
    );
    check(
        "parameters { key: 'text_pool' value: { string_value: 'x' } }",
        "parameter 'text_pool': 'x' is not a setting of text models, whose parameters start with \
         'text_'",
    );
    check("default_model_filename: 'x.onnx'", "no 'x.onnx'");
    let error = load(&folder, "", NetworkShape::Logits(1)).err().unwrap();
    assert!(
        error.starts_with("'onnx/model.onnx': the network has no output of the shape"),
        "{error}"
    );
    let error = load(&folder, "", NetworkShape::UnknownInput).err().unwrap();
    assert!(error.contains("the network's input 'pixel_values' is not one of"), "{error}");
    std::fs::remove_dir_all(folder.0.join("onnx")).unwrap();
    let error = load(&folder, "", NetworkShape::PerToken).err().unwrap();
    assert!(error.ends_with("contains none of 'model.onnx', 'onnx/model.onnx'"), "{error}");
}
