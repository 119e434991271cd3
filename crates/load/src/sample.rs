//! A request that a model accepts, built from its interface.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use galatea_protocol::inference::{
    InferParameter, ModelInferRequest, infer_parameter, model_infer_request,
};
use galatea_tensor::DataType;
use prost::Message as _;
use serde_json::{Value, json};

use crate::interface::{ServedModelInterface, TensorInterface};

/// The content of all strings in samples.
const TEXT: &str = "text";

/// The maximum size of a sample's tensor, in bytes.
const TENSOR_BYTES_MAX: u64 = 1 << 30;

/// The number of bytes before a gRPC message: its compression flag and its length.
pub const PREFIX_BYTES: usize = 5;

/// The specified shapes, by input name.
pub type InputShapes = BTreeMap<String, Vec<u64>>;

/// A request for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// The model's name.
    pub model: String,
    /// The required inputs.
    pub inputs: Vec<SampleInput>,
    /// The model's outputs.
    pub outputs: Vec<TensorInterface>,
    /// True if the request must be a complete sequence.
    pub is_sequence: bool,
}

/// An input of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleInput {
    /// The input's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// The input's shape.
    pub shape: Vec<u64>,
    /// The number of elements.
    pub elements: usize,
}

impl SampleRequest {
    /// Makes a request with these shapes. The first dimension is `batch` if the model has batches;
    /// other variable dimensions default to 1. Optional inputs are left out unless a shape is
    /// specified for them.
    ///
    /// # Errors
    ///
    /// Returns an error if a shape is for an unknown input, doesn't match or is too large.
    pub fn new(
        interface: &ServedModelInterface,
        batch: u64,
        shapes: &InputShapes,
    ) -> Result<Self, String> {
        let is_known = |name: &String| interface.inputs.iter().any(|input| input.name == *name);
        if let Some(unknown) = shapes.keys().find(|name| !is_known(name)) {
            let names: Vec<&str> =
                interface.inputs.iter().map(|input| input.name.as_str()).collect();
            let (model, names) = (&interface.name, names.join(", "));
            return Err(format!("model '{model}' has no input '{unknown}', only {names}"));
        }
        let needed = interface
            .inputs
            .iter()
            .filter(|input| !input.is_optional || shapes.contains_key(&input.name));
        let batch = interface.has_batches.then_some(batch);
        let inputs = needed.map(|input| sample_input(input, batch, shapes.get(&input.name)));
        Ok(Self {
            model: interface.name.clone(),
            inputs: inputs.collect::<Result<_, _>>()?,
            outputs: interface.outputs.clone(),
            is_sequence: interface.has_sequences,
        })
    }

    /// The head of an HTTP request with all tensors in binary form, and its body. A sequence gets
    /// this ID.
    #[must_use]
    pub fn to_http_request(&self, host: &str, sequence: u64) -> Bytes {
        let inputs: Vec<Value> = self
            .inputs
            .iter()
            .map(|input| {
                json!({
                    "name": input.name,
                    "datatype": input.datatype.protocol_name(),
                    "shape": input.shape,
                    "parameters": { "binary_data_size": input.bytes().len() },
                })
            })
            .collect();
        let mut parameters = json!({ "binary_data_output": true });
        self.add_sequence(&mut parameters, sequence);
        let head = json!({ "inputs": inputs, "parameters": parameters }).to_string();
        let data: Vec<Vec<u8>> = self.inputs.iter().map(SampleInput::bytes).collect();
        let length = head.len() + data.iter().map(Vec::len).sum::<usize>();
        let mut request = BytesMut::from(
            format!(
                "POST /v2/models/{}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\
                 Inference-Header-Content-Length: {}\r\n\r\n{head}",
                encode_path_segment(&self.model),
                head.len(),
            )
            .as_str(),
        );
        data.iter().for_each(|one| request.put_slice(one));
        request.freeze()
    }

    /// A gRPC call's message, with its prefix.
    #[must_use]
    pub fn to_grpc_message(&self, sequence: u64) -> Bytes {
        let tensor = |input: &SampleInput| model_infer_request::InferInputTensor {
            name: input.name.clone(),
            datatype: input.datatype.protocol_name().to_owned(),
            shape: input
                .shape
                .iter()
                .map(|size| i64::try_from(*size).unwrap_or(i64::MAX))
                .collect(),
            ..Default::default()
        };
        let mut request = ModelInferRequest {
            model_name: self.model.clone(),
            inputs: self.inputs.iter().map(tensor).collect(),
            raw_input_contents: self.inputs.iter().map(|input| input.bytes().into()).collect(),
            ..Default::default()
        };
        if self.is_sequence {
            use infer_parameter::ParameterChoice::{BoolParam, Int64Param};
            let id = Int64Param(i64::try_from(sequence).unwrap_or(i64::MAX));
            for (name, choice) in [
                ("sequence_id", id),
                ("sequence_start", BoolParam(true)),
                ("sequence_end", BoolParam(true)),
            ] {
                let parameter = InferParameter { parameter_choice: Some(choice) };
                request.parameters.insert(name.to_owned(), parameter);
            }
        }
        frame_grpc_message(&request.encode_to_vec())
    }

    pub(crate) fn add_sequence(&self, parameters: &mut Value, sequence: u64) {
        if self.is_sequence {
            parameters["sequence_id"] = json!(sequence);
            parameters["sequence_start"] = json!(true);
            parameters["sequence_end"] = json!(true);
        }
    }
}

fn sample_input(
    input: &TensorInterface,
    batch: Option<u64>,
    given: Option<&Vec<u64>>,
) -> Result<SampleInput, String> {
    let variable = input.shape.iter().enumerate();
    let shape: Vec<u64> = match given {
        // As with Triton's tools, a shape may omit the batch dimension.
        Some(given) if batch.is_some() && given.len() + 1 == input.shape.len() => {
            batch.into_iter().chain(given.iter().copied()).collect()
        }
        Some(given) => given.clone(),
        None => variable
            .map(|(index, size)| match (u64::try_from(*size), index, batch) {
                (Ok(size), _, _) => size,
                (Err(_), 0, Some(batch)) => batch,
                (Err(_), _, _) => 1,
            })
            .collect(),
    };
    let fits = |(size, wanted): (&u64, &i64)| {
        u64::try_from(*wanted).map_or(true, |wanted| wanted == *size)
    };
    if shape.len() != input.shape.len() || !shape.iter().zip(&input.shape).all(fits) {
        let (name, wanted) = (&input.name, &input.shape);
        return Err(format!(
            "shape {shape:?} does not fit input '{name}', whose shape is {wanted:?}"
        ));
    }
    let elements = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
    let bytes = elements.and_then(|count| count.checked_mul(8));
    match (elements.and_then(|count| usize::try_from(count).ok()), bytes) {
        (Some(elements), Some(..=TENSOR_BYTES_MAX)) => {
            Ok(SampleInput { name: input.name.clone(), datatype: input.datatype, shape, elements })
        }
        _ => Err(format!("shape {shape:?} of input '{}' is too large for a sample", input.name)),
    }
}

impl SampleInput {
    /// The input's elements as the protocols transmit them.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let one: &[u8] = match self.datatype {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => &[1],
            DataType::Uint16 | DataType::Int16 => &[1, 0],
            DataType::Uint32 | DataType::Int32 => &[1, 0, 0, 0],
            DataType::Uint64 | DataType::Int64 => &[1, 0, 0, 0, 0, 0, 0, 0],
            // The value 0.5 in each format.
            DataType::Fp16 => &[0, 0x38],
            DataType::Bf16 => &[0, 0x3f],
            DataType::Fp32 => &[0, 0, 0, 0x3f],
            DataType::Fp64 => &[0, 0, 0, 0, 0, 0, 0xe0, 0x3f],
            DataType::Bytes => b"\x04\0\0\0text",
        };
        one.repeat(self.elements)
    }

    /// The input's elements in JSON.
    pub(crate) fn json(&self) -> Value {
        let one = match self.datatype {
            DataType::Bool => json!(true),
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => json!(0.5),
            DataType::Bytes => json!(TEXT),
            DataType::Uint8
            | DataType::Uint16
            | DataType::Uint32
            | DataType::Uint64
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64 => json!(1),
        };
        Value::Array(vec![one; self.elements])
    }
}

/// An uncompressed gRPC message with its prefix.
#[must_use]
pub fn frame_grpc_message(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put(message);
    bytes.freeze()
}

/// A name as a path segment.
#[must_use]
pub fn encode_path_segment(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    name.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(shape: &[i64]) -> ServedModelInterface {
        let input = TensorInterface {
            name: String::from("x"),
            datatype: DataType::Fp32,
            shape: shape.to_vec(),
            is_optional: false,
        };
        let optional = TensorInterface {
            name: String::from("o"),
            datatype: DataType::Bytes,
            shape: vec![-1, 1],
            is_optional: true,
        };
        ServedModelInterface {
            name: String::from("a model"),
            inputs: vec![input, optional],
            outputs: Vec::new(),
            is_decoupled: false,
            has_sequences: true,
            has_batches: true,
        }
    }

    #[track_caller]
    fn check(shape: &[i64], batch: u64, given: &[(&str, &[u64])], expected: Result<&[u64], &str>) {
        let shapes = given.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec()));
        let sample = SampleRequest::new(&interface(shape), batch, &shapes.collect());
        let found = sample.map(|sample| sample.inputs[0].shape.clone());
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn variable_dimensions_are_the_batch_or_one_or_what_is_given() {
        check(&[-1, 4, -1], 3, &[], Ok(&[3, 4, 1]));
        check(&[-1, 4, -1], 3, &[("x", &[4, 7])], Ok(&[3, 4, 7]));
        check(&[-1, 4, -1], 3, &[("x", &[9, 4, 7])], Ok(&[9, 4, 7]));
        let misfit = "shape [9, 5, 7] does not fit input 'x', whose shape is [-1, 4, -1]";
        check(&[-1, 4, -1], 3, &[("x", &[9, 5, 7])], Err(misfit));
        check(&[-1, 4], 1, &[("y", &[1])], Err("model 'a model' has no input 'y', only x, o"));
        let large = "shape [1, 8589934592, 8589934592] of input 'x' is too large for a sample";
        check(&[-1, 1 << 33, 1 << 33], 1, &[], Err(large));
    }

    #[test]
    fn optional_inputs_are_left_out_unless_they_get_a_shape() {
        let none = SampleRequest::new(&interface(&[-1]), 1, &InputShapes::new()).unwrap();
        assert_eq!(none.inputs.len(), 1);
        let shapes = InputShapes::from([(String::from("o"), vec![1])]);
        let one = SampleRequest::new(&interface(&[-1]), 2, &shapes).unwrap();
        assert_eq!(one.inputs[1].shape, [2, 1]);
        assert_eq!(one.inputs[1].bytes(), b"\x04\0\0\0text\x04\0\0\0text");
    }

    #[test]
    fn requests_have_all_tensors_and_are_sequences_of_their_own() {
        let sample = SampleRequest::new(&interface(&[-1, 2]), 1, &InputShapes::new()).unwrap();
        let request = sample.to_http_request("h:1", 7);
        let text = String::from_utf8_lossy(&request);
        assert!(text.starts_with("POST /v2/models/a%20model/infer HTTP/1.1\r\nHost: h:1\r\n"));
        assert!(text.contains("\"sequence_id\":7,\"sequence_start\":true,\"sequence_end\":true"));
        assert!(request.ends_with(&[0, 0, 0, 0x3f, 0, 0, 0, 0x3f]));
        let message = sample.to_grpc_message(7).slice(PREFIX_BYTES..);
        let request = ModelInferRequest::decode(message).unwrap();
        assert_eq!(request.raw_input_contents[0].len(), 8);
        assert_eq!(request.parameters.len(), 3);
    }
}
