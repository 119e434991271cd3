//! Tests of descriptions.

use galatea_protocol::inference::{ModelInput, ModelParameter};

use super::*;
use crate::json::parse_text;
use crate::{ChatRequest, CompletionRequest, ContentType, read_body};

fn input(name: &str, datatype: DataType, dims: &[i64]) -> ModelInput {
    ModelInput {
        name: name.to_owned(),
        data_type: datatype.config_number(),
        dims: dims.to_vec(),
        ..ModelInput::default()
    }
}

fn config(backend: &str, batch: i32, inputs: Vec<ModelInput>) -> ModelConfig {
    ModelConfig {
        backend: backend.to_owned(),
        max_batch_size: batch,
        input: inputs,
        ..ModelConfig::default()
    }
}

fn describe(config: &ModelConfig) -> ModelDescription {
    ModelDescription::new(&config.encode_to_vec(), None).unwrap()
}

fn generation(body: &str) -> Generation {
    let body = read_body(body.as_bytes(), ContentType::Json).unwrap();
    let request = CompletionRequest::check(&body).unwrap();
    request.generation(Capabilities { is_vllm: true, has_tool_parser: false }).unwrap()
}

/// Shows the inputs: name, type, shape and bytes, without the lengths of texts.
fn shown(tensors: &[InputTensor]) -> Vec<String> {
    let text = |tensor: &InputTensor| {
        let data = tensor.data.host_bytes().unwrap();
        if tensor.datatype == DataType::Bytes {
            let texts = galatea_tensor::elements::BytesElements::new(data);
            return format!(
                "{:?}",
                texts
                    .map(|text| String::from_utf8_lossy(text.unwrap()).into_owned())
                    .collect::<Vec<_>>()
            );
        }
        format!("{:?}", &data[..])
    };
    tensors
        .iter()
        .map(|tensor| format!("{} {:?} {}", tensor.name, tensor.shape.dims(), text(tensor)))
        .collect()
}

fn vllm_inputs() -> Vec<ModelInput> {
    vec![
        input("text_input", DataType::Bytes, &[1]),
        input("stream", DataType::Bool, &[1]),
        input("sampling_parameters", DataType::Bytes, &[1]),
        input("exclude_input_in_output", DataType::Bool, &[1]),
        input("return_logprobs", DataType::Bool, &[1]),
        input("return_num_output_tokens", DataType::Bool, &[1]),
        input("embedding_request", DataType::Bytes, &[1]),
    ]
}

#[test]
fn vllm_gets_its_parameters_as_json() {
    let model = describe(&config("vllm", 0, vllm_inputs()));
    let asked = generation(
        r#"{"model":"m","prompt":"p","seed":"5","stop":["é"],"temperature":1,"logprobs":2}"#,
    );
    assert_eq!(
        shown(&model.generation_inputs("p", &asked, 16).unwrap()),
        [
            r#"text_input [1] ["p"]"#,
            "stream [1] [0]",
            "sampling_parameters [1] [\"{\\\"frequency_penalty\\\": 0, \\\"ignore_eos\\\": false, \
             \\\"n\\\": 1, \\\"presence_penalty\\\": 0, \\\"seed\\\": 5, \\\"stop\\\": \
             [\\\"\\\\u00e9\\\"], \\\"temperature\\\": 1.0, \\\"top_p\\\": 1, \\\"max_tokens\\\": 16, \
             \\\"logprobs\\\": 2}\"]",
            "return_logprobs [1] [1]",
            "exclude_input_in_output [1] [1]",
            "return_num_output_tokens [1] [1]",
        ]
    );
}

#[test]
fn vllm_gets_the_adapter() {
    let mut asked = generation(r#"{"model":"m","prompt":"p"}"#);
    asked.adapter = Some(AdapterChoice::Name(String::from("a")));
    let model = describe(&config("vllm", 0, vllm_inputs()));
    let found = shown(&model.generation_inputs("p", &asked, 16).unwrap());
    assert!(
        found[2].ends_with("\\\"max_tokens\\\": 16, \\\"lora_name\\\": \\\"a\\\"}\"]"),
        "{}",
        found[2]
    );
}

#[test]
fn tensorrt_llm_gets_the_task_of_the_adapter_and_its_tensors() {
    let weights = InputTensor {
        name: String::from("lora_weights"),
        datatype: DataType::Uint8,
        shape: galatea_tensor::Shape::new(&[1, 2]).unwrap(),
        data: galatea_tensor::Buffer::from_vec(vec![7, 8]),
    };
    let text = || input("text_input", DataType::Bytes, &[1]);
    let check = |inputs, batch, dims: &str| {
        let mut asked = generation(r#"{"model":"m","prompt":"p"}"#);
        let model = describe(&config("tensorrtllm", batch, inputs));
        assert!(!model.takes_adapter_names());
        for tensors in [vec![weights.clone()], Vec::new()] {
            let mut expected = vec![format!("lora_task_id {dims} [3, 0, 0, 0, 0, 0, 0, 0]")];
            expected.extend(shown(&tensors));
            asked.adapter = Some(AdapterChoice::Task { id: 3, tensors });
            assert_eq!(shown(&model.generation_inputs("p", &asked, 16).unwrap())[1..], expected);
        }
    };
    check(vec![text(), input("lora_task_id", DataType::Uint64, &[1])], 8, "[1, 1]");
    check(vec![text(), input("lora_task_id", DataType::Uint64, &[1])], 0, "[1]");
    check(vec![text()], 0, "[1, 1]");
}

#[test]
fn the_response_format_guides_the_model() {
    let schema =
        r#"{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"a":1}}}"#;
    let inputs = ["text_input", "guided_decoding_guide_type", "guided_decoding_guide"];
    let inputs = inputs.map(|name| input(name, DataType::Bytes, &[1])).to_vec();
    let others = describe(&config("python", 0, inputs));
    let vllm = describe(&config("vllm", 0, vllm_inputs()));
    for (format, structured, guides) in [
        (r#"{"type":"text"}"#, None, &[][..]),
        (
            r#"{"type":"json_object"}"#,
            Some(r#""{\"json_object\": true}""#),
            &[r#"guided_decoding_guide_type [1] ["json"]"#][..],
        ),
        (
            schema,
            Some(r#""{\"json\": \"{\\\"a\\\":1}\"}""#),
            &[
                r#"guided_decoding_guide [1] ["{\"a\":1}"]"#,
                r#"guided_decoding_guide_type [1] ["json_schema"]"#,
            ],
        ),
    ] {
        let message = r#"{"role":"user","content":"p"}"#;
        let body = format!(r#"{{"model":"m","messages":[{message}],"response_format":{format}}}"#);
        let body = parse_text(&body).unwrap();
        let capabilities = Capabilities { is_vllm: true, has_tool_parser: false };
        let asked = ChatRequest::check(&body).unwrap().generation(capabilities).unwrap();
        assert_eq!(shown(&others.generation_inputs("p", &asked, 16).unwrap())[1..], *guides);
        let sampling = sampling_text(&asked, 16);
        let found = sampling.split_once("\"structured_outputs\": ").map(|(_, rest)| rest);
        assert_eq!(found, structured.map(|text| format!("{text}}}")).as_deref());
        assert!(vllm.generation_inputs("p", &asked, 16).is_ok());
    }
}

#[test]
fn a_model_without_an_input_for_schemas_refuses_them() {
    let schema = r#"{"type":"json_schema","json_schema":{"name":"n","schema":{"a":1}}}"#;
    let refusal = "`response_format` of type `json_schema` is not supported by this model";
    let text = || vec![input("text_input", DataType::Bytes, &[1])];
    for backend in ["python", "vllm"] {
        let model = describe(&config(backend, 0, text()));
        let inputs = |more: &str| {
            let body =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":"p"}}],{more}}}"#);
            let capabilities = Capabilities { is_vllm: true, has_tool_parser: false };
            let request = ChatRequest::check(&parse_text(&body).unwrap()).unwrap();
            model.generation_inputs("p", &request.generation(capabilities).unwrap(), 16)
        };
        let error = inputs(&format!(r#""response_format":{schema}"#)).unwrap_err();
        assert_eq!(error.into_document().0, 400);
        let error = inputs(&format!(r#""response_format":{schema}"#)).unwrap_err();
        assert_eq!(error.to_string(), refusal);
        // As in Triton, this format has no effect.
        assert!(inputs(r#""response_format":{"type":"json_object"}"#).is_ok());
        // The tool's name is known without its schema.
        let tool = r#"{"type":"function","function":{"name":"f","parameters":{"a":1}}}"#;
        assert!(inputs(&format!(r#""tools":[{tool}],"tool_choice":"required""#)).is_ok());
    }
}

fn text_model(batch: i32, dim: i64) -> ModelDescription {
    let inputs = ["query", "text"].map(|name| input(name, DataType::Bytes, &[dim]));
    describe(&config("text", batch, inputs.to_vec()))
}

fn rerank(query: &str, documents: &str) -> RerankRequest {
    let body = format!(r#"{{"model":"m","query":"{query}",{documents}}}"#);
    RerankRequest::check(&parse_text(&body).unwrap()).unwrap()
}

#[test]
fn the_query_is_repeated_for_each_document() {
    let request = rerank("ab", r#""documents":["c",{"text":"def"}]"#);
    let model = text_model(2, 1);
    let inputs = model.rerank_inputs(&request).unwrap();
    assert_eq!(shown(&inputs), [r#"query [2, 1] ["ab", "ab"]"#, r#"text [2, 1] ["c", "def"]"#]);
    let total: usize = inputs.iter().map(|input| input.data.len()).sum();
    assert_eq!(model.rerank_bytes(&request).unwrap(), total);
    // A large number is not allocated.
    let long =
        rerank(&"q".repeat(1 << 20), &format!(r#""texts":[{}"x"]"#, r#""","#.repeat(99_999)));
    assert!(text_model(0, -1).rerank_bytes(&long).unwrap() > 100_000 << 20);
    let refusal = "`texts` has 100000 items, but the model takes at most 2";
    assert_eq!(model.rerank_bytes(&long).unwrap_err().to_string(), refusal);
    assert_eq!(model.rerank_inputs(&long).unwrap_err().to_string(), refusal);
    assert_eq!(model.rerank_inputs(&long).unwrap_err().into_document().0, 400);
}

#[test]
fn lists_of_texts_have_at_most_the_batch_size() {
    let request = |input: &str| {
        let body = parse_text(&format!(r#"{{"model":"m","input":{input}}}"#)).unwrap();
        EmbeddingRequest::check(&body, true).unwrap()
    };
    let inputs = vec![input("text", DataType::Bytes, &[1])];
    let model = describe(&config("text", 2, inputs));
    let two = request(r#"["a","bcd"]"#);
    assert_eq!(shown(&model.embedding_inputs(&two).unwrap()), [r#"text [2, 1] ["a", "bcd"]"#]);
    assert_eq!(model.embedding_bytes(&two).unwrap(), 12);
    let three = request(r#"["a","b","c"]"#);
    let refusal = "`input` has 3 items, but the model takes at most 2";
    assert_eq!(model.embedding_bytes(&three).unwrap_err().to_string(), refusal);
    assert_eq!(model.embedding_inputs(&three).unwrap_err().to_string(), refusal);
    assert_eq!(describe(&config("vllm", 2, vllm_inputs())).embedding_bytes(&two).unwrap(), 0);
}

#[test]
fn lists_of_texts_are_refused_as_by_triton_unless_the_model_takes_them() {
    let body = parse_text(r#"{"model":"m","input":["a"],"dimensions":"x"}"#).unwrap();
    assert_eq!(EmbeddingRequest::model_for_list(&body), Some("m"));
    let document = |takes_lists| {
        let failure = EmbeddingRequest::check(&body, takes_lists).unwrap_err();
        let (code, document) = failure.into_document();
        assert_eq!(code, 422);
        String::from_utf8(document).unwrap()
    };
    let (single, list) = (document(false), document(true));
    assert!(single.contains(r#"["body","input","str"]"#), "{single}");
    assert!(single.contains(r#"["body","dimensions"]"#), "{single}");
    assert!(!list.contains(r#"["body","input""#), "{list}");
    assert!(list.contains(r#"["body","dimensions"]"#), "{list}");
    for other in [r#"{"model":"m","input":"a"}"#, r#"{"model":"m","input":[1]}"#, "[]", "{}"] {
        assert_eq!(EmbeddingRequest::model_for_list(&parse_text(other).unwrap()), None);
    }
}

#[test]
fn others_get_an_input_for_each_parameter_that_they_declare() {
    let inputs = vec![
        input("text_input", DataType::Bytes, &[1]),
        input("max_tokens", DataType::Int32, &[1]),
        input("stop_words", DataType::Bytes, &[-1]),
        input("temperature", DataType::Fp32, &[1]),
        input("seed", DataType::Uint64, &[1]),
    ];
    let model = describe(&config("python", 4, inputs));
    let asked = generation(
        r#"{"model":"m","prompt":"p","max_tokens":3,"stop":["a","b"],"temperature":0.5,"seed":7}"#,
    );
    assert_eq!(
        shown(&model.generation_inputs("p", &asked, 16).unwrap()),
        [
            r#"text_input [1, 1] ["p"]"#,
            "max_tokens [1, 1] [3, 0, 0, 0]",
            r#"stop_words [1, 2] ["a", "b"]"#,
            "seed [1, 1] [7, 0, 0, 0, 0, 0, 0, 0]",
            "temperature [1, 1] [0, 0, 0, 63]",
        ]
    );
    let negative = generation(r#"{"model":"m","prompt":"p","seed":-1}"#);
    let error = model.generation_inputs("p", &negative, 16).unwrap_err();
    assert_eq!(error.to_string(), "input 'seed' of type UINT64 can't hold the number -1");
}

#[test]
fn parameters_of_the_configuration_name_inputs_and_outputs() {
    let inputs =
        vec![input("question", DataType::Bytes, &[1]), input("options", DataType::Bytes, &[1])];
    let mut config = config("python", 0, inputs);
    for (name, value) in [
        ("openai_prompt_input", "question"),
        ("openai_parameters_input", "options"),
        ("openai_text_output", "answer"),
    ] {
        let value = ModelParameter { string_value: value.to_owned() };
        config.parameters.insert(name.to_owned(), value);
    }
    let model = describe(&config);
    let inputs = model.generation_inputs("p", &generation(r#"{"model":"m","prompt":"p"}"#), 16);
    let names: Vec<_> = inputs.unwrap().into_iter().map(|input| input.name).collect();
    assert_eq!(names, ["question", "options"]);
    assert_eq!(model.names().text, "answer");
    assert!(!model.is_told_to_stream());
}

#[test]
fn each_sampling_parameter_may_have_an_input_of_its_own() {
    let inputs = vec![
        input("text_input", DataType::Bytes, &[1]),
        input("LIMIT", DataType::Int64, &[1]),
        input("STOP", DataType::Bytes, &[-1]),
        input("HEAT", DataType::Fp64, &[1]),
        input("temperature", DataType::Fp32, &[1]),
    ];
    let mut config = config("python", 0, inputs);
    for (name, value) in [
        ("openai_max_tokens_input", "LIMIT"),
        ("openai_stop_words_input", "STOP"),
        ("openai_temperature_input", "HEAT"),
        ("openai_finish_reason_output", "REASON"),
    ] {
        let value = ModelParameter { string_value: value.to_owned() };
        config.parameters.insert(name.to_owned(), value);
    }
    let model = describe(&config);
    let asked =
        generation(r#"{"model":"m","prompt":"p","max_tokens":3,"stop":"a","temperature":0.5}"#);
    assert_eq!(
        shown(&model.generation_inputs("p", &asked, 16).unwrap()),
        [
            r#"text_input [1] ["p"]"#,
            "LIMIT [1] [3, 0, 0, 0, 0, 0, 0, 0]",
            r#"STOP [1] ["a"]"#,
            "HEAT [1] [0, 0, 0, 0, 0, 0, 224, 63]",
        ]
    );
    assert_eq!(model.names().finish_reason.as_deref(), Some("REASON"));
}

#[test]
fn a_model_without_a_prompt_is_told_so() {
    let model = describe(&config("onnxruntime", 0, vec![input("x", DataType::Fp32, &[1])]));
    let asked = generation(r#"{"model":"m","prompt":"p"}"#);
    let error = model.generation_inputs("p", &asked, 16).unwrap_err();
    assert_eq!(error.to_string(), "the model has no input 'text_input' for the prompt");
    let empty = describe(&config("", 0, Vec::new()));
    assert_eq!(empty.capabilities(false).unwrap_err().to_string(), "Unknown backend");
}

#[test]
fn embeddings_are_requested_as_vllm_reads_them() {
    let body = br#"{"model":"m","input":[1,2],"dimensions":3}"#;
    let body = read_body(body, ContentType::Json).unwrap();
    let request = EmbeddingRequest::check(&body, false).unwrap();
    let model = describe(&config("vllm", 0, vllm_inputs()));
    let found = shown(&model.embedding_inputs(&request).unwrap());
    let expected = "embedding_request [1] [\"{\\\"input\\\": [1, 2], \\\"pooling_params\\\": \
                    {\\\"dimensions\\\": [3]}}\"]";
    // The backend requires a prompt, too.
    assert_eq!(found[..2], [expected, "text_input [1] [\"\"]"]);
    let without_prompt = vllm_inputs().into_iter().map(|mut input| {
        input.optional = input.name == "text_input";
        input
    });
    let model = describe(&config("vllm", 0, without_prompt.collect()));
    let found = shown(&model.embedding_inputs(&request).unwrap());
    assert!(!found.iter().any(|input| input.starts_with("text_input")), "{found:?}");
    let python = describe(&config("python", 0, vllm_inputs()));
    assert_eq!(
        python.embedding_inputs(&request).unwrap_err().to_string(),
        "TRT-LLM backend and Python backend do not support embedding requests"
    );
}

#[test]
fn a_model_may_have_its_own_template_and_limit() {
    let mut config = config(
        "python",
        0,
        vec![
            input("text_input", DataType::Bytes, &[1]),
            input("max_tokens", DataType::Int32, &[1]),
        ],
    );
    assert_eq!(describe(&config).tokenizer_config(), None);
    for (name, value) in [("openai_tokenizer_config", "{}"), ("openai_default_max_tokens", "-1")] {
        let value = ModelParameter { string_value: value.to_owned() };
        config.parameters.insert(name.to_owned(), value);
    }
    let model = describe(&config);
    assert_eq!(model.tokenizer_config(), Some("{}"));
    let limit = |body| {
        let inputs = model.generation_inputs("p", &generation(body), 16).unwrap();
        shown(&inputs).pop().unwrap()
    };
    assert_eq!(limit(r#"{"model":"m","prompt":"p"}"#), "max_tokens [1] [255, 255, 255, 255]");
    assert_eq!(
        limit(r#"{"model":"m","prompt":"p","max_tokens":3}"#),
        "max_tokens [1] [3, 0, 0, 0]"
    );
    config.parameters.get_mut("openai_default_max_tokens").unwrap().string_value = "x".to_owned();
    let error = ModelDescription::new(&config.encode_to_vec(), None).unwrap_err();
    assert_eq!(error.to_string(), "parameter 'openai_default_max_tokens' is no number: 'x'");
}
