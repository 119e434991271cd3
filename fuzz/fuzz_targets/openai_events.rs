//! The events of a stream, from what a model sends: the first byte selects the form, the second the
//! length of the pieces, and the third the part of the rest that is read as token probabilities.
//! Each event is one line of JSON, and the text in the events is the text of the model.

#![no_main]

use std::sync::LazyLock;

use galatea_infer::{InferenceResponse, OutputTensor};
use galatea_openai::{
    ChatRequest, CompletionKind, CompletionReply, ContentType, ModelDescription, NamedTool,
    ResponsesRequest, read_body,
};
use galatea_protocol::inference::{ModelConfig, ModelInput};
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use serde::Deserialize;

const STREAM_TYPE: i32 = 1;

static MODEL: LazyLock<ModelDescription> = LazyLock::new(|| {
    let stream =
        ModelInput { name: "stream".into(), data_type: STREAM_TYPE, ..ModelInput::default() };
    let config =
        ModelConfig { backend: "vllm".into(), input: vec![stream], ..ModelConfig::default() };
    ModelDescription::new(&config.encode_to_vec(), None).expect("a model")
});

/// The tool of a client that requires it.
static TOOL: LazyLock<NamedTool> = LazyLock::new(|| {
    let body = br#"{"model": "m", "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f\"\n"}}],
        "tool_choice": {"type": "function", "function": {"name": "f\"\n"}}}"#;
    let body = read_body(body, ContentType::Json).expect("JSON");
    ChatRequest::check(&body).expect("a request").named_tool().expect("a tool")
});

/// The members that a response repeats.
static ECHO: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let body = br#"{"model": "m", "input": "a", "store": false, "metadata": {"b": "\"\n"}}"#;
    let body = read_body(body, ContentType::Json).expect("JSON");
    ResponsesRequest::check(&body).expect("a request").into_parts().1
});

/// The members of an event that contain text.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    delta: Option<String>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    #[serde(default)]
    arguments: Option<String>,
}

fn output(name: &str, element: &[u8]) -> OutputTensor {
    let mut data = Vec::new();
    push_bytes_element(&mut data, element).expect("an element");
    OutputTensor {
        name: name.into(),
        datatype: DataType::Bytes,
        shape: Shape::new(&[1]).expect("a shape"),
        data: Buffer::from_vec(data),
    }
}

fn response(piece: &[u8], logprobs: &[u8]) -> InferenceResponse {
    InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::new(),
        parameters: Default::default(),
        outputs: vec![output("text_output", piece), output("logprobs", logprobs)],
    }
}

/// The text of one event.
fn text(event: &str) -> String {
    let data = match event.strip_prefix("event: ") {
        Some(named) => named.split_once('\n').expect("an event has data").1,
        None => event,
    };
    let data = data.strip_prefix("data: ").expect("an event has data");
    assert!(!data.contains(['\n', '\r']), "{data}");
    if data == "[DONE]" {
        return String::new();
    }
    let event: Event = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
    if event.kind.ends_with(".delta") {
        return event.delta.unwrap_or_default();
    }
    let text = |choice: Choice| match (choice.text, choice.delta) {
        (Some(text), _) => text,
        (None, Some(Delta { tool_calls: Some(calls), .. })) => {
            calls.into_iter().filter_map(|call| call.function.arguments).collect()
        }
        (None, Some(delta)) => delta.content.unwrap_or_default(),
        (None, None) => String::new(),
    };
    event.choices.into_iter().map(text).collect()
}

fn kind(form: u8) -> CompletionKind {
    let tool = (form & 4 != 0).then(|| TOOL.clone());
    match form % 4 {
        0 => CompletionKind::Text,
        1 => CompletionKind::Response { tool, echo: ECHO.clone() },
        _ => CompletionKind::Chat(tool),
    }
}

fuzz_target!(|data: &[u8]| {
    let [form, length, split, rest @ ..] = data else { return };
    let (logprobs, rest) = rest.split_at(usize::from(*split).min(rest.len()));
    let wants_logprobs = form & 8 != 0;
    let mut reply = CompletionReply::new(&MODEL, kind(*form), "m\"\n", "cmpl-1".into(), 7)
        .with_logprobs(wants_logprobs)
        .with_usage(form & 16 != 0);
    let mut events = Vec::new();
    let mut expected = String::new();
    reply.begin(&mut events);
    for piece in rest.chunks(usize::from(*length).max(1)) {
        let response = response(piece, logprobs);
        reply.continue_stream(Some(&response), false, &mut events).expect("a string");
        expected.push_str(&String::from_utf8_lossy(piece));
    }
    reply.continue_stream(None, true, &mut events).expect("an end");
    reply.end_stream(&mut events);
    let events = String::from_utf8(events).expect("events are text");
    let events = events.strip_suffix("\n\n").expect("the last event ends");
    let found: String = events.split("\n\n").map(text).collect();
    assert_eq!(found, expected);
});
