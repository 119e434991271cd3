//! Encodes inference responses as HTTP bodies.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{InferenceResponse, OutputTensor, Parameter, ParameterValue, Status};
use galatea_tensor::elements::BytesElements;
use galatea_tensor::{DataType, Shape};
use smallvec::SmallVec;

use super::json::{push_json_f64, push_json_i64, push_json_string, push_json_u64};
use super::output::{OutputFormat, OutputFormatMap};
use super::response_charge::ResponseCharge;

/// The body of a response, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedResponse {
    /// The length of the JSON if binary tensors follow it. The response is then
    /// `application/octet-stream`, with the length in `Inference-Header-Content-Length`. `None` if
    /// the whole body is JSON.
    pub header_length: Option<usize>,
    /// The body's parts in order: the JSON, followed by the binary tensors as the backend produced
    /// them.
    pub chunks: SmallVec<[Bytes; 2]>,
}

/// Encodes a response in the forms that its request selected.
///
/// Tensors that are not charged yet are charged to `account`, and so is the JSON before it is
/// written. The charge lasts until the last chunk is dropped.
///
/// # Errors
///
/// `Exhausted` if the memory limit leaves no room for the response; `InvalidArgument` if the type
/// of an output has no JSON form or no classes but the request selected them; `Internal` if an
/// output's bytes don't fit its shape.
pub fn encode_infer_response(
    response: &InferenceResponse,
    encoding: &OutputFormatMap,
    account: &Arc<MemoryAccount>,
) -> Result<EncodedResponse, Status> {
    match encoding.classification() {
        None => encode(response, encoding, account),
        Some(classification) => encode(&classification.apply(response.clone())?, encoding, account),
    }
}

fn encode(
    response: &InferenceResponse,
    encoding: &OutputFormatMap,
    account: &Arc<MemoryAccount>,
) -> Result<EncodedResponse, Status> {
    let (mut json, charge) = match ResponseCharge::new(response, encoding, account)? {
        None => (Vec::with_capacity(json_bytes_estimate(response, encoding)), None),
        Some(charge) => (Vec::with_capacity(charge.text_bytes_max), Some(charge)),
    };
    let mut chunks: SmallVec<[Bytes; 2]> = SmallVec::new();
    chunks.push(Bytes::new());
    json.push(b'{');
    if !response.id.is_empty() {
        json.extend_from_slice(b"\"id\":");
        push_json_string(&mut json, response.id.as_bytes());
        json.push(b',');
    }
    json.extend_from_slice(b"\"model_name\":");
    push_json_string(&mut json, response.model_name.as_bytes());
    json.extend_from_slice(b",\"model_version\":\"");
    push_json_i64(&mut json, response.model_version);
    json.push(b'"');
    push_parameters(&mut json, &response.parameters);
    json.extend_from_slice(b",\"outputs\":[");
    for (index, output) in response.outputs.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        push_output(&mut json, &mut chunks, output, encoding.format_of(&output.name))?;
    }
    json.extend_from_slice(b"]}");
    let header_length = (chunks.len() > 1).then_some(json.len());
    if charge.is_some() {
        json.shrink_to_fit();
    }
    let text_bytes = json.capacity();
    if let Some(first) = chunks.first_mut() {
        *first = Bytes::from(json);
    }
    if let Some(charge) = charge {
        charge.hold(&mut chunks, text_bytes);
    }
    Ok(EncodedResponse { header_length, chunks })
}

/// Estimates the length of the JSON. The estimate is seldom too low.
#[must_use]
pub fn json_bytes_estimate(response: &InferenceResponse, encoding: &OutputFormatMap) -> usize {
    let text = response
        .outputs
        .iter()
        .filter(|output| encoding.format_of(&output.name) == OutputFormat::Json);
    let bytes = text.fold(0_usize, |sum, output| sum.saturating_add(output.data.len()));
    bytes.saturating_mul(3).saturating_add(256)
}

fn push_parameters(json: &mut Vec<u8>, parameters: &[Parameter]) {
    if parameters.is_empty() {
        return;
    }
    json.extend_from_slice(b",\"parameters\":{");
    for (index, parameter) in parameters.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        push_json_string(json, parameter.name.as_bytes());
        json.push(b':');
        push_parameter_value(json, &parameter.value);
    }
    json.push(b'}');
}

pub(super) fn push_parameter_value(json: &mut Vec<u8>, value: &ParameterValue) {
    match value {
        ParameterValue::Bool(value) => push_bool(json, *value),
        ParameterValue::Int64(value) => push_json_i64(json, *value),
        ParameterValue::Double(value) => push_json_f64(json, *value),
        ParameterValue::String(value) => push_json_string(json, value.as_bytes()),
    }
}

fn push_bool(json: &mut Vec<u8>, value: bool) {
    json.extend_from_slice(if value { b"true" } else { b"false" });
}

fn push_output(
    json: &mut Vec<u8>,
    chunks: &mut SmallVec<[Bytes; 2]>,
    output: &OutputTensor,
    form: OutputFormat,
) -> Result<(), Status> {
    let data = output.data.host_bytes().ok_or_else(|| {
        Status::internal(format!("output '{}' is not in memory that the CPU can read", output.name))
    })?;
    json.extend_from_slice(b"{\"name\":");
    push_json_string(json, output.name.as_bytes());
    json.extend_from_slice(b",\"datatype\":\"");
    json.extend_from_slice(output.datatype.protocol_name().as_bytes());
    json.extend_from_slice(b"\",\"shape\":");
    push_shape(json, &output.shape);
    match form {
        OutputFormat::Binary => {
            json.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            push_json_u64(json, u64::try_from(data.len()).unwrap_or(u64::MAX));
            json.extend_from_slice(b"}}");
            if !data.is_empty() {
                chunks.push(data.clone());
            }
        }
        OutputFormat::Json => {
            json.extend_from_slice(b",\"data\":[");
            push_elements(json, output, data)?;
            json.extend_from_slice(b"]}");
        }
        OutputFormat::Region => json.push(b'}'),
    }
    Ok(())
}

fn push_shape(json: &mut Vec<u8>, shape: &Shape) {
    json.push(b'[');
    for (index, dim) in shape.dims().iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        push_json_i64(json, *dim);
    }
    json.push(b']');
}

pub(super) fn push_elements(
    json: &mut Vec<u8>,
    output: &OutputTensor,
    data: &[u8],
) -> Result<(), Status> {
    if output.datatype == DataType::Bytes {
        return push_byte_strings(json, output, data);
    }
    if matches!(output.datatype, DataType::Fp16 | DataType::Bf16) {
        return Err(Status::invalid_argument(format!(
            "sending {} data via JSON is not supported. Please use the binary data format for \
             output",
            output.datatype
        )));
    }
    if output.shape.byte_size(output.datatype) != u64::try_from(data.len()).ok() {
        return Err(Status::internal(format!(
            "Failed to write 'data' field: output tensor shape does not match size of output for \
             '{}'",
            output.name
        )));
    }
    match output.datatype {
        DataType::Bool => each(json, data, |json, [value]: [u8; 1]| push_bool(json, value != 0)),
        DataType::Uint8 => each(json, data, |json, [value]| push_json_u64(json, value.into())),
        DataType::Uint16 => {
            each(json, data, |json, bytes| push_json_u64(json, u16::from_le_bytes(bytes).into()));
        }
        DataType::Uint32 => {
            each(json, data, |json, bytes| push_json_u64(json, u32::from_le_bytes(bytes).into()));
        }
        DataType::Uint64 => {
            each(json, data, |json, bytes| push_json_u64(json, u64::from_le_bytes(bytes)));
        }
        DataType::Int8 => {
            each(json, data, |json, bytes| push_json_i64(json, i8::from_le_bytes(bytes).into()));
        }
        DataType::Int16 => {
            each(json, data, |json, bytes| push_json_i64(json, i16::from_le_bytes(bytes).into()));
        }
        DataType::Int32 => {
            each(json, data, |json, bytes| push_json_i64(json, i32::from_le_bytes(bytes).into()));
        }
        DataType::Int64 => {
            each(json, data, |json, bytes| push_json_i64(json, i64::from_le_bytes(bytes)));
        }
        // As in Triton, a single-precision value is printed as the double that it widens to: 0.1
        // becomes 0.10000000149011612.
        DataType::Fp32 => {
            each(json, data, |json, bytes| push_json_f64(json, f32::from_le_bytes(bytes).into()));
        }
        DataType::Fp64 => {
            each(json, data, |json, bytes| push_json_f64(json, f64::from_le_bytes(bytes)));
        }
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => {}
    }
    Ok(())
}

/// Pushes each element of `SIZE` bytes, separated by commas.
fn each<const SIZE: usize>(
    json: &mut Vec<u8>,
    data: &[u8],
    mut push: impl FnMut(&mut Vec<u8>, [u8; SIZE]),
) {
    let (elements, _) = data.as_chunks::<SIZE>();
    let mut first = true;
    for element in elements {
        if !std::mem::replace(&mut first, false) {
            json.push(b',');
        }
        push(json, *element);
    }
}

fn push_byte_strings(json: &mut Vec<u8>, output: &OutputTensor, data: &[u8]) -> Result<(), Status> {
    let mismatch = || {
        Status::internal(format!(
            "output tensor shape does not match size of output for '{}'",
            output.name
        ))
    };
    let mut count: u64 = 0;
    for element in BytesElements::new(data) {
        if count > 0 {
            json.push(b',');
        }
        push_json_string(json, element.map_err(|_| mismatch())?);
        count = count.saturating_add(1);
    }
    if count == output.shape.element_count() { Ok(()) } else { Err(mismatch()) }
}
