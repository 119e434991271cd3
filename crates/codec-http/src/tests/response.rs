//! Tests of encoded responses.

use galatea_infer::{InferenceResponse, OutputTensor, Parameter, ParameterValue};
use galatea_tensor::{Buffer, DataType, Shape};

use super::*;
use crate::OutputFormat;
use crate::json::push_json_f64;

pub(super) fn response(outputs: Vec<OutputTensor>) -> InferenceResponse {
    InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::new(),
        parameters: Default::default(),
        outputs,
    }
}

pub(super) fn output(datatype: DataType, dims: &[i64], data: Vec<u8>) -> OutputTensor {
    let shape = Shape::new(dims).unwrap();
    OutputTensor { name: "y".into(), datatype, shape, data: Buffer::from_vec(data) }
}

fn encode(response: &InferenceResponse, form: OutputFormat) -> String {
    match encode_infer_response(response, &OutputFormatMap::uniform(form)) {
        Ok(encoded) => String::from_utf8(encoded.chunks.concat()).unwrap(),
        Err(status) => format!("{:?}: {status}", status.code()),
    }
}

fn data(datatype: DataType, data: Vec<u8>, count: i64, expected: &str) {
    let got = encode(&response(vec![output(datatype, &[count], data)]), OutputFormat::Json);
    let prefix = format!(
        r#"{{"model_name":"m","model_version":"1","outputs":[{{"name":"y","datatype":"{datatype}","shape":[{count}],"data":["#
    );
    assert_eq!(got, format!("{prefix}{expected}]}}]}}"));
}

fn le<const SIZE: usize>(values: impl IntoIterator<Item = [u8; SIZE]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

#[test]
fn every_datatype_with_a_json_form_is_encoded() {
    data(DataType::Bool, vec![1, 0, 2], 3, "true,false,true");
    data(DataType::Uint8, vec![0, 255], 2, "0,255");
    data(DataType::Int8, vec![0xff, 0x80], 2, "-1,-128");
    data(DataType::Uint16, le([65535_u16.to_le_bytes()]), 1, "65535");
    data(DataType::Int16, le([(-2_i16).to_le_bytes()]), 1, "-2");
    data(DataType::Uint32, le([u32::MAX.to_le_bytes()]), 1, "4294967295");
    data(DataType::Int32, le([i32::MIN.to_le_bytes()]), 1, "-2147483648");
    data(DataType::Uint64, le([u64::MAX.to_le_bytes()]), 1, "18446744073709551615");
    data(DataType::Int64, le([i64::MIN.to_le_bytes()]), 1, "-9223372036854775808");
    let floats = [0.1_f32, 1.0, -0.0, f32::NAN, f32::NEG_INFINITY].map(f32::to_le_bytes);
    data(DataType::Fp32, le(floats), 5, "0.10000000149011612,1.0,-0.0,NaN,-Infinity");
    let doubles = [0.1_f64, f64::INFINITY].map(f64::to_le_bytes);
    data(DataType::Fp64, le(doubles), 2, "0.1,Infinity");
    data(DataType::Bytes, b"\x02\0\0\0a\0\0\0\0\0".to_vec(), 2, r#""a\u0000","""#);
    data(DataType::Bytes, b"\x05\0\0\0\"\\\n\x1f/".to_vec(), 1, r#""\"\\\n\u001F/""#);
    data(DataType::Fp32, vec![], 0, "");
}

#[test]
fn doubles_are_formatted_like_rapidjson() {
    let check = |value: f64, expected: &str| {
        let mut out = Vec::new();
        push_json_f64(&mut out, value);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    };
    check(0.0, "0.0");
    check(1e15, "1000000000000000.0");
    check(1e16, "10000000000000000.0");
    check(-123456789012345680.0, "-123456789012345680.0");
    check(1e20, "100000000000000000000.0");
    check(1e21, "1e21");
    check(1.5e300, "1.5e300");
    check(1e-5, "0.00001");
    check(-1.25e-6, "-0.00000125");
    check(1e-7, "1e-7");
    check(1.2345e-7, "1.2345e-7");
    check(5e-324, "5e-324");
    check(1.7976931348623157e308, "1.7976931348623157e308");
    check(123.456, "123.456");
}

#[test]
// row: PPAR-02
fn members_have_the_documented_order() {
    let mut response = response(vec![output(DataType::Uint8, &[1, 1], vec![7])]);
    response.id = "r\"1".into();
    let parameter = |name: &str, value| Parameter { name: name.into(), value };
    response.parameters = vec![
        parameter("b", ParameterValue::Bool(false)),
        parameter("i", ParameterValue::Int64(-1)),
        parameter("d", ParameterValue::Double(2.0)),
        parameter("s", ParameterValue::String("x".into())),
    ]
    .into();
    assert_eq!(
        encode(&response, OutputFormat::Json),
        r#"{"id":"r\"1","model_name":"m","model_version":"1","parameters":{"b":false,"i":-1,"d":2.0,"s":"x"},"outputs":[{"name":"y","datatype":"UINT8","shape":[1,1],"data":[7]}]}"#
    );
}

#[test]
fn binary_outputs_are_not_copied() {
    let mut second = output(DataType::Uint8, &[1], vec![9]);
    second.name = "z".into();
    let mut empty = output(DataType::Fp16, &[0], vec![]);
    empty.name = "e".into();
    let response = response(vec![output(DataType::Fp16, &[2], vec![1, 2, 3, 4]), second, empty]);
    let names = ["y", "z", "e"].map(String::from);
    let forms = [OutputFormat::Binary, OutputFormat::Json, OutputFormat::Binary];
    let encoding = OutputFormatMap::new(OutputFormat::Json, &names, &forms);
    let encoded = encode_infer_response(&response, &encoding).unwrap();
    let json = r#"{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP16","shape":[2],"parameters":{"binary_data_size":4}},{"name":"z","datatype":"UINT8","shape":[1],"data":[9]},{"name":"e","datatype":"FP16","shape":[0],"parameters":{"binary_data_size":0}}]}"#;
    assert_eq!(encoded.header_length, Some(json.len()));
    assert_eq!(encoded.chunks[0], json);
    let source = response.outputs[0].data.host_bytes().unwrap();
    assert_eq!(encoded.chunks[1].as_ptr(), source.as_ptr(), "the tensor was copied");
    assert_eq!(encoded.chunks.len(), 2);
}

#[test]
fn classes_replace_outputs() {
    let check = |binary: bool| {
        let json = format!(
            r#"{{"inputs":[],"outputs":[{{"name":"y","parameters":{{"classification":2,"binary_data":{binary}}}}}]}}"#
        );
        let (request, encoding) = decode(&json).unwrap();
        request.classes.unwrap().set_once(&Arc::default());
        let response = response(vec![output(DataType::Int8, &[3], vec![1, 3, 2])]);
        encode_infer_response(&response, &encoding).unwrap()
    };
    let start = r#"{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"BYTES","shape":[2],"#;
    let json = format!(r#"{start}"data":["3:1","2:2"]}}]}}"#);
    let encoded = check(false);
    assert_eq!(encoded.header_length, None);
    assert_eq!(encoded.chunks[0], json);
    let json = format!(r#"{start}"parameters":{{"binary_data_size":14}}}}]}}"#);
    let encoded = check(true);
    assert_eq!(encoded.header_length, Some(json.len()));
    let elements = "\x03\0\0\x003:1\x03\0\0\x002:2";
    assert_eq!(encoded.chunks[0], json);
    assert_eq!(encoded.chunks[1], elements);
}

#[test]
fn without_binary_bytes_a_response_is_json() {
    let response = response(vec![output(DataType::Fp32, &[0], vec![])]);
    let binary = OutputFormatMap::uniform(OutputFormat::Binary);
    assert_eq!(encode_infer_response(&response, &binary).unwrap().header_length, None);
}

#[test]
fn outputs_that_cannot_be_encoded_are_errors() {
    let check = |datatype, dims: &[i64], data: &[u8], expected: &str| {
        let response = response(vec![output(datatype, dims, data.to_vec())]);
        assert_eq!(encode(&response, OutputFormat::Json), expected);
    };
    for datatype in [DataType::Fp16, DataType::Bf16] {
        check(
            datatype,
            &[1],
            b"ab",
            &format!(
                "InvalidArgument: sending {datatype} data via JSON is not supported. Please use \
                 the binary data format for output"
            ),
        );
    }
    let size = "output tensor shape does not match size of output for 'y'";
    let fixed = format!("Internal: Failed to write 'data' field: {size}");
    check(DataType::Int32, &[2], b"1234", &fixed);
    check(DataType::Bool, &[1], b"", &fixed);
    let strings = format!("Internal: {size}");
    check(DataType::Bytes, &[1], b"\x09\0\0\0a", &strings);
    check(DataType::Bytes, &[2], b"\x01\0\0\0a", &strings);
    check(DataType::Bytes, &[1], b"\0", &strings);
}
