//! Compares the parser with the generated messages on random and damaged bytes.
//!
//! If the parser accepts a body, `prost` must decode the same request. If `prost` refuses a body,
//! the parser must refuse it too. Neither may panic. The parser is stricter in one point: `prost`
//! does not check the wire type of map entries.

use std::collections::BTreeMap;

use bytes::Bytes;
use galatea_infer::{InferenceResponse, OutputTensor, Parameter, ParameterValue};
use galatea_protocol::inference::infer_parameter::ParameterChoice;
use galatea_protocol::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use galatea_protocol::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
    ModelStreamInferResponse,
};
use galatea_tensor::{Buffer, DataType, Shape};
use prost::Message as _;
use prost::bytes::Buf as _;

use super::infer_message::{Parameters, WireParameter};
use super::stream::{
    RequestNames, encode_empty_final_response, encode_stream_failure, encode_stream_response,
    encode_unrouted_error,
};
use super::{InferRequestMessage, encode_infer_response};
use galatea_codec::parse_version;

/// A small seeded generator that makes failures reproducible.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Spreads small seeds over all bits.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn number(&mut self) -> u64 {
        let bits = self.below(64);
        self.next() >> bits
    }

    fn text(&mut self) -> String {
        let length = self.below(6);
        (0..length).map(|_| ['a', 'ö', '0', '_', '😀'][self.below(5) as usize]).collect()
    }

    fn list<T>(&mut self, bound: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = self.below(bound);
        (0..length).map(|_| make(self)).collect()
    }

    fn bytes(&mut self) -> Bytes {
        let bytes = self.list(40, |random| random.next() as u8);
        Bytes::from(bytes)
    }
}

fn random_parameters(random: &mut Random) -> BTreeMap<String, InferParameter> {
    let entries = random.list(4, |random| {
        let choice = match random.below(6) {
            0 => None,
            1 => Some(ParameterChoice::BoolParam(random.one_in(2))),
            2 => Some(ParameterChoice::Int64Param(random.number() as i64)),
            3 => Some(ParameterChoice::StringParam(random.text())),
            4 => Some(ParameterChoice::DoubleParam(random.below(1000) as f64)),
            _ => Some(ParameterChoice::Uint64Param(random.number())),
        };
        (random.text(), InferParameter { parameter_choice: choice })
    });
    entries.into_iter().collect()
}

fn random_contents(random: &mut Random) -> InferTensorContents {
    let mut contents = InferTensorContents::default();
    match random.below(9) {
        0 => contents.bool_contents = random.list(9, |r| r.one_in(2)),
        1 => contents.int_contents = random.list(9, |r| r.number() as i32),
        2 => contents.int64_contents = random.list(9, |r| r.number() as i64),
        3 => contents.uint_contents = random.list(9, |r| r.number() as u32),
        4 => contents.uint64_contents = random.list(9, Random::number),
        5 => contents.fp32_contents = random.list(9, |r| r.below(99) as f32),
        6 => contents.fp64_contents = random.list(9, |r| r.below(99) as f64),
        7 => contents.bytes_contents = random.list(9, Random::bytes),
        _ => {}
    }
    contents
}

fn random_request(random: &mut Random) -> ModelInferRequest {
    ModelInferRequest {
        model_name: random.text(),
        model_version: random.text(),
        id: random.text(),
        parameters: random_parameters(random),
        inputs: random.list(4, |random| InferInputTensor {
            name: random.text(),
            datatype: DataType::ALL[random.below(14) as usize].protocol_name().to_owned(),
            shape: random.list(5, |r| r.number() as i64),
            parameters: random_parameters(random),
            contents: random.one_in(2).then(|| random_contents(random)),
        }),
        outputs: random.list(4, |random| InferRequestedOutputTensor {
            name: random.text(),
            parameters: random_parameters(random),
        }),
        raw_input_contents: random.list(4, Random::bytes),
    }
}

fn to_generated_parameters(parameters: &Parameters<'_>) -> BTreeMap<String, InferParameter> {
    let entry = |(&name, &choice): (&&str, &WireParameter<'_>)| {
        let choice = match choice {
            WireParameter::Unset => None,
            WireParameter::Bool(value) => Some(ParameterChoice::BoolParam(value)),
            WireParameter::Int64(value) => Some(ParameterChoice::Int64Param(value)),
            WireParameter::Text(value) => Some(ParameterChoice::StringParam(value.to_owned())),
            WireParameter::Double(value) => Some(ParameterChoice::DoubleParam(value)),
            WireParameter::Uint64(value) => Some(ParameterChoice::Uint64Param(value)),
        };
        (name.to_owned(), InferParameter { parameter_choice: choice })
    };
    parameters.iter().map(entry).collect()
}

/// Converts a parsed message to the generated one. The typed lists are compared
/// separately.
fn to_generated(message: &InferRequestMessage<'_>) -> ModelInferRequest {
    ModelInferRequest {
        model_name: message.model_name.to_owned(),
        model_version: message.model_version.to_owned(),
        id: message.id.to_owned(),
        parameters: to_generated_parameters(&message.parameters),
        inputs: message
            .inputs
            .iter()
            .map(|input| InferInputTensor {
                name: input.name.to_owned(),
                datatype: input.datatype.to_owned(),
                shape: input.shape.to_vec(),
                parameters: to_generated_parameters(&input.parameters),
                contents: input.contents.as_ref().map(|_| InferTensorContents::default()),
            })
            .collect(),
        outputs: message
            .outputs
            .iter()
            .map(|output| InferRequestedOutputTensor {
                name: output.name.to_owned(),
                parameters: to_generated_parameters(&output.parameters),
            })
            .collect(),
        raw_input_contents: message.raw.iter().map(|raw| Bytes::copy_from_slice(raw)).collect(),
    }
}

fn little_endian(contents: &InferTensorContents) -> Vec<Vec<u8>> {
    let strings = contents.bytes_contents.iter().flat_map(|bytes| {
        let length = (bytes.len() as u32).to_le_bytes();
        length.into_iter().chain(bytes.iter().copied())
    });
    vec![
        contents.bool_contents.iter().map(|&b| u8::from(b)).collect(),
        contents.int_contents.iter().flat_map(|n| n.to_le_bytes()).collect(),
        contents.int64_contents.iter().flat_map(|n| n.to_le_bytes()).collect(),
        contents.uint_contents.iter().flat_map(|n| n.to_le_bytes()).collect(),
        contents.uint64_contents.iter().flat_map(|n| n.to_le_bytes()).collect(),
        contents.fp32_contents.iter().flat_map(|n| n.to_le_bytes()).collect(),
        contents.fp64_contents.iter().flat_map(|n| n.to_le_bytes()).collect(),
        strings.collect(),
    ]
}

/// The result of parsing one body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ParseOutcome {
    Read,
    Refused,
    /// Refused by the parser but not by `prost`.
    RefusedHere,
}

/// Compares both parsers on one body.
fn check(body: &Bytes, seed: u64) -> ParseOutcome {
    let reference = ModelInferRequest::decode(body.clone());
    let message = InferRequestMessage::parse(body);
    let (mut reference, message) = match (reference, message) {
        (Ok(reference), Ok(message)) => (reference, message),
        (Err(_), Err(_)) => return ParseOutcome::Refused,
        (Ok(_), Err(_)) => return ParseOutcome::RefusedHere,
        (Err(error), Ok(message)) => panic!("seed {seed}: {body:?}: {error}, but {message:?}"),
    };
    let mut reference_lists = Vec::new();
    for input in &mut reference.inputs {
        if let Some(contents) = &mut input.contents {
            reference_lists.push(little_endian(&std::mem::take(contents)));
        }
    }
    let lists: Vec<_> =
        message.inputs.iter().filter_map(|i| i.contents.as_ref()).map(|c| c.lists()).collect();
    // Compared as text, in which NaN equals itself.
    assert_eq!(format!("{:?}", to_generated(&message)), format!("{reference:?}"), "seed {seed}");
    assert_eq!(lists, reference_lists, "seed {seed}");
    let version = parse_version(message.model_version()).unwrap_or_default();
    let account = std::sync::Arc::new(galatea_gate::ledger::MemoryAccount::unlimited());
    let regions = galatea_control::RequestShmRegions::none();
    let access = galatea_codec::regions::SharedMemoryAccess { regions, account: &account };
    let _ = message.into_request(version, &access);
    ParseOutcome::Read
}

#[test]
fn random_requests_are_parsed_like_the_generated_message() {
    for seed in 1..3000 {
        let mut random = Random::new(seed);
        let request = random_request(&mut random);
        assert_eq!(check(&Bytes::from(request.encode_to_vec()), seed), ParseOutcome::Read);
    }
}

/// Concatenated messages form one message in protobuf: later values win, lists grow and messages
/// merge.
#[test]
fn concatenated_requests_are_merged_like_the_generated_message() {
    for seed in 1..1500 {
        let mut random = Random::new(seed);
        let mut body = random_request(&mut random).encode_to_vec();
        body.extend(random_request(&mut random).encode_to_vec());
        let mut nested = Vec::new();
        // This is one input with two contents.
        for _ in 0..2 {
            let input = InferInputTensor {
                contents: Some(random_contents(&mut random)),
                ..Default::default()
            };
            input.encode(&mut nested).unwrap();
        }
        prost::encoding::encode_key(5, prost::encoding::WireType::LengthDelimited, &mut body);
        prost::encoding::encode_varint(nested.len() as u64, &mut body);
        body.extend(nested);
        assert_eq!(check(&Bytes::from(body), seed), ParseOutcome::Read);
    }
}

#[test]
fn damaged_requests_are_accepted_or_refused_like_the_generated_message() {
    let (mut read, mut refused_here) = (0, 0);
    for seed in 1..20_000 {
        let mut random = Random::new(seed);
        let mut body = random_request(&mut random).encode_to_vec();
        for _ in 0..=random.below(4) {
            damage(&mut random, &mut body);
        }
        let outcome = check(&Bytes::from(body), seed);
        read += u32::from(outcome == ParseOutcome::Read);
        refused_here += u32::from(outcome == ParseOutcome::RefusedHere);
    }
    // Both outcomes must be frequent, or the test proves nothing.
    assert!((2000..18_000).contains(&read), "{read}");
    assert!(refused_here < 100, "{refused_here}");
}

fn damage(random: &mut Random, body: &mut Vec<u8>) {
    if body.is_empty() {
        return;
    }
    let place = random.below(body.len() as u64) as usize;
    match random.below(6) {
        0 => body.truncate(place),
        1 => {
            body.remove(place);
        }
        2 => body.insert(place, random.next() as u8),
        3 => body[place] ^= 1 << random.below(8),
        4 => body[place] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
        _ => {
            let from = random.below(body.len() as u64) as usize;
            body[place] = body[from];
        }
    }
}

fn random_response(random: &mut Random) -> InferenceResponse {
    InferenceResponse {
        model_name: random.text().into(),
        model_version: random.number() as i64,
        id: random.text(),
        parameters: random
            .list(4, |random| {
                let name = format!("{}{}", random.text(), random.below(1 << 40));
                let value = match random.below(4) {
                    0 => ParameterValue::Bool(random.one_in(2)),
                    1 => ParameterValue::Int64(random.number() as i64),
                    2 => ParameterValue::Double(random.below(9) as f64),
                    _ => ParameterValue::String(random.text()),
                };
                Parameter { name, value }
            })
            .into(),
        outputs: random.list(5, |random| {
            // The lengths lie below and above the length up to which tensors are copied.
            let length = [0, 1, 100, 2047, 2048, 2049, 70_000][random.below(7) as usize];
            let fill = random.next() as u8;
            let dims = random.list(4, |r| r.below(1 << 15) as i64);
            OutputTensor {
                name: random.text().into(),
                datatype: DataType::ALL[random.below(14) as usize],
                shape: Shape::new(&dims).unwrap(),
                data: Buffer::from_vec(vec![fill; length]),
            }
        }),
    }
}

/// Reads an encoded message in steps of random size, as a connection does.
fn drain(random: &mut Random, mut message: super::MessageChunks) -> Vec<u8> {
    let mut bytes = Vec::new();
    let whole = message.remaining();
    while message.has_remaining() {
        let mut slices = [std::io::IoSlice::new(&[]); 3];
        let filled = message.chunks_vectored(&mut slices);
        assert!(filled > 0 && !message.chunk().is_empty());
        assert_eq!(slices[0].as_ptr(), message.chunk().as_ptr());
        let most = slices[..filled].iter().map(|slice| slice.len()).sum::<usize>();
        let step = (random.number() as usize % 100_000).min(most);
        let gathered: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        bytes.extend_from_slice(&gathered[..step]);
        message.advance(step);
    }
    assert_eq!(bytes.len(), whole);
    bytes
}

#[test]
fn the_generated_message_decodes_responses() {
    for seed in 1..1000 {
        let mut random = Random::new(seed);
        let response = random_response(&mut random);
        let bytes = drain(&mut random, encode_infer_response(&response).unwrap());
        assert_eq!(bytes[0], 0);
        let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        assert_eq!(length as usize, bytes.len() - 5, "seed {seed}");
        let decoded = ModelInferResponse::decode(&bytes[5..]).unwrap();
        assert_eq!(decoded, expected_response(&response), "seed {seed}");
    }
}

/// Decodes a prefixed message.
fn framed(random: &mut Random, message: super::MessageChunks) -> ModelStreamInferResponse {
    let bytes = drain(random, message);
    assert_eq!(bytes[0], 0);
    let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
    assert_eq!(length as usize, bytes.len() - 5);
    ModelStreamInferResponse::decode(&bytes[5..]).unwrap()
}

/// Adds the parameter that every stream response has.
fn with_finality(mut response: ModelInferResponse, is_final: bool) -> ModelInferResponse {
    let choice = Some(ParameterChoice::BoolParam(is_final));
    let parameter = InferParameter { parameter_choice: choice };
    response.parameters.insert("triton_final_response".into(), parameter);
    response
}

#[test]
fn the_generated_message_decodes_stream_responses() {
    for seed in 1..1000 {
        let mut random = Random::new(seed);
        let (response, is_final) = (random_response(&mut random), random.one_in(2));
        let message = encode_stream_response(&response, is_final).unwrap();
        let expected = ModelStreamInferResponse {
            error_message: String::new(),
            infer_response: Some(with_finality(expected_response(&response), is_final)),
        };
        assert_eq!(framed(&mut random, message), expected, "seed {seed}");
    }
}

#[test]
fn stream_errors_and_ends_name_their_request() {
    for seed in 1..300 {
        let mut random = Random::new(seed);
        let tag = RequestNames {
            id: random.text().repeat(random.below(40) as usize),
            model_name: random.text(),
            model_version: random.text(),
        };
        let named = ModelInferResponse {
            id: tag.id.clone(),
            model_name: tag.model_name.clone(),
            model_version: tag.model_version.clone(),
            ..Default::default()
        };
        let expected = |error_message: &str, is_final| ModelStreamInferResponse {
            error_message: error_message.into(),
            infer_response: Some(with_finality(named.clone(), is_final)),
        };
        let end = encode_empty_final_response(&tag).unwrap();
        assert_eq!(framed(&mut random, end), expected("", true), "seed {seed}");
        let (text, is_final) = (random.text().repeat(50), random.one_in(2));
        let failure = encode_stream_failure(&tag, &text, is_final).unwrap();
        assert_eq!(framed(&mut random, failure), expected(&text, is_final), "seed {seed}");
        let refusal = encode_unrouted_error(&tag.id, &text).unwrap();
        let expected = ModelStreamInferResponse {
            error_message: text,
            infer_response: Some(ModelInferResponse { id: tag.id, ..Default::default() }),
        };
        assert_eq!(framed(&mut random, refusal), expected, "seed {seed}");
    }
}

fn expected_response(response: &InferenceResponse) -> ModelInferResponse {
    use galatea_protocol::inference::model_infer_response::InferOutputTensor;
    let parameter = |parameter: &Parameter| {
        let choice = match parameter.value.clone() {
            ParameterValue::Bool(value) => ParameterChoice::BoolParam(value),
            ParameterValue::Int64(value) => ParameterChoice::Int64Param(value),
            ParameterValue::Double(value) => ParameterChoice::DoubleParam(value),
            ParameterValue::String(value) => ParameterChoice::StringParam(value),
        };
        (parameter.name.clone(), InferParameter { parameter_choice: Some(choice) })
    };
    let output = |output: &OutputTensor| InferOutputTensor {
        name: output.name.to_string(),
        datatype: output.datatype.protocol_name().to_owned(),
        shape: output.shape.dims().to_vec(),
        ..Default::default()
    };
    ModelInferResponse {
        model_name: response.model_name.to_string(),
        model_version: response.model_version.to_string(),
        id: response.id.clone(),
        parameters: response.parameters.iter().map(parameter).collect(),
        outputs: response.outputs.iter().map(output).collect(),
        raw_output_contents: response
            .outputs
            .iter()
            .map(|output| output.data.host_bytes().unwrap().clone())
            .collect(),
    }
}

fn response_of(outputs: Vec<Bytes>) -> InferenceResponse {
    let outputs = outputs.into_iter().map(|data| OutputTensor {
        name: "O".into(),
        datatype: DataType::Uint8,
        shape: Shape::new(&[data.len() as i64]).unwrap(),
        data: Buffer::from_bytes(data),
    });
    InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::new(),
        parameters: Default::default(),
        outputs: outputs.collect(),
    }
}

#[test]
fn large_outputs_are_not_copied() {
    let data = Bytes::from(vec![7_u8; 5000]);
    let message = encode_infer_response(&response_of(vec![data.clone()])).unwrap();
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    assert_eq!(message.chunks_vectored(&mut slices), 2);
    assert_eq!(slices[1].as_ptr(), data.as_ptr());
    let message = encode_stream_response(&response_of(vec![data.clone()]), true).unwrap();
    assert_eq!(message.chunks_vectored(&mut slices), 2);
    assert_eq!(slices[1].as_ptr(), data.as_ptr());
}

#[test]
fn messages_report_retained_memory_and_can_be_copied() {
    let whole = Bytes::from((0..100_000).map(|place| (place % 251) as u8).collect::<Vec<u8>>());
    // The first is short enough to be copied.
    let parts = [whole.slice(..2000), whole.slice(5000..9000), whole.slice(..50_000)];
    let mut response = response_of(parts.to_vec());
    for output in &mut response.outputs {
        output.data = output.data.clone().with_retained_bytes(whole.len());
    }
    let encode: [fn(&_) -> _; 2] =
        [encode_infer_response, |response| encode_stream_response(response, true)];
    for encode in encode {
        let message = || encode(&response).unwrap();
        assert_eq!(message().extra_retained_bytes(), 96_000 + 50_000);
        let copy = message().into_owned();
        assert_eq!(copy.extra_retained_bytes(), 0);
        assert_eq!(copy.chunk().len(), copy.remaining());
        assert!(!whole.as_ptr_range().contains(&copy.chunk().as_ptr()));
        let mut random = Random(7);
        assert_eq!(drain(&mut random, copy), drain(&mut random, message()));
    }
}

/// The responses have 2,048 outputs of one mebibyte each.
#[test]
fn responses_above_the_limit_of_grpc_are_refused() {
    let data = Bytes::from(vec![7_u8; 1 << 20]);
    assert!(encode_infer_response(&response_of(vec![data.clone(); 2047])).is_ok());
    assert!(encode_stream_response(&response_of(vec![data.clone(); 2047]), true).is_ok());
    let too_long = response_of(vec![data; 2048]);
    assert!(encode_stream_response(&too_long, true).is_err());
    let status = encode_infer_response(&too_long).unwrap_err();
    assert_eq!(status.code(), galatea_infer::Code::InvalidArgument);
    let (start, end) =
        ("Response has byte size 2147", "exceeds gRPC's byte size limit 2147483647.");
    let message = status.message();
    assert!(message.starts_with(start) && message.ends_with(end), "{message}");
}

#[test]
fn outputs_in_device_memory_are_errors() {
    let mut response = response_of(vec![Bytes::new()]);
    response.outputs[0].data = Buffer::from_device(galatea_tensor::DeviceRegion {
        device: 0,
        address: 1,
        byte_size: 1,
        owner: std::sync::Arc::new(()),
    });
    let status = encode_infer_response(&response).unwrap_err();
    assert_eq!(status.message(), "output 'O' is not in CPU memory");
}
