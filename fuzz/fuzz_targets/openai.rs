//! The body of a request of OpenAI's clients: the first byte selects the endpoint. A request that is
//! accepted becomes a prompt and inputs; the refusal of any other is JSON.

#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use galatea_infer::InputTensor;
use galatea_openai::{
    Capabilities, ChatRequest, ChatTemplate, CompletionRequest, ContentType, EmbeddingRequest,
    Failure, ModelDescription, RerankRequest, ResponsesRequest, read_body,
};
use galatea_protocol::inference::{ModelConfig, ModelInput};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use serde::de::IgnoredAny;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.tool_calls | tojson }}\
    {% endfor %}{{ tools | tojson(indent=2) }}";

/// The inputs: name and number of the type.
const INPUTS: [(&str, i32); 8] = [
    ("text_input", 13),
    ("stream", 1),
    ("sampling_parameters", 13),
    ("max_tokens", 8),
    ("seed", 5),
    ("embedding_request", 13),
    ("query", 13),
    ("text", 13),
];

static CHAT: LazyLock<ChatTemplate> =
    LazyLock::new(|| ChatTemplate::new(None, Some(TEMPLATE)).expect("a template"));

static MODELS: LazyLock<[ModelDescription; 3]> = LazyLock::new(|| {
    ["vllm", "python", "text"].map(|backend| {
        let input = |(name, data_type): (&str, i32)| ModelInput {
            name: name.into(),
            data_type,
            dims: vec![-1],
            ..ModelInput::default()
        };
        let input = INPUTS.into_iter().map(input).collect();
        let config = ModelConfig { backend: backend.into(), input, ..ModelConfig::default() };
        ModelDescription::new(&config.encode_to_vec(), None).expect("a model")
    })
});

fn total(inputs: &[InputTensor]) -> usize {
    inputs.iter().map(|input| input.data.len()).sum()
}

/// True for the Responses API, whose errors have their own form.
fn is_response(endpoint: u8) -> bool {
    endpoint / 16 % 2 == 1
}

fn serve(endpoint: u8, body: &[u8]) -> Result<(), Failure> {
    let body = read_body(body, ContentType::Json)?;
    let is_vllm = endpoint % 2 == 0;
    let capabilities = Capabilities { is_vllm, has_tool_parser: endpoint % 4 < 2 };
    let model = &MODELS[usize::from(!is_vllm)];
    let chat = |request: &ChatRequest| {
        let generation = request.generation(capabilities)?;
        let prompt = CHAT.render(request, 0)?;
        model.generation_inputs(&prompt, &generation, 16).map(drop)
    };
    if is_response(endpoint) {
        return chat(&ResponsesRequest::check(&body)?.into_parts().0);
    }
    match endpoint / 4 % 4 {
        0 => chat(&ChatRequest::check(&body)?),
        1 => {
            let request = CompletionRequest::check(&body)?;
            let generation = request.generation(capabilities)?;
            model.generation_inputs(request.prompt(), &generation, 16).map(drop)
        }
        2 => {
            let model = if endpoint < 128 { model } else { &MODELS[2] };
            let request = EmbeddingRequest::check(&body, model.takes_lists())?;
            model.embedding_parameters(&request)?;
            let bytes = model.embedding_bytes(&request)?;
            // The request may be refused later.
            let inputs = model.embedding_inputs(&request)?;
            assert!(bytes == 0 || bytes == total(&inputs));
            Ok(())
        }
        _ => {
            let request = RerankRequest::check(&body)?;
            let bytes = MODELS[2].rerank_bytes(&request)?;
            // The query is copied for each document.
            if bytes < 1 << 24 {
                assert_eq!(bytes, total(&MODELS[2].rerank_inputs(&request)?));
            }
            Ok(())
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((endpoint, body)) = data.split_first() else { return };
    if let Err(failure) = serve(*endpoint, body) {
        let (member, (code, document)) = if is_response(*endpoint) {
            ("error", failure.into_error_document())
        } else {
            ("detail", failure.into_document())
        };
        assert!(matches!(code, 400 | 422 | 500));
        // Numbers that JSON lacks are repeated as they were sent.
        if !document.windows(3).any(|part| part == b"NaN" || part == b"Inf") {
            // The numbers stay text: one may be larger than each `f64`.
            let members: BTreeMap<String, IgnoredAny> =
                serde_json::from_slice(&document).expect("JSON");
            assert!(members.contains_key(member));
        }
    }
});
