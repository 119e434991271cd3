//! Tests of requests that are accepted.

use galatea_infer::{CorrelationId, Parameter, ParameterValue};
use galatea_tensor::DataType;

use super::*;
use crate::{OutputFormat, parse_header_length};
use galatea_codec::parse_version;

fn data(datatype: &str, shape: &str, data: &str, expected: &str) {
    let members = format!(r#""datatype":"{datatype}","shape":{shape},"data":{data}"#);
    assert_eq!(bytes_of(&input(&members)), expected, "{members}");
    let late = format!(r#""data":{data},"shape":{shape},"datatype":"{datatype}""#);
    assert_eq!(bytes_of(&input(&late)), expected, "{late}");
}

#[test]
fn every_datatype_with_a_json_form_is_decoded() {
    data("BOOL", "[2]", "[true,false]", "0100");
    data("UINT8", "[2]", "[1,255]", "01ff");
    data("UINT16", "[2]", "[1,65535]", "0100ffff");
    data("UINT32", "[1]", "[4294967295]", "ffffffff");
    data("UINT64", "[1]", "[18446744073709551615]", "ffffffffffffffff");
    data("INT8", "[2]", "[-1,127]", "ff7f");
    data("INT16", "[2]", "[-2,1]", "feff0100");
    data("INT32", "[1]", "[-2147483648]", "00000080");
    data("INT64", "[2]", "[-9223372036854775808,-0]", "00000000000000800000000000000000");
    data("FP32", "[4]", "[1.5,-0.0,1,1e-3]", "0000c03f000000800000803f6f12833a");
    data("FP64", "[2]", "[0.1,18446744073709551616]", "9a9999999999b93f000000000000f043");
    data(
        "BYTES",
        "[3]",
        r#"["ab","","c"]"#,
        "02000000616200000000010000006 3".replace(' ', "").as_str(),
    );
}

#[test]
fn integers_out_of_range_are_truncated() {
    data("UINT8", "[2]", "[256,511]", "00ff");
    data("INT8", "[2]", "[128,-129]", "807f");
    data("INT32", "[1]", "[4294967297]", "01000000");
}

#[test]
fn non_finite_numbers_are_accepted() {
    data(
        "FP32",
        "[5]",
        "[NaN,Inf,-Inf,Infinity,-Infinity]",
        "0000c07f0000807f000080ff0000807f000080ff",
    );
    data("FP32", "[2]", "[1e39,-1e39]", "0000807f000080ff");
}

#[test]
fn flat_and_nested_data_are_equal() {
    let expected = "010203040506";
    data("UINT8", "[3,2]", "[1,2,3,4,5,6]", expected);
    data("UINT8", "[3,2]", "[[1,2],[3,4],[5,6]]", expected);
    data("UINT8", "[3,2]", " [ [ 1 , 2 , 3 ] , [ [ 4 ] , 5 , 6 ] , [ ] ] ", expected);
    data("BYTES", "[2,1]", r#"[["a"],["b"]]"#, "01000000610100000062");
    data("INT32", "[]", "[7]", "07000000");
}

#[test]
fn an_empty_tensor_has_no_data() {
    data("FP32", "[0,3]", "[]", "");
    data("FP32", "[2,0]", "[[],[]]", "");
    data("BYTES", "[0]", "[]", "");
}

#[test]
fn strings_keep_every_byte() {
    data("BYTES", "[1]", r#"["a\u0000b"]"#, "03000000610062");
    data("BYTES", "[1]", r#"["\"\\\/\b\f\n\r\t"]"#, "08000000225c2f080c0a0d09");
    data("BYTES", "[1]", r#"["\u00e4\u20AC\ud83d\ude00"]"#, "09000000c3a4e282acf09f9880");
    let json = [
        br#"{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":[""#,
        &b"\xff\xfe"[..],
        br#""]}]}"#,
    ]
    .concat();
    let length = json.len();
    let (request, _) =
        decode_infer(&json.into(), length, target(), &MessageLimits::default()).unwrap();
    assert_eq!(hex(request.inputs[0].data.host_bytes().unwrap()), "02000000fffe");
}

#[test]
// row: PPAR-01
fn request_members_are_decoded() {
    let json = r#"{"id":"r-1","parameters":{"sequence_id":7,"sequence_start":true,
        "sequence_end":false,"priority":3,"timeout":1000,"binary_data_output":true,
        "text":"t","flag":true,"whole":-4,"huge":18446744073709551615,"real":1.5,"nan":NaN},
        "inputs":[{"name":"a","datatype":"INT8","shape":[1],"data":[1],"parameters":{"x":{}}},
        {"name":"b","shape":[2,2],"datatype":"FP16","parameters":{"binary_data_size":8}}],
        "outputs":[],"unknown":[{"a":[null,true,"\u0041"]}]}"#;
    let (request, encoding) = decode_parts(json, b"12345678").unwrap();
    assert_eq!((request.id.as_str(), request.model_name.as_str()), ("r-1", "m"));
    assert_eq!(request.correlation_id, CorrelationId::Number(7));
    assert!(request.sequence_flags.start && !request.sequence_flags.end);
    assert_eq!((request.priority, request.timeout_microseconds), (3, 1000));
    let names: Vec<&str> = request.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(request.inputs[1].datatype, DataType::Fp16);
    assert_eq!(request.inputs[1].shape.dims(), [2, 2]);
    assert_eq!(encoding.format_of("any"), OutputFormat::Binary);
    let values: Vec<&ParameterValue> = request.parameters.iter().map(|p| &p.value).collect();
    assert_eq!(
        values[..5],
        [
            &ParameterValue::String("t".into()),
            &ParameterValue::Bool(true),
            &ParameterValue::Int64(-4),
            &ParameterValue::Double(18446744073709551615.0),
            &ParameterValue::Double(1.5),
        ]
    );
    assert!(matches!(values[5], ParameterValue::Double(value) if value.is_nan()));
    assert_eq!(
        request.parameters[0],
        Parameter { name: "text".into(), value: ParameterValue::String("t".into()) }
    );
}

#[test]
fn a_correlation_id_may_be_a_string() {
    let with = |id: &str| {
        let json = format!(r#"{{"parameters":{{"sequence_id":{id}}},"inputs":[]}}"#);
        decode(&json).unwrap().0.correlation_id
    };
    assert_eq!(with("\"abc\""), CorrelationId::Text("abc".into()));
    assert_eq!(with("\"\""), CorrelationId::None);
    assert_eq!(with("0"), CorrelationId::None);
    assert_eq!(with("18446744073709551615"), CorrelationId::Number(u64::MAX));
}

#[test]
fn the_first_of_duplicate_members_counts() {
    let json = r#"{"id":"a","id":"b","inputs":[{"name":"x","name":"y","datatype":"INT8",
        "datatype":"FP64","shape":[1],"shape":[9],"data":[1],"data":[2]}],"inputs":[]}"#;
    let (request, _) = decode(json).unwrap();
    assert_eq!(request.id, "a");
    assert_eq!(request.inputs[0].name, "x");
    assert_eq!(hex(request.inputs[0].data.host_bytes().unwrap()), "01");
}

#[test]
fn binary_inputs_are_slices_of_the_body() {
    let json = r#"{"inputs":[
        {"name":"a","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}},
        {"name":"b","datatype":"UINT8","shape":[1],"data":[9]},
        {"name":"c","datatype":"UINT8","shape":[0],"parameters":{"binary_data_size":0}},
        {"name":"d","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]}"#;
    let body = Bytes::from([json.as_bytes(), b"\x01\x02\x01\x00\x00\x00z"].concat());
    let (request, _) =
        decode_infer(&body, json.len(), target(), &MessageLimits::default()).unwrap();
    let data: Vec<String> =
        request.inputs.iter().map(|input| hex(input.data.host_bytes().unwrap())).collect();
    assert_eq!(data, ["0102", "09", "", "010000007a"]);
    let first = request.inputs[0].data.host_bytes().unwrap();
    assert_eq!(first.as_ptr(), body[json.len()..].as_ptr());
}

#[test]
fn requested_outputs_select_their_form() {
    let forms = |outputs: &str, parameters: &str| {
        let json = format!(r#"{{"inputs":[],"outputs":{outputs},"parameters":{parameters}}}"#);
        let (request, encoding) = decode(&json).unwrap();
        request.outputs.iter().map(|name| encoding.format_of(name)).collect::<Vec<_>>()
    };
    use OutputFormat::{Binary, Json};
    let mixed = r#"[{"name":"a","parameters":{"binary_data":true}},{"name":"b"},
        {"name":"c","parameters":{"binary_data":false,"classification":0}}]"#;
    assert_eq!(forms(mixed, "{}"), [Binary, Json, Json]);
    // The request's default applies to outputs that are not listed.
    assert_eq!(forms(mixed, r#"{"binary_data_output":true}"#), [Binary, Json, Json]);
    assert_eq!(forms(r#"[{"name":"a"}]"#, r#"{"binary_data_output":true}"#), [Json]);
}

#[test]
fn requested_outputs_select_classes() {
    let asks = |parameters: &str| {
        let output = format!(r#"{{"name":"y","parameters":{parameters}}}"#);
        let json = format!(r#"{{"inputs":[],"outputs":[{{"name":"x"}},{output}]}}"#);
        let (request, encoding) = decode(&json).unwrap();
        assert_eq!(request.outputs, ["x", "y"]);
        assert!(request.parameters.is_empty(), "the model doesn't see it");
        assert_eq!(request.classes.is_some(), encoding.classification().is_some());
        request.classes.is_some()
    };
    assert!(asks(r#"{"classification":1}"#));
    assert!(asks(r#"{"classification":18446744073709551615,"binary_data":true}"#));
    // The first of several values counts.
    assert!(asks(r#"{"classification":1,"classification":0}"#));
    assert!(!asks(r#"{"classification":0}"#));
    assert!(!asks("{}"));
}

#[test]
fn a_byte_order_mark_and_white_space_are_skipped() {
    assert!(decode("\u{feff} {\"inputs\":[]} \r\n\t").is_ok());
}

#[test]
fn header_lengths_are_parsed() {
    let check = |value: &str, expected: Result<usize, &str>| {
        let got = parse_header_length(value.as_bytes(), 100);
        assert_eq!(
            got.as_ref().map_err(Status::message),
            expected.as_ref().map_err(|e| *e),
            "{value}"
        );
    };
    check("0", Ok(0));
    check(" 100", Ok(100));
    check("+7", Ok(7));
    check("101", Err("inference header size should be in range (0, 100), got: 101"));
    check("-1", Err("inference header size should be in range (0, 100), got: -1"));
    check("", Err("Unable to parse Inference-Header-Content-Length, got: "));
    check("12x", Ok(12));
    check("x12", Err("Unable to parse Inference-Header-Content-Length, got: x12"));
    check("-+1", Err("Unable to parse Inference-Header-Content-Length, got: -+1"));
}

#[test]
fn versions_are_parsed() {
    assert_eq!(parse_version(""), Ok(None));
    assert_eq!(parse_version("0"), Ok(Some(0)));
    assert_eq!(parse_version("12"), Ok(Some(12)));
    for text in ["99999999999999999999", "x", "-1"] {
        let status = parse_version(text).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().ends_with("version should be an integral value > 0"), "{status}");
        assert!(status.message().contains(text));
    }
}

mod raw {
    use galatea_control::ModelConfigDocument;
    use galatea_protocol::inference::{ModelConfig, ModelInput};
    use prost::Message;

    use super::*;

    fn document(max_batch_size: i32, inputs: &[(i32, &[i64])]) -> ModelConfigDocument {
        let input = |(data_type, dims): &(i32, &[i64])| ModelInput {
            name: "x".into(),
            data_type: *data_type,
            dims: dims.to_vec(),
            ..ModelInput::default()
        };
        let config = ModelConfig {
            max_batch_size,
            input: inputs.iter().map(input).collect(),
            ..ModelConfig::default()
        };
        ModelConfigDocument { json: String::new(), protobuf: config.encode_to_vec() }
    }

    fn check(config: &ModelConfigDocument, body: &'static [u8], expected: &str) {
        let body = Bytes::from_static(body);
        let result = decode_raw(&body, config, &MessageLimits::default());
        let got = match result {
            Ok((request, encoding)) => {
                assert_eq!(encoding.format_of("any"), OutputFormat::Binary);
                let input = &request.inputs[0];
                let data = hex(input.data.host_bytes().unwrap());
                format!("{} {} {} {data}", input.name, input.datatype, input.shape)
            }
            Err(status) => status.message().to_owned(),
        };
        assert_eq!(got, expected);
    }

    #[test]
    fn the_body_becomes_the_only_input() {
        let (float, text) = (11, 13);
        check(&document(0, &[(float, &[2])]), b"aaaabbbb", "x FP32 [2] 6161616162626262");
        check(&document(8, &[(float, &[2])]), b"aaaabbbb", "x FP32 [1,2] 6161616162626262");
        check(&document(8, &[(float, &[-1, 2])]), b"aaaabbbb", "x FP32 [1,1,2] 6161616162626262");
        check(&document(0, &[(float, &[-1])]), b"", "x FP32 [0] ");
        check(&document(0, &[(float, &[0, -1])]), b"", "x FP32 [0,0] ");
        check(&document(0, &[(text, &[1])]), b"ab", "x BYTES [1] 020000006162");
        for (dims, expected) in [([-1].as_slice(), 4), (&[3], 12)] {
            let text = format!(
                "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for \
                 model 'm'. Expected {expected}, got 6"
            );
            check(&document(0, &[(float, dims)]), b"aaaabb", &text);
        }
        check(
            &document(0, &[(float, &[-1, -1])]),
            b"",
            "[request id: <id_unknown>] The shape of the raw input 'x' can not be deduced because \
             there are more than one variable-sized dimension",
        );
        check(
            &document(0, &[(text, &[-1])]),
            b"",
            "[request id: <id_unknown>] For BYTE datatype raw input 'x', the model must have \
             input shape [1]",
        );
        check(
            &document(0, &[(float, &[1]), (float, &[1])]),
            b"",
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be \
             deduced but got 2 inputs in 'm' model configuration",
        );
    }

    #[test]
    fn the_error_for_a_large_body_names_the_flag() {
        let limits = MessageLimits { input_bytes_max: 1 };
        let body = Bytes::from_static(b"ab");
        let status = decode_raw(&body, &document(0, &[(2, &[2])]), &limits).unwrap_err();
        assert_eq!(
            status.message(),
            "Raw input has a byte_size (2 bytes) that exceeds the maximum allowed value of 1 \
             bytes. Use --http-max-input-size to increase the limit."
        );
    }
}

#[test]
fn a_tensor_without_dimensions_may_lack_its_element() {
    data("INT32", "[]", "[]", "");
    data("INT32", "[]", "[5]", "05000000");
}

fn decode_raw(
    body: &Bytes,
    config: &galatea_control::ModelConfigDocument,
    limits: &MessageLimits,
) -> Result<(InferenceRequest, OutputFormatMap), Status> {
    let bounds = DecodeContext { limits, account: &account(), regions: RequestShmRegions::none() };
    let (request, encoding) = crate::decode_raw_infer(body, target(), config, &bounds)?;
    Ok((*request, encoding))
}
