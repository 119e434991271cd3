//! Tests of every rule for inference requests, with the codes and messages of the errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use galatea_control::RequestShmRegions;
use galatea_infer::{
    Code, CorrelationId, InferenceRequest, MalformedInput, Parameter, ParameterValue,
    SequenceFlags, Status,
};
use galatea_protocol::inference::infer_parameter::ParameterChoice as Choice;
use galatea_protocol::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use galatea_protocol::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use galatea_tensor::DataType;
use prost::Message as _;

use super::InferRequestMessage;
use galatea_codec::limits::MessageLimits;
use galatea_codec::parse_version;
use galatea_codec::regions::SharedMemoryAccess;
use galatea_gate::ledger::MemoryAccount;

fn decode(request: &ModelInferRequest) -> Result<InferenceRequest, Status> {
    let body = Bytes::from(request.encode_to_vec());
    let message = InferRequestMessage::parse(&body)?;
    let version = parse_version(message.model_version())?;
    let account = Arc::new(MemoryAccount::unlimited());
    let access = SharedMemoryAccess { regions: RequestShmRegions::none(), account: &account };
    message.into_request(version, &access).map(|(request, _)| *request)
}

fn check_refused(request: &ModelInferRequest, code: Code, message: &str) {
    let status = decode(request).unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.to_vec(),
        ..Default::default()
    }
}

fn request(inputs: Vec<InferInputTensor>, raw: &[&'static [u8]]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".into(),
        inputs,
        raw_input_contents: raw.iter().map(|bytes| Bytes::from_static(bytes)).collect(),
        ..Default::default()
    }
}

fn parameters<const N: usize>(list: [(&str, Choice); N]) -> BTreeMap<String, InferParameter> {
    let entry = |(name, choice): (&str, Choice)| {
        (name.to_owned(), InferParameter { parameter_choice: Some(choice) })
    };
    list.into_iter().map(entry).collect()
}

fn with_parameter(name: &str, choice: Choice) -> ModelInferRequest {
    ModelInferRequest { parameters: parameters([(name, choice)]), ..request(Vec::new(), &[]) }
}

fn text(text: &str) -> Choice {
    Choice::StringParam(text.into())
}

#[test]
fn a_complete_request_is_decoded() {
    let mut whole = request(
        vec![input("A", "FP32", &[1, 2]), input("B", "BYTES", &[1])],
        &[b"12345678", b"\x01\0\0\0x"],
    );
    whole.id = "id".into();
    whole.model_version = "3".into();
    whole.outputs = vec![InferRequestedOutputTensor { name: "O".into(), ..Default::default() }];
    let decoded = decode(&whole).unwrap();
    assert_eq!((decoded.id.as_str(), decoded.model_name.as_str()), ("id", "m"));
    assert_eq!(decoded.model_version, Some(3));
    assert_eq!(decoded.outputs, ["O"]);
    let shown: Vec<String> = decoded
        .inputs
        .iter()
        .map(|i| {
            format!("{} {} {} {:?}", i.name, i.datatype, i.shape, i.data.host_bytes().unwrap())
        })
        .collect();
    assert_eq!(shown, ["A FP32 [1,2] b\"12345678\"", "B BYTES [1] b\"\\x01\\0\\0\\0x\""]);
}

#[test]
fn a_stream_may_enable_empty_final_responses() {
    let name = "triton_enable_empty_final_response";
    let asks = |choice| {
        let body = Bytes::from(with_parameter(name, choice).encode_to_vec());
        InferRequestMessage::parse(&body).unwrap().enables_empty_final_response()
    };
    assert!(asks(Choice::BoolParam(true)));
    assert!(!asks(Choice::BoolParam(false)));
    assert!(!asks(Choice::Int64Param(1)));
    let plain = Bytes::from(request(Vec::new(), &[]).encode_to_vec());
    assert!(!InferRequestMessage::parse(&plain).unwrap().enables_empty_final_response());
}

#[test]
fn raw_contents_are_slices_of_the_body() {
    let body = Bytes::from(request(vec![input("A", "UINT8", &[3])], &[b"abc"]).encode_to_vec());
    let message = InferRequestMessage::parse(&body).unwrap();
    let account = Arc::new(MemoryAccount::unlimited());
    let access = SharedMemoryAccess { regions: RequestShmRegions::none(), account: &account };
    let (decoded, _) = message.into_request(None, &access).unwrap();
    let data = &decoded.inputs[0].data;
    let place = data.host_bytes().unwrap().as_ptr();
    assert!(body.as_ptr_range().contains(&place), "the contents were copied");
    assert_eq!((data.len(), data.retained_bytes()), (3, body.len()));
}

#[test]
fn versions_are_parsed() {
    assert_eq!(parse_version(""), Ok(None));
    assert_eq!(parse_version("0"), Ok(Some(0)));
    assert_eq!(parse_version("12"), Ok(Some(12)));
    for (text, version) in [("1.5", 1), ("1x", 1), (" 1", 1), ("0x1", 0)] {
        assert_eq!(parse_version(text), Ok(Some(version)), "as in Triton");
    }
    for refused in ["x", "99999999999999999999"] {
        let status = parse_version(refused).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let expected = format!(
            "failed to get model version from specified version string '{refused}' (details: \
             stol), version should be an integral value > 0"
        );
        assert_eq!(status.message(), expected);
    }
    let negative = ModelInferRequest { model_version: "-1".into(), ..Default::default() };
    check_refused(
        &negative,
        Code::InvalidArgument,
        "invalid model version specified '-1' , version should be an integral value > 0",
    );
}

#[test]
// row: GRPC-09
fn parameters_with_a_meaning_set_the_request() {
    let all = ModelInferRequest {
        parameters: parameters([
            ("sequence_id", Choice::Int64Param(-1)),
            ("sequence_start", Choice::BoolParam(true)),
            ("sequence_end", Choice::BoolParam(false)),
            ("priority", Choice::Uint64Param(u64::MAX)),
            ("timeout", Choice::Int64Param(-1)),
            ("triton_enable_empty_final_response", Choice::BoolParam(true)),
        ]),
        ..Default::default()
    };
    let decoded = decode(&all).unwrap();
    assert_eq!(decoded.correlation_id, CorrelationId::Number(u64::MAX));
    assert_eq!(decoded.sequence_flags, SequenceFlags { start: true, end: false });
    assert_eq!((decoded.priority, decoded.timeout_microseconds), (u64::MAX, u64::MAX));
    assert_eq!(decoded.parameters, []);
    let id = |choice| decode(&with_parameter("sequence_id", choice)).unwrap().correlation_id;
    assert_eq!(id(text("s")), CorrelationId::Text("s".into()));
    assert_eq!(id(text("")), CorrelationId::None);
    assert_eq!(id(Choice::Int64Param(0)), CorrelationId::None);
    let priority = decode(&with_parameter("priority", Choice::Int64Param(2))).unwrap().priority;
    assert_eq!(priority, 2);
}

#[test]
// row: PPAR-01
fn other_parameters_go_to_the_backend() {
    let custom = ModelInferRequest {
        parameters: parameters([
            ("a", Choice::BoolParam(true)),
            ("b", Choice::Int64Param(-2)),
            ("c", text("x")),
            ("d", Choice::DoubleParam(0.5)),
        ]),
        ..Default::default()
    };
    let expected = [
        ("a", ParameterValue::Bool(true)),
        ("b", ParameterValue::Int64(-2)),
        ("c", ParameterValue::String("x".into())),
        ("d", ParameterValue::Double(0.5)),
    ];
    let expected = expected.map(|(name, value)| Parameter { name: name.into(), value });
    assert_eq!(decode(&custom).unwrap().parameters, expected);
}

#[test]
fn parameters_of_a_wrong_type_are_refused() {
    let check = |name: &str, choice: Choice, expected: &str| {
        let message = format!("invalid value type for '{name}' parameter, expected {expected}.");
        check_refused(&with_parameter(name, choice), Code::InvalidArgument, &message);
    };
    check("sequence_id", Choice::BoolParam(true), "int64_param or string_param");
    check("sequence_id", Choice::Uint64Param(1), "int64_param or string_param");
    check("sequence_start", Choice::Int64Param(1), "bool_param");
    check("sequence_end", text("true"), "bool_param");
    check("priority", text("1"), "int64_param or uint64_param");
    check("timeout", Choice::Uint64Param(1), "int64_param");
    check("triton_enable_empty_final_response", Choice::Int64Param(1), "bool_param");
    check("custom", Choice::Uint64Param(1), "int64_param, bool_param, or string_param");
}

#[test]
fn parameters_of_a_wrong_value_are_refused() {
    let check = |name: &str, choice: Choice, message: &str| {
        check_refused(&with_parameter(name, choice), Code::InvalidArgument, message);
    };
    let negative = "invalid value for 'priority', expected value >= 0.";
    check("priority", Choice::Int64Param(-1), negative);
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. Only \
                    the following keys starting with 'triton_' are allowed: \
                    triton_enable_empty_final_response";
    check("triton_other", Choice::BoolParam(true), reserved);
}

#[test]
fn long_correlation_ids_are_refused() {
    let of = |length: usize| with_parameter("sequence_id", text(&"a".repeat(length)));
    assert_eq!(decode(&of(128)).unwrap().correlation_id, CorrelationId::Text("a".repeat(128)));
    let refused = "string correlation ID cannot be longer than 128 characters";
    check_refused(&of(129), Code::Unsupported, refused);
}

#[test]
fn a_parameter_without_a_value_is_refused() {
    let mut unset = request(Vec::new(), &[]);
    unset.parameters.insert("priority".into(), InferParameter::default());
    check_refused(
        &unset,
        Code::InvalidArgument,
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
    );
}

/// The cases include products that overflow (CVE-2025-23323, -23324, -23326, -23327,
/// CVE-2026-24210).
#[test]
fn what_is_no_datatype_or_shape_is_left_to_admission() {
    let check = |datatype: &str, dims: &[i64], expected: Option<DataType>| {
        let request = decode(&request(vec![input("A", datatype, dims)], &[b""])).unwrap();
        let name = String::from("A");
        let malformed = MalformedInput { name, datatype: expected, dims: dims.to_vec() };
        assert_eq!(request.malformed_inputs, [malformed]);
        assert_eq!(request.inputs[0].shape.rank(), if dims == [1] { 1 } else { 0 });
    };
    check("FP99", &[1], None);
    check("FP32", &[1, -1], Some(DataType::Fp32));
    check("FP32", &[1 << 62, 4], Some(DataType::Fp32));
    let mut typed = input("A", "FP99", &[1]);
    typed.contents = Some(InferTensorContents { fp32_contents: vec![1.0], ..Default::default() });
    let text = "unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'FP32', \
                expected datatype '<invalid>'";
    check_refused(&request(vec![typed], &[]), Code::InvalidArgument, text);
}

#[test]
// row: GRPC-06
fn every_input_needs_exactly_one_source_of_data() {
    let missing = "unable to find data for input tensor 'B' for model 'm' in request.";
    let two = vec![input("A", "INT8", &[1]), input("B", "INT8", &[1])];
    check_refused(&request(two, &[b"a"]), Code::InvalidArgument, missing);
    let mut both = input("A", "INT8", &[1]);
    both.contents = Some(InferTensorContents::default());
    let message = "contents field must not be specified when using raw_input_contents for 'A' for \
                   model 'm'";
    check_refused(&request(vec![both], &[b"a"]), Code::InvalidArgument, message);
}

fn typed(datatype: &str, contents: InferTensorContents) -> Result<InferenceRequest, Status> {
    let mut tensor = input("A", datatype, &[2]);
    tensor.contents = Some(contents);
    decode(&request(vec![tensor], &[]))
}

#[test]
fn typed_contents_become_little_endian_bytes() {
    let check = |datatype: &str, contents: InferTensorContents, expected: &[u8]| {
        let decoded = typed(datatype, contents).unwrap();
        assert_eq!(decoded.inputs[0].data.host_bytes().unwrap().as_ref(), expected, "{datatype}");
    };
    let contents = InferTensorContents::default;
    check("BOOL", InferTensorContents { bool_contents: vec![true, false], ..contents() }, &[1, 0]);
    let ints = || InferTensorContents { int_contents: vec![-2, 0x0103], ..contents() };
    check("INT8", ints(), &[0xfe, 3]);
    check("INT16", ints(), &[0xfe, 0xff, 3, 1]);
    check("INT32", ints(), &[0xfe, 0xff, 0xff, 0xff, 3, 1, 0, 0]);
    let uints = || InferTensorContents { uint_contents: vec![254, 0x0103], ..contents() };
    check("UINT8", uints(), &[254, 3]);
    check("UINT16", uints(), &[254, 0, 3, 1]);
    check("UINT32", uints(), &[254, 0, 0, 0, 3, 1, 0, 0]);
    let int64s = InferTensorContents { int64_contents: vec![-1], ..contents() };
    check("INT64", int64s, &[0xff; 8]);
    let uint64s = InferTensorContents { uint64_contents: vec![u64::MAX], ..contents() };
    check("UINT64", uint64s, &[0xff; 8]);
    let fp32s = InferTensorContents { fp32_contents: vec![1.5], ..contents() };
    check("FP32", fp32s, &1.5_f32.to_le_bytes());
    let fp64s = InferTensorContents { fp64_contents: vec![1.5], ..contents() };
    check("FP64", fp64s, &1.5_f64.to_le_bytes());
    let strings = vec![Bytes::from_static(b"ab"), Bytes::new()];
    let bytes = InferTensorContents { bytes_contents: strings, ..contents() };
    check("BYTES", bytes, b"\x02\0\0\0ab\0\0\0\0");
    check("FP16", contents(), &[]);
}

#[test]
fn typed_contents_in_a_wrong_list_are_refused() {
    let check = |datatype: &str, contents: InferTensorContents, rest: &str| {
        let status = typed(datatype, contents).unwrap_err();
        let start = "unexpected explicit tensor data for input tensor 'A' for model 'm'";
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), format!("{start}{rest}"));
    };
    let contents = InferTensorContents::default;
    let fp32s = || InferTensorContents { fp32_contents: vec![1.0], ..contents() };
    check("FP16", fp32s(), " of type 'FP32', expected datatype 'FP16'");
    check("BF16", fp32s(), " of type 'FP32', expected datatype 'BF16'");
    let ints = InferTensorContents { int_contents: vec![1], ..contents() };
    check("UINT8", ints, " of type 'INT32', expected datatype 'UINT8'");
    let uints = InferTensorContents { uint_contents: vec![1], ..contents() };
    check("INT64", uints, " of type 'UINT32', expected datatype 'INT64'");
    let bools = InferTensorContents { bool_contents: vec![true], ..contents() };
    check("BYTES", bools, " of type 'BOOL', expected datatype 'BYTES'");
    let two = InferTensorContents { fp64_contents: vec![1.0], ..fp32s() };
    check("FP32", two, ", binary data was already supplied.");
}

fn shared_memory<const N: usize>(list: [(&str, Choice); N]) -> ModelInferRequest {
    let mut tensor = input("A", "INT8", &[1]);
    tensor.parameters = parameters(list);
    request(vec![tensor], &[b"a"])
}

#[test]
fn no_tensor_is_in_shared_memory_without_the_flag() {
    let region = || ("shared_memory_region", text("r"));
    let size = || ("shared_memory_byte_size", Choice::Int64Param(1));
    let missing = "Unable to find shared memory region: 'r'";
    check_refused(&shared_memory([region(), size()]), Code::NotFound, missing);
    let offset = ("shared_memory_offset", Choice::Int64Param(0));
    check_refused(&shared_memory([region(), size(), offset]), Code::NotFound, missing);
    let mut output = request(Vec::new(), &[]);
    output.outputs = vec![InferRequestedOutputTensor {
        name: "A".into(),
        parameters: parameters([region(), size()]),
    }];
    check_refused(&output, Code::NotFound, missing);
    let mut twice = shared_memory([region(), size()]);
    twice.inputs[0].contents = Some(InferTensorContents::default());
    let text = "unexpected 'content' provided when using shared memory for input tensor 'A' for \
                model 'm'";
    check_refused(&twice, Code::InvalidArgument, text);
}

#[test]
fn wrong_shared_memory_parameters_are_refused() {
    let check = |request: ModelInferRequest, message: &str| {
        check_refused(&request, Code::InvalidArgument, message);
    };
    check(
        shared_memory([("shared_memory_region", Choice::Int64Param(1))]),
        "invalid value type for 'shared_memory_region' parameter for tensor 'A', expected \
         string_param.",
    );
    check(
        shared_memory([("shared_memory_region", text("r"))]),
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter \
         for tensor 'A'",
    );
    for name in ["shared_memory_offset", "shared_memory_byte_size"] {
        check(
            shared_memory([(name, Choice::Int64Param(1))]),
            &format!(
                "'{name}' can not be specified without 'shared_memory_region' parameter for \
                 tensor 'A'"
            ),
        );
        check(
            shared_memory([("shared_memory_region", text("r")), (name, text("1"))]),
            &format!(
                "invalid value type for '{name}' parameter for tensor 'A', expected int64_param."
            ),
        );
    }
}

#[test]
fn requested_outputs_select_classes() {
    let classified = |choice| {
        let mut request = request(Vec::new(), &[]);
        let parameters = parameters([("classification", choice)]);
        request.outputs = vec![InferRequestedOutputTensor { name: "O".into(), parameters }];
        request
    };
    for count in [1, i64::MAX] {
        let decoded = decode(&classified(Choice::Int64Param(count))).unwrap();
        assert_eq!(decoded.outputs, ["O"]);
        assert!(decoded.classes.is_some());
    }
    let mut plain = classified(Choice::Int64Param(1));
    plain.outputs[0].parameters.clear();
    assert!(decode(&plain).unwrap().classes.is_none());
    for count in [0, -1, i64::MIN] {
        check_refused(
            &classified(Choice::Int64Param(count)),
            Code::InvalidArgument,
            "invalid value for 'classification' parameter, expected >= 0",
        );
    }
    for value in [text("3"), Choice::BoolParam(true), Choice::DoubleParam(1.0)] {
        check_refused(
            &classified(value),
            Code::InvalidArgument,
            "invalid value type for 'classification' parameter, expected int64_param",
        );
    }
    let mut both = classified(Choice::Int64Param(1));
    let region =
        [("shared_memory_region", text("r")), ("shared_memory_byte_size", Choice::Int64Param(1))];
    both.outputs[0].parameters.extend(parameters(region));
    check_refused(
        &both,
        Code::InvalidArgument,
        "output can't set both 'shared_memory_region' and 'classification'",
    );
}

/// The request has far more tensors than any model, in two bytes each (CVE-2026-24146).
#[test]
fn too_many_tensors_are_refused_before_memory_is_allocated() {
    let cases = [(b"\x2a\0", "inputs"), (b"\x32\0", "outputs"), (b"\x3a\0", "raw_input_contents")];
    for (field, what) in cases {
        let body = Bytes::from(field.repeat(MessageLimits::TENSORS_MAX + 1));
        let status = InferRequestMessage::parse(&body).unwrap_err();
        let expected = format!("request has more than {} {what}", MessageLimits::TENSORS_MAX);
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected.as_str()));
        let most = body.slice(2..);
        assert!(InferRequestMessage::parse(&most).is_ok());
    }
}

#[test]
fn other_bytes_are_malformed() {
    let bodies: [&[u8]; 9] = [
        b"\x0a",                                         // a length is missing
        b"\x0a\x05ab",                                   // a string is cut
        b"\x0a\x01\xff",                                 // not UTF-8
        b"\x08\x01",                                     // a number where a string belongs
        b"\x02\x00",                                     // field 0
        b"\x0e\x00",                                     // no such wire type
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", // a length beyond 64 bits
        b"\x2a\x03\x1a\x01\x80",                         // a cut number in a packed list
        b"\x2a\x07\x2a\x05\x32\x03abc",                  // three bytes of a float
    ];
    for body in bodies {
        let status = InferRequestMessage::parse(&Bytes::from_static(body)).unwrap_err();
        let expected = (Code::Internal, "Unable to parse request");
        assert_eq!((status.code(), status.message()), expected, "{body:?}");
    }
}

#[test]
fn unknown_fields_of_every_wire_type_are_skipped() {
    // Field 100 as a number, eight bytes, a string, nested groups, four bytes.
    let body = b"\xa0\x06\x96\x01\xa1\x0612345678\xa2\x06\x02hi\xa3\x06\x0b\x08\x01\x0c\xa4\x06\
                 \xa5\x061234\x0a\x01m";
    let body = Bytes::from_static(body);
    assert_eq!(InferRequestMessage::parse(&body).unwrap().model_name(), "m");
    // A group with the wrong end, and groups that are nested too deeply.
    for body in [b"\x0b\x14".to_vec(), b"\x0b".repeat(5000)] {
        assert!(InferRequestMessage::parse(&Bytes::from(body)).is_err());
    }
}

#[test]
fn dimensions_parameters_names_and_strings_are_limited() {
    let refused = |request: &ModelInferRequest, text: &str| {
        let status = decode(request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(text), "{status}");
        assert!(status.message().len() < 500);
    };
    let most = vec![1; MessageLimits::DIMS_MAX];
    assert!(decode(&request(vec![input("A", "BOOL", &most)], &[b"\0"])).is_ok());
    let dims = vec![1; MessageLimits::DIMS_MAX + 1];
    refused(&request(vec![input("A", "BOOL", &dims)], &[b"\0"]), "more than 256 dimensions");

    let many = |from: usize, count: usize| {
        let numbered = |number: usize| {
            (number.to_string(), InferParameter { parameter_choice: Some(Choice::BoolParam(true)) })
        };
        (from..from + count).map(numbered).collect::<BTreeMap<_, _>>()
    };
    let half = MessageLimits::PARAMETERS_MAX / 2;
    let mut crowded = request(vec![input("A", "BOOL", &[1])], &[b"\0"]);
    crowded.parameters = many(0, half);
    crowded.inputs[0].parameters = many(0, half);
    assert!(decode(&crowded).is_ok());
    crowded.outputs.push(InferRequestedOutputTensor::default());
    crowded.outputs[0].parameters = many(0, 1);
    refused(&crowded, "more than 65536 parameters");

    let long = "n".repeat(MessageLimits::NAME_BYTES_MAX + 1);
    refused(&request(vec![input(&long, "BOOL", &[1])], &[b"\0"]), "input name of 4097 bytes");
    refused(&with_parameter(&long, text("x")), "parameter name of 4097 bytes");
    let named = ModelInferRequest { model_name: long, ..Default::default() };
    refused(&named, "model name of 4097 bytes");

    // As in Triton, the number of strings is not limited, except by memory.
    let count = (1 << 22) + 1;
    let typed = |count: usize| {
        let contents =
            InferTensorContents { bytes_contents: vec![Bytes::new(); count], ..Default::default() };
        let tensor = input("A", "BYTES", &[i64::try_from(count).unwrap()]);
        request(vec![InferInputTensor { contents: Some(contents), ..tensor }], &[])
    };
    assert!(decode(&typed(count)).is_ok());
}

#[test]
fn surplus_raw_contents_are_refused() {
    let surplus = request(vec![input("A", "BOOL", &[1])], &[b"\0", b""]);
    let text = "unexpected additional input data for model 'm'";
    check_refused(&surplus, Code::InvalidArgument, text);
}
