//! Encodes stream responses as `ModelStreamInferResponse` messages.
//!
//! Each message names its request. All messages except refusals contain the parameter
//! `triton_final_response`, which tells the client whether this is the request's last response.

use galatea_infer::{InferenceResponse, Status};

use super::infer_message::InferRequestMessage;
use super::message::{MessageChunks, MessageWriter, put_length, put_text};
use super::response::{field_length, fields_bytes_estimate, put_names, put_outputs, text_length};

/// The parameter that marks a request's last response.
const FINAL_RESPONSE: &str = "triton_final_response";
/// The number of the field that contains the error of a failed request.
const ERROR_MESSAGE: u32 = 1;
/// The number of the field that contains the response.
const INFER_RESPONSE: u32 = 2;

/// Identifies a request in messages that its model did not produce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestNames {
    /// The client's identifier.
    pub id: String,
    /// The model's name.
    pub model_name: String,
    /// The version as the client wrote it; empty for the newest version.
    pub model_version: String,
}

impl RequestNames {
    /// Creates the tag of a request.
    #[must_use]
    pub fn new(message: &InferRequestMessage<'_>) -> Self {
        Self {
            id: message.id().to_owned(),
            model_name: message.model_name().to_owned(),
            model_version: message.model_version().to_owned(),
        }
    }
}

/// Encodes a response with its prefix. Large outputs are not copied.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit; `Internal` if an output is not in
/// CPU memory.
pub fn encode_stream_response(
    response: &InferenceResponse,
    is_final: bool,
) -> Result<MessageChunks, Status> {
    let mut writer = MessageWriter::with_outer_field(fields_bytes_estimate(response));
    put_names(&mut writer, response);
    put_finality(&mut writer, is_final);
    put_outputs(&mut writer, response)?;
    writer.wrap_in_field(INFER_RESPONSE)?;
    writer.finish()
}

/// Encodes the end of a request that ended without a final response.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit.
pub fn encode_empty_final_response(tag: &RequestNames) -> Result<MessageChunks, Status> {
    let mut writer = tagged(tag, true);
    writer.wrap_in_field(INFER_RESPONSE)?;
    writer.finish()
}

/// Encodes the error of a request on a stream, which ends the request if `is_final`.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit.
pub fn encode_stream_failure(
    tag: &RequestNames,
    message: &str,
    is_final: bool,
) -> Result<MessageChunks, Status> {
    let mut writer = tagged(tag, is_final);
    writer.wrap_in_field(INFER_RESPONSE)?;
    writer.string_field(ERROR_MESSAGE, message);
    writer.finish()
}

/// Encodes the error for a request that reached no model. As in Triton, the error has only the
/// client's identifier.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit.
pub fn encode_unrouted_error(id: &str, message: &str) -> Result<MessageChunks, Status> {
    let mut writer = MessageWriter::with_outer_field(id.len().saturating_add(64));
    writer.string_field(3, id);
    writer.wrap_in_field(INFER_RESPONSE)?;
    writer.string_field(ERROR_MESSAGE, message);
    writer.finish()
}

fn tagged(tag: &RequestNames, is_final: bool) -> MessageWriter {
    let names = [&tag.id, &tag.model_name, &tag.model_version];
    let bytes = names.iter().fold(64_usize, |sum, name| sum.saturating_add(name.len()));
    let mut writer = MessageWriter::with_outer_field(bytes);
    writer.string_field(1, &tag.model_name);
    writer.string_field(2, &tag.model_version);
    writer.string_field(3, &tag.id);
    put_finality(&mut writer, is_final);
    writer
}

/// Writes an entry of the parameter map, which consists of a name and a value whose first field is
/// the boolean.
fn put_finality(writer: &mut MessageWriter, is_final: bool) {
    let value = [0x08, u8::from(is_final)];
    let length = text_length(FINAL_RESPONSE).saturating_add(field_length(value.len()));
    writer.message_field(4, length, |fields| {
        put_text(fields, 1, FINAL_RESPONSE);
        put_length(fields, 2, value.len());
        fields.extend_from_slice(&value);
    });
}
