//! Models with their configurations and expected results, as the scripts in `tests/pytorch` write
//! them.

use std::path::Path;

use galatea_infer::{InferenceRequest, InferenceResponse, InputTensor};
use galatea_tensor::elements::{BytesElements, push_bytes_element};
use galatea_tensor::{Buffer, DataType, Shape};
use serde_json::Value;

/// A model's configuration, and requests with their expected results.
pub(crate) struct Golden {
    pub(crate) config: String,
    pub(crate) cases: Vec<Case>,
}

/// A request and its expected result.
pub(crate) struct Case {
    pub(crate) inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// A tensor with its name.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    pub(crate) dims: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}

impl Golden {
    pub(crate) fn read(path: &Path) -> Self {
        let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let config = value["config"].as_str().unwrap().to_owned();
        let case = |case: &Value| Case {
            inputs: tensors(&case["inputs"]),
            outputs: tensors(&case["outputs"]),
        };
        let cases = value["cases"].as_array().unwrap().iter().map(case).collect();
        Self { config, cases }
    }
}

fn tensors(value: &Value) -> Vec<Tensor> {
    let tensors = value.as_object().unwrap().iter();
    tensors.map(|(name, value)| tensor(name, value)).collect()
}

fn tensor(name: &str, value: &Value) -> Tensor {
    let datatype = DataType::from_protocol_name(value["datatype"].as_str().unwrap()).unwrap();
    let list = |key: &str| value[key].as_array().cloned().unwrap_or_default();
    let mut bytes: Vec<u8> =
        list("bytes").iter().map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect();
    for text in list("strings") {
        push_bytes_element(&mut bytes, text.as_str().unwrap().as_bytes()).unwrap();
    }
    let dims = list("shape").iter().map(|size| size.as_i64().unwrap()).collect();
    Tensor { name: name.to_owned(), datatype, dims, bytes }
}

impl Case {
    pub(crate) fn request(&self) -> InferenceRequest {
        request(&self.inputs)
    }

    /// Compares a response with the expected one.
    pub(crate) fn check(&self, response: &InferenceResponse, about: &str) {
        for expected in &self.outputs {
            let name = &expected.name;
            let output = response.outputs.iter().find(|output| *output.name == **name);
            let output = output.unwrap_or_else(|| panic!("{about}: no output {name}"));
            assert_eq!(output.datatype, expected.datatype, "{about}: {name}");
            let ones = |dims: &[i64]| -> Vec<i64> {
                dims.iter().copied().filter(|&size| size != 1).collect()
            };
            assert_eq!(ones(output.shape.dims()), ones(&expected.dims), "{about}: {name}");
            let bytes = output.data.host_bytes().unwrap();
            expected.check_elements(bytes, &format!("{about}: {name}"));
        }
        assert_eq!(response.outputs.len(), self.outputs.len(), "{about}");
    }
}

impl Tensor {
    fn check_elements(&self, bytes: &[u8], about: &str) {
        let close = |one: f64, other: f64| {
            (one - other).abs() <= 1e-5 * other.abs().max(1.) || one.is_nan() && other.is_nan()
        };
        match self.datatype {
            DataType::Fp32 => {
                let numbers = |bytes: &[u8]| -> Vec<f64> {
                    let numbers = bytes.as_chunks::<4>().0.iter();
                    numbers.map(|&four| f64::from(f32::from_le_bytes(four))).collect()
                };
                let (ours, expected) = (numbers(bytes), numbers(&self.bytes));
                assert_eq!(ours.len(), expected.len(), "{about}");
                for (one, other) in ours.iter().zip(&expected) {
                    assert!(close(*one, *other), "{about}: {ours:?}, expected {expected:?}");
                }
            }
            DataType::Bytes => {
                let texts = |bytes: &[u8]| -> Vec<Vec<u8>> {
                    BytesElements::new(bytes).map(|text| text.unwrap().to_vec()).collect()
                };
                assert_eq!(texts(bytes), texts(&self.bytes), "{about}");
            }
            _ => assert_eq!(bytes, self.bytes, "{about}"),
        }
    }
}

/// A request with these inputs.
pub(crate) fn request(inputs: &[Tensor]) -> InferenceRequest {
    let tensor = |tensor: &Tensor| InputTensor {
        name: tensor.name.clone(),
        datatype: tensor.datatype,
        shape: Shape::new(&tensor.dims).unwrap(),
        data: Buffer::from_vec(tensor.bytes.clone()),
    };
    InferenceRequest { inputs: inputs.iter().map(tensor).collect(), ..InferenceRequest::default() }
}

/// A tensor of numbers.
pub(crate) fn floats(name: &str, dims: &[i64], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { name: name.to_owned(), datatype: DataType::Fp32, dims: dims.to_vec(), bytes }
}
