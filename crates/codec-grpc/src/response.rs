//! Encodes a response as a `ModelInferResponse`.
//!
//! Outputs are always raw contents, with one entry for each output in the same order. The typed
//! lists are never used.

use bytes::BufMut as _;
use galatea_infer::{InferenceResponse, OutputTensor, Parameter, ParameterValue, Status};
use prost::encoding::{WireType, encode_varint, encoded_len_varint};

use super::message::{MessageChunks, MessageWriter, put_length, put_text};

/// The estimated size of a small response's fields, which avoids reallocation.
const FIELDS_BYTES_ESTIMATE: usize = 192;

/// Encodes a response with its prefix. Large outputs are not copied.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit; `Internal` if an output is not in
/// CPU memory.
pub fn encode_infer_response(response: &InferenceResponse) -> Result<MessageChunks, Status> {
    let mut writer = MessageWriter::with_capacity(fields_bytes_estimate(response));
    put_names(&mut writer, response);
    put_outputs(&mut writer, response)?;
    writer.finish()
}

pub(super) fn fields_bytes_estimate(response: &InferenceResponse) -> usize {
    let small: usize = response.outputs.iter().map(|output| output.data.len().min(2048)).sum();
    small.saturating_add(FIELDS_BYTES_ESTIMATE)
}

/// Writes the fields of a `ModelInferResponse` that precede its outputs.
pub(super) fn put_names(writer: &mut MessageWriter, response: &InferenceResponse) {
    writer.string_field(1, &response.model_name);
    writer.string_field(2, itoa::Buffer::new().format(response.model_version));
    writer.string_field(3, &response.id);
    for parameter in &response.parameters {
        put_parameter(writer, parameter);
    }
}

/// Writes the outputs of a `ModelInferResponse`.
pub(super) fn put_outputs(
    writer: &mut MessageWriter,
    response: &InferenceResponse,
) -> Result<(), Status> {
    for output in &response.outputs {
        put_output(writer, output);
    }
    for output in &response.outputs {
        let bytes = output.data.host_bytes().ok_or_else(|| {
            Status::internal(format!("output '{}' is not in CPU memory", output.name))
        })?;
        writer.bytes_field(6, bytes, &output.data);
    }
    Ok(())
}

fn put_parameter(writer: &mut MessageWriter, parameter: &Parameter) {
    match &parameter.value {
        ParameterValue::Bool(value) => put_entry(writer, parameter, 2, |fields| {
            fields.extend_from_slice(&[BOOL_PARAM << 3, u8::from(*value)]);
        }),
        ParameterValue::Int64(value) => {
            let value = value.cast_unsigned();
            put_entry(writer, parameter, encoded_len_varint(value).saturating_add(1), |fields| {
                fields.push(INT64_PARAM << 3);
                encode_varint(value, fields);
            });
        }
        ParameterValue::Double(value) => put_entry(writer, parameter, 9, |fields| {
            fields.push(DOUBLE_PARAM << 3 | SIXTY_FOUR_BITS);
            fields.extend_from_slice(&value.to_le_bytes());
        }),
        ParameterValue::String(text) => {
            put_entry(writer, parameter, field_length(text.len()), |fields| {
                put_length(fields, STRING_PARAM, text.len());
                fields.extend_from_slice(text.as_bytes());
            });
        }
    }
}

// The field numbers of parameter values.
const BOOL_PARAM: u8 = 1;
const INT64_PARAM: u8 = 2;
const STRING_PARAM: u32 = 3;
const DOUBLE_PARAM: u8 = 4;

/// The wire type of a double in a key.
const SIXTY_FOUR_BITS: u8 = WireType::SixtyFourBit as u8;

/// Writes a parameter whose value has this length.
fn put_entry(
    writer: &mut MessageWriter,
    parameter: &Parameter,
    value_length: usize,
    put_value: impl FnOnce(&mut Vec<u8>),
) {
    let length = text_length(&parameter.name).saturating_add(field_length(value_length));
    writer.message_field(4, length, |fields| {
        put_text(fields, 1, &parameter.name);
        put_length(fields, 2, value_length);
        put_value(fields);
    });
}

fn put_output(writer: &mut MessageWriter, output: &OutputTensor) {
    let datatype = output.datatype.protocol_name();
    let dims = output.shape.dims();
    let shape_length: usize = dims.iter().map(|&dim| encoded_len_varint(dim.cast_unsigned())).sum();
    let shape_field = if dims.is_empty() { 0 } else { field_length(shape_length) };
    let length =
        text_length(&output.name).saturating_add(text_length(datatype)).saturating_add(shape_field);
    writer.message_field(5, length, |fields: &mut Vec<u8>| {
        put_text(fields, 1, &output.name);
        put_text(fields, 2, datatype);
        if !dims.is_empty() {
            put_length(fields, 3, shape_length);
            for &dim in dims {
                encode_varint(dim.cast_unsigned(), fields);
            }
        }
    });
}

/// Returns the encoded length of a length-delimited field with a number below 16: one byte for the
/// key, the length, and the bytes.
pub(super) fn field_length(bytes: usize) -> usize {
    let length = encoded_len_varint(u64::try_from(bytes).unwrap_or(u64::MAX));
    bytes.saturating_add(length).saturating_add(1)
}

pub(super) fn text_length(text: &str) -> usize {
    if text.is_empty() { 0 } else { field_length(text.len()) }
}

/// Encodes the response to `ModelConfig` around an encoded configuration.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit.
pub fn encode_config_response(config: &[u8]) -> Result<MessageChunks, Status> {
    let mut writer = MessageWriter::with_capacity(config.len().saturating_add(8));
    writer.message_field(1, config.len(), |fields| fields.put_slice(config));
    writer.finish()
}
