//! Tests of documents and events. Their form is the same as that of Triton's frontend.

use galatea_infer::{InferenceResponse, OutputTensor};
use galatea_protocol::inference::{ModelConfig, ModelInput};
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};
use prost::Message;

use super::*;
use crate::{ContentType, EmbeddingRequest, ModelDescription, NamedTool, RequestFormat, read_body};

fn output(name: &str, datatype: DataType, data: Vec<u8>, count: i64) -> OutputTensor {
    let (shape, data) = (Shape::new(&[count]).unwrap(), Buffer::from_vec(data));
    OutputTensor { name: name.into(), datatype, shape, data }
}

fn text_output(name: &str, text: &str) -> OutputTensor {
    let mut data = Vec::new();
    push_bytes_element(&mut data, text.as_bytes()).unwrap();
    output(name, DataType::Bytes, data, 1)
}

fn response(text: &str, others: Vec<OutputTensor>) -> InferenceResponse {
    InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::new(),
        parameters: Default::default(),
        outputs: std::iter::once(text_output("text_output", text)).chain(others).collect(),
    }
}

fn counts(prompt: u32, generated: u32) -> Vec<OutputTensor> {
    let count = |name, number: u32| output(name, DataType::Uint32, number.to_le_bytes().into(), 1);
    vec![count("num_input_tokens", prompt), count("num_output_tokens", generated)]
}

fn logprobs() -> OutputTensor {
    text_output(
        "logprobs",
        r#"[{"7":{"logprob":-2,"rank":2,"decoded_token":"x"},"5":{"logprob":-0.00001,"rank":1,"decoded_token":"é"}}]"#,
    )
}

fn description(inputs: &[&str]) -> ModelDescription {
    let input = |name: &&str| ModelInput { name: (*name).to_owned(), ..ModelInput::default() };
    let config = ModelConfig {
        backend: "vllm".into(),
        input: inputs.iter().map(input).map(|input| ModelInput { data_type: 1, ..input }).collect(),
        ..ModelConfig::default()
    };
    ModelDescription::new(&config.encode_to_vec(), Some(RequestFormat::Vllm)).unwrap()
}

fn completion(kind: CompletionKind) -> CompletionReply {
    CompletionReply::new(&description(&["stream"]), kind, "m", "cmpl-1".into(), 7)
}

fn string(text: Vec<u8>) -> String {
    String::from_utf8(text).unwrap()
}

#[test]
fn a_chat_is_streamed_as_chunks() {
    let mut chat = completion(CompletionKind::Chat(None)).with_usage(true);
    let mut events = Vec::new();
    chat.begin(&mut events);
    let tokens = chat.continue_stream(Some(&response("a", counts(3, 2))), false, &mut events);
    assert_eq!(tokens.unwrap(), 2);
    assert_eq!(
        chat.continue_stream(Some(&response("b", counts(3, 1))), false, &mut events).unwrap(),
        1
    );
    assert_eq!(chat.continue_stream(None, true, &mut events).unwrap(), 0);
    chat.end_stream(&mut events);
    let event = |choices: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"cmpl-1\",\"choices\":[{choices}],\"created\":7,\"model\":\"m\",\
             \"system_fingerprint\":null,\"object\":\"chat.completion.chunk\",\"usage\":{usage}}}\n\n"
        )
    };
    let choice = |content: &str, role: &str, reason: &str| {
        let delta = format!("{{\"content\":\"{content}\",\"function_call\":null,\"role\":{role}}}");
        let choice = format!(
            "{{\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason},\"index\":0}}"
        );
        event(&choice, "null")
    };
    let expected = [
        choice("", "\"assistant\"", "null"),
        choice("a", "null", "null"),
        choice("b", "null", "null"),
        choice("", "null", "\"stop\""),
        event("", "{\"prompt_tokens\":3,\"total_tokens\":6,\"completion_tokens\":3}"),
        String::from("data: [DONE]\n\n"),
    ];
    assert_eq!(string(events), expected.concat());
}

#[test]
fn a_text_is_streamed_with_the_places_of_its_tokens() {
    let mut text = completion(CompletionKind::Text).with_logprobs(true);
    let mut events = Vec::new();
    text.begin(&mut events);
    text.continue_stream(Some(&response("éé", vec![])), false, &mut events).unwrap();
    events.clear();
    text.continue_stream(Some(&response("é", vec![logprobs()])), true, &mut events).unwrap();
    text.end_stream(&mut events);
    assert_eq!(
        string(events),
        "data: {\"id\":\"cmpl-1\",\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"logprobs\":\
         {\"text_offset\":[2],\"token_logprobs\":[-0.00001],\"tokens\":[\"é\"],\"top_logprobs\":\
         [{\"é\":-0.00001,\"x\":-2.0}]},\"text\":\"é\"}],\"created\":7,\"model\":\"m\",\
         \"system_fingerprint\":null,\"object\":\"text_completion\",\"usage\":null}\n\n\
         data: [DONE]\n\n"
    );
}

#[test]
fn a_chat_becomes_a_document() {
    let mut chat = completion(CompletionKind::Chat(None)).with_logprobs(true);
    let mut outputs = counts(3, 2);
    outputs.push(logprobs());
    chat.collect(Some(&response("a\"", outputs))).unwrap();
    assert_eq!(
        string(chat.document().unwrap()),
        "{\"id\":\"cmpl-1\",\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"message\":\
         {\"content\":\"a\\\"\",\"tool_calls\":null,\"role\":\"assistant\",\"function_call\":null},\
         \"logprobs\":{\"content\":[{\"token\":\"é\",\"logprob\":-1e-05,\"bytes\":[195,169],\
         \"top_logprobs\":[{\"token\":\"é\",\"logprob\":-1e-05,\"bytes\":[195,169]},{\"token\":\"x\",\
         \"logprob\":-2.0,\"bytes\":[120]}]}]}}],\"created\":7,\"model\":\"m\",\
         \"system_fingerprint\":null,\"object\":\"chat.completion\",\"usage\":\
         {\"prompt_tokens\":3,\"total_tokens\":5,\"completion_tokens\":2}}"
    );
}

#[test]
fn a_named_tool_is_called_with_the_text() {
    let mut chat = completion(CompletionKind::Chat(Some(NamedTool("f".into()))));
    let mut events = Vec::new();
    chat.continue_stream(Some(&response("{}", vec![])), true, &mut events).unwrap();
    let delta = "{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\
                 \"arguments\":\"{}\"}}]}";
    assert!(string(events).contains(delta));
    chat.collect(Some(&response("{}", vec![]))).unwrap();
    let message = "\"message\":{\"content\":\"\",\"tool_calls\":[{\"id\":\"cmpl-1\",\"type\":\
                   \"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}],\"role\":";
    assert!(string(chat.document().unwrap()).contains(message));
}

#[test]
fn a_model_may_state_the_reason_for_the_end() {
    let mut config = ModelConfig { backend: "python".into(), ..ModelConfig::default() };
    let value = galatea_protocol::inference::ModelParameter { string_value: "REASON".into() };
    config.parameters.insert("openai_finish_reason_output".into(), value);
    let description = ModelDescription::new(&config.encode_to_vec(), None).unwrap();
    let new = || {
        let kind = CompletionKind::Chat(None);
        CompletionReply::new(&description, kind, "m", "i".into(), 7)
    };
    let (mut stream, mut events) = (new(), Vec::new());
    stream.continue_stream(Some(&response("a", vec![])), false, &mut events).unwrap();
    let last = response("b", vec![text_output("REASON", "length")]);
    stream.continue_stream(Some(&last), false, &mut events).unwrap();
    stream.continue_stream(None, true, &mut events).unwrap();
    assert_eq!(string(events).matches("\"finish_reason\":\"length\"").count(), 1);
    let mut whole = new();
    whole.collect(Some(&last)).unwrap();
    assert!(string(whole.document().unwrap()).contains("\"finish_reason\":\"length\""));
}

#[test]
fn a_document_has_one_response() {
    let check = |count: usize, expected: &str| {
        let mut text = completion(CompletionKind::Text);
        for _ in 0..count {
            text.collect(Some(&response("a", counts(1, 1)))).unwrap();
        }
        let found = text.document().map_or_else(|failure| failure.to_string(), string);
        assert!(found.contains(expected), "{found}");
    };
    check(0, "Unexpected number of responses: 0, expected 1 or 2.");
    check(1, "\"text\":\"a\"");
    check(2, "\"text\":\"a\"");
    check(3, "Unexpected number of responses: 3, expected 1 or 2.");
}

#[test]
fn a_model_that_always_streams_is_collected() {
    let mut text =
        CompletionReply::new(&description(&[]), CompletionKind::Text, "m", "i".into(), 7);
    for word in ["a", "b", "c"] {
        assert_eq!(text.collect(Some(&response(word, counts(4, 1)))).unwrap(), 1);
    }
    text.collect(None).unwrap();
    let document = string(text.document().unwrap());
    assert!(document.contains("\"text\":\"abc\""), "{document}");
    assert_eq!(text.collected_usage(), Some(Usage { prompt_tokens: 4, completion_tokens: 3 }));
}

#[test]
fn an_output_that_is_no_text_is_an_error() {
    let mut text = completion(CompletionKind::Text);
    let mut two = response("a", vec![]);
    two.outputs[0].shape = Shape::new(&[2]).unwrap();
    let error = text.collect(Some(&two)).unwrap_err().to_string();
    assert_eq!(error, "Expected to find 1 string in the output, found 2 instead.");
    let mut text = completion(CompletionKind::Text);
    let mut number = response("a", vec![]);
    number.outputs[0].datatype = DataType::Fp32;
    let error = text.collect(Some(&number)).unwrap_err().to_string();
    assert_eq!(error, "output 'text_output' is no text");
}

#[test]
fn embeddings_are_numbers_or_their_bytes() {
    let check = |format: &str, expected: &str| {
        let body = format!(r#"{{"model":"m","input":"x","encoding_format":"{format}"}}"#);
        let body = read_body(body.as_bytes(), ContentType::Json).unwrap();
        let request = EmbeddingRequest::check(&body, false).unwrap();
        let embedding = Embedding::new(&description(&[]), &request);
        let found = embedding.document(&response("[0.5, -1.25]", counts(4, 0))).unwrap();
        let expected = format!(
            "{{\"object\":\"list\",\"data\":[{{\"object\":\"embedding\",\"embedding\":{expected},\
             \"index\":0}}],\"model\":\"m\",\"usage\":{{\"prompt_tokens\":4,\"total_tokens\":4}}}}"
        );
        assert_eq!(string(found), expected);
    };
    check("float", "[0.5,-1.25]");
    check("base64", "\"AAAAPwAAoL8=\"");
}

fn answer(tool: Option<&str>) -> CompletionReply {
    let body = r#"{"model":"m","input":"a","store":false}"#;
    let body = read_body(body.as_bytes(), ContentType::Json).unwrap();
    let (_, echo) = crate::ResponsesRequest::check(&body).unwrap().into_parts();
    let tool = tool.map(|name| NamedTool(name.to_owned()));
    completion(CompletionKind::Response { tool, echo })
}

/// The types of the events of a stream, and the data of the last one.
fn types(events: Vec<u8>) -> (Vec<String>, String) {
    let text = string(events);
    let event = |event: &str| {
        let (kind, data) =
            event.strip_prefix("event: response.").unwrap().split_once('\n').unwrap();
        assert!(data.starts_with(&format!("data: {{\"type\":\"response.{kind}\"")), "{data}");
        (kind.to_owned(), data.to_owned())
    };
    let (types, data): (Vec<_>, Vec<_>) = text.trim_end().split("\n\n").map(event).unzip();
    (types, data.last().unwrap().clone())
}

#[test]
fn a_response_is_a_document() {
    let mut reply = answer(None);
    reply.collect(Some(&response("a\"", counts(2, 3)))).unwrap();
    let document = string(reply.document().unwrap());
    assert!(document.starts_with(
        r#"{"id":"resp_1","object":"response","created_at":7,"status":"completed","error":null,"incomplete_details":null,"#
    ));
    let output = r#""output":[{"id":"msg_1_1","status":"completed","type":"message","role":"assistant","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"a\""}]}],"#;
    assert!(document.contains(output), "{document}");
    let usage = r#""usage":{"input_tokens":2,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":5}}"#;
    assert!(document.ends_with(usage), "{document}");

    let mut reply = answer(Some("f"));
    reply.collect(Some(&response("{}", Vec::new()))).unwrap();
    let document = string(reply.document().unwrap());
    let call = r#""output":[{"id":"fc_1_1","status":"completed","type":"function_call","call_id":"call_1","name":"f","arguments":"{}"}],"usage":null}"#;
    assert!(document.ends_with(call), "{document}");
}

#[test]
fn a_response_is_a_stream_of_typed_events() {
    let mut events = Vec::new();
    let mut reply = answer(None);
    reply.begin(&mut events);
    reply.continue_stream(Some(&response("a", counts(2, 1))), false, &mut events).unwrap();
    assert!(reply.held_bytes() > 0);
    reply.continue_stream(None, true, &mut events).unwrap();
    reply.end_stream(&mut events);
    let (found, last) = types(events);
    let expected = "created in_progress output_item.added content_part.added output_text.delta \
                    output_text.done content_part.done output_item.done completed";
    assert_eq!(found.join(" "), expected);
    assert!(last.contains(r#""sequence_number":8,"response":{"id":"resp_1""#), "{last}");
}

#[test]
fn a_response_without_text_has_a_message() {
    let mut events = Vec::new();
    let mut reply = answer(None);
    reply.continue_stream(None, true, &mut events).unwrap();
    reply.end_stream(&mut events);
    let (found, _) = types(events);
    let expected = "output_item.added content_part.added output_text.done content_part.done \
                    output_item.done completed";
    assert_eq!(found.join(" "), expected);
}

#[test]
fn a_response_fails_with_the_message_of_the_model() {
    let mut events = Vec::new();
    let mut reply = answer(None);
    reply.begin(&mut events);
    reply.continue_stream(Some(&response("a", Vec::new())), false, &mut events).unwrap();
    reply.fail_stream("no \"memory\"", &mut events);
    let (found, last) = types(events);
    assert_eq!(found.last().unwrap(), "failed");
    let error = r#""error":{"code":"server_error","message":"no \"memory\""}"#;
    assert!(last.contains(error) && last.contains(r#""status":"failed""#), "{last}");
}
