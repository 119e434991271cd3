//! Tests of the mapping from text to text.

use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::limits::MessageLimits;
use galatea_control::{ModelConfigDocument, RequestShmRegions};
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{
    Code, InferenceRequest, InferenceResponse, OutputTensor, Parameter, ParameterValue, Status,
};
use galatea_protocol::inference::{ModelConfig, ModelInput};
use galatea_tensor::{Buffer, DataType, Shape};
use prost::Message;

use super::{GenerateBodyFormat, decode_generate, encode_generate_error, encode_generate_response};
use crate::{DecodeContext, TargetModel};

/// Creates a batching model with these inputs: `NAME:TYPE:DIM,DIM`.
fn model(max_batch_size: i32, inputs: &str) -> ModelConfigDocument {
    let input = |text: &str| {
        let [name, datatype, dims] = text.split(':').collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        let datatype = DataType::from_protocol_name(datatype).unwrap();
        ModelInput {
            name: name.into(),
            data_type: datatype.config_number(),
            dims: dims.split(',').map(|dim| dim.parse().unwrap()).collect(),
            ..ModelInput::default()
        }
    };
    let config = ModelConfig {
        max_batch_size,
        input: inputs.split(' ').map(input).collect(),
        ..ModelConfig::default()
    };
    ModelConfigDocument { json: String::new(), protobuf: config.encode_to_vec() }
}

fn decode_within(
    config: &ModelConfigDocument,
    json: &str,
    input_bytes_max: u64,
) -> Result<InferenceRequest, Status> {
    let target = TargetModel { model_name: "m".into(), model_version: None };
    let account = Arc::new(MemoryAccount::unlimited());
    let limits = MessageLimits { input_bytes_max };
    let bounds =
        DecodeContext { limits: &limits, account: &account, regions: RequestShmRegions::none() };
    decode_generate(&Bytes::copy_from_slice(json.as_bytes()), target, config, &bounds)
}

/// Returns the inputs and parameters of a request to this model, or the error.
fn mapped(config: &ModelConfigDocument, json: &str) -> String {
    shown(decode_within(config, json, 1 << 20))
}

fn shown(decoded: Result<InferenceRequest, Status>) -> String {
    let request = match decoded {
        Ok(request) => request,
        Err(status) => return format!("{:?}: {}", status.code(), status.message()),
    };
    let mut text = String::new();
    if !request.id.is_empty() {
        write!(text, "id {} ", request.id).unwrap();
    }
    for input in &request.inputs {
        let data = input.data.host_bytes().unwrap();
        write!(text, "{}{:?}{:?} ", input.name, input.shape.dims(), &data[..]).unwrap();
    }
    for parameter in &request.parameters {
        write!(text, "{}={:?} ", parameter.name, parameter.value).unwrap();
    }
    text.trim_end().to_owned()
}

#[test]
fn elements_are_distributed_to_the_dimensions() {
    let check = |max_batch_size, dims: &str, value: &str, expected: &str| {
        let config = model(max_batch_size, &format!("x:UINT8:{dims}"));
        let found = mapped(&config, &format!(r#"{{"x":{value}}}"#));
        assert_eq!(found, expected, "{dims} {value}");
    };
    let refusal = "InvalidArgument: The schema can not convert input 'x' to tensor with proper \
                   shape";
    check(0, "-1", "7", "x[1][7]");
    check(8, "-1", "[1,2]", "x[1, 2][1, 2]");
    check(8, "1", "[1,2]", "x[2, 1][1, 2]");
    check(0, "-1,2", "[1,2,3,4]", "x[2, 2][1, 2, 3, 4]");
    check(0, "-1,-1", "[1,2]", "x[1, 2][1, 2]");
    check(0, "-1,2,-1", "[1,2,3,4]", "x[1, 2, 2][1, 2, 3, 4]");
    check(0, "2,3", "[1,2,3,4,5,6]", "x[2, 3][1, 2, 3, 4, 5, 6]");
    check(0, "2,3", "[1,2,3]", refusal);
    check(0, "2", "[1,2,3,4]", refusal);
    check(0, "-1,2", "[1,2,3]", refusal);
    check(0, "2", "1", refusal);
    check(0, "-1", "[]", "x[][]");
    check(0, "0", "[1]", refusal);
    let deeper =
        "Internal: Unable to parse 'data': Shape does not match true shape of 'data' field";
    check(0, "-1", "[[1,2]]", deeper);
    check(0, "-1", "[[1],[2]]", "x[2][1, 2]");
}

#[test]
fn strings_are_measured_before_their_shape() {
    let config = model(0, "x:BYTES:2");
    assert_eq!(mapped(&config, r#"{"x":["a","b"]}"#), "x[2][1, 0, 0, 0, 97, 1, 0, 0, 0, 98]");
    let wrong = "Internal: Unable to parse JSON bytes array: attempt to access JSON non-string as \
                 string";
    assert_eq!(mapped(&config, r#"{"x":["a","b",3]}"#), wrong);
    assert_eq!(mapped(&config, r#"{"x":["a"]}"#).split(':').next(), Some("InvalidArgument"));
    assert_eq!(mapped(&config, r#"{"x":[[],[]]}"#), "x[][]");
}

#[test]
fn other_members_become_parameters() {
    let config = model(0, "x:UINT8:-1");
    let check = |json: &str, expected: &str| assert_eq!(mapped(&config, json), expected, "{json}");
    check(
        r#"{"a":1,"b":true,"c":"t","d":1.5}"#,
        r#"a=Int64(1) b=Bool(true) c=String("t") d=Double(1.5)"#,
    );
    check(r#"{"id":"7","x":1}"#, r#"id 7 x[1][1] id=String("7")"#);
    check(r#"{"parameters":{"x":2,"a":1},"b":2}"#, "x[1][2] a=Int64(1) b=Int64(2)");
    check(r#"{"parameters":{"parameters":1}}"#, "parameters=Int64(1)");
    check(r#"{"priority":3,"triton_x":1}"#, "priority=Int64(3) triton_x=Int64(1)");
    // The first of several values with the same name counts, each time.
    check(r#"{"a":1,"\u0061":2}"#, "a=Int64(1) a=Int64(1)");
    check(r#"{"parameters":{"a":1},"parameters":[]}"#, "a=Int64(1) a=Int64(1)");
    let wrong = "has invalid type. It should be either 'int', 'bool', or 'string'.";
    check(r#"{"a":[1]}"#, &format!("InvalidArgument: parameter 'a' {wrong}"));
    let nested = "Converting keyword: 'parameters': ";
    check(
        r#"{"parameters":{"a":null}}"#,
        &format!("InvalidArgument: {nested}parameter 'a' {wrong}"),
    );
}

#[test]
fn inputs_come_once() {
    let config = model(0, "x:UINT8:-1");
    let check = |json: &str, expected: &str| {
        assert_eq!(mapped(&config, json), format!("InvalidArgument: {expected}"), "{json}");
    };
    let twice = "[request id: <id_unknown>] input 'x' already exists in request";
    check(r#"{"x":1,"x":"wrong"}"#, twice);
    check(r#"{"id":"7","x":[],"x":1}"#, "[request id: 7] input 'x' already exists in request");
    let nested = format!("Converting keyword: 'parameters': {twice}");
    check(r#"{"x":1,"parameters":{"x":1}}"#, &nested);
    check(r#"{"parameters":{"x":1},"parameters":{}}"#, &nested);
    check(r#"{"parameters":{"x":1},"x":1}"#, twice);
    let config = model(0, "parameters:UINT8:-1");
    assert_eq!(
        mapped(&config, r#"{"parameters":1}"#),
        "InvalidArgument: Keyword 'parameters' for nested schema also given as input tensor name"
    );
}

#[test]
fn the_inputs_of_each_object_are_limited() {
    let config = model(0, "x:INT64:-1 y:BYTES:-1");
    let check = |json: &str, max: u64, expected: &str| {
        let found = shown(decode_within(&config, json, max));
        assert_eq!(found.split(" y[").next(), Some(expected), "{json}");
    };
    let refusal = "InvalidArgument: request size of 16 bytes with input 'y' of size 6 bytes \
                   exceeds the maximum allowed input size of 21. Use --http-max-input-size to \
                   increase the limit.";
    check(r#"{"x":[1,2],"y":"ab"}"#, 21, refusal);
    let nested = r#"{"x":1,"parameters":{"y":"ab"}}"#;
    check(nested, 31, "x[1][1, 0, 0, 0, 0, 0, 0, 0]");
    let body = "InvalidArgument: request JSON size of 31 bytes exceeds the maximum allowed input \
                size of 30 bytes. Use --http-max-input-size to increase the limit.";
    check(nested, 30, body);
}

#[test]
fn mistakes_in_the_text_come_first() {
    let config = model(0, "x:UINT8:-1");
    let check = |json: &str, expected: &str| {
        assert_eq!(mapped(&config, json), format!("Internal: {expected}"), "{json}");
    };
    let parse = "failed to parse the request JSON buffer:";
    check("", &format!("{parse} The document is empty. at 0"));
    check(r#"{"x":"wrong",}"#, &format!("{parse} Missing a name for object member. at 13"));
    check(
        r#"{"x":"wrong"} 1"#,
        &format!("{parse} The document root must not be followed by other values. at 14"),
    );
    check(
        r#"{"x":"wrong","id":1}"#,
        "Unable to parse 'id': attempt to access JSON non-string as string",
    );
    for other in ["[]", "1", "null", "\"x\""] {
        check(other, "attempt to get members for non-object");
    }
    let parameters = "Expected JSON object for keyword: 'parameters': attempt to access JSON \
                      non-object as object";
    check(r#"{"parameters":1}"#, parameters);
}

#[test]
fn hostile_texts_are_refused() {
    let config = model(0, "x:UINT8:-1 y:BYTES:-1");
    let refused = |json: &str| shown(decode_within(&config, json, 1 << 30));
    let deep = |member: &str| format!("{{\"{member}\":{}", "[".repeat(1 << 20));
    for member in ["x", "y", "a", "parameters"] {
        assert!(refused(&deep(member)).contains("nesting depth"), "{member}");
    }
    let names = (0..=MessageLimits::PARAMETERS_MAX).map(|index| format!("\"{index}\":1"));
    let many = format!("{{{}}}", names.collect::<Vec<_>>().join(","));
    assert!(refused(&many).contains("more than 65536 parameters"));
    let again = format!("{{{}}}", vec!["\"a\":1"; MessageLimits::PARAMETERS_MAX + 2].join(","));
    assert!(refused(&again).contains("more than 65536 parameters"));
    // A long value is not copied for each repetition of its name.
    let long = format!(
        r#"{{"parameters":{{"a":"{}"}}{}}}"#,
        "x".repeat(1 << 20),
        r#","parameters":0"#.repeat(100)
    );
    assert!(refused(&long).contains("more than 65536 parameters"));
    let name = format!("{{\"{}\":1}}", "n".repeat(MessageLimits::NAME_BYTES_MAX + 1));
    assert!(refused(&name).contains("longer than 4096 bytes"));
}

#[test]
fn responses_are_flat_and_sorted() {
    let output = |name: &str, datatype, dims: &[i64], data: &[u8]| OutputTensor {
        name: name.into(),
        datatype,
        shape: Shape::new(dims).unwrap(),
        data: Buffer::from_vec(data.to_vec()),
    };
    let parameter =
        |name: &str, value| Parameter { name: name.into(), value: ParameterValue::Int64(value) };
    let mut response = InferenceResponse {
        model_name: "m".into(),
        model_version: 3,
        id: String::from("7"),
        parameters: vec![parameter("z", 1), parameter("id", 2), parameter("z", 3)].into(),
        outputs: vec![
            output("b", DataType::Uint8, &[1, 1], &[5]),
            output("a", DataType::Uint8, &[2], &[1, 2]),
            output("Z", DataType::Bytes, &[0], &[]),
            output("z", DataType::Uint8, &[1], &[9]),
        ],
    };
    let account = Arc::new(MemoryAccount::unlimited());
    let encode = |response: &InferenceResponse, form| {
        let text = encode_generate_response(response, form, &account).map(|bytes| bytes.to_vec());
        text.map(|text| String::from_utf8(text).unwrap())
    };
    let flat = r#"{"Z":[],"a":[1,2],"b":5,"id":"7","model_name":"m","model_version":"3","z":1}"#;
    assert_eq!(encode(&response, GenerateBodyFormat::Document).as_deref(), Ok(flat));
    assert_eq!(encode(&response, GenerateBodyFormat::Event), Ok(format!("data: {flat}\n\n")));
    response.outputs = vec![output("h", DataType::Fp16, &[1], &[0, 0])];
    let status = encode(&response, GenerateBodyFormat::Event).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("sending FP16 data via JSON is not supported"));
    assert_eq!(
        encode_generate_error("a \"b\"", GenerateBodyFormat::Event),
        "data: {\"error\":\"a \\\"b\\\"\"}\n\n"
    );
}

#[test]
fn long_responses_are_charged_until_they_are_dropped() {
    let account = Arc::new(MemoryAccount::unlimited());
    let response = InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::new(),
        parameters: Default::default(),
        outputs: vec![OutputTensor {
            name: "x".into(),
            datatype: DataType::Uint8,
            shape: Shape::new(&[1 << 16]).unwrap(),
            data: Buffer::from_vec(vec![200; 1 << 16]),
        }],
    };
    let event = encode_generate_response(&response, GenerateBodyFormat::Event, &account).unwrap();
    assert!(account.held() >= event.len(), "{} < {}", account.held(), event.len());
    drop(event);
    assert_eq!(account.held(), 0);
}
