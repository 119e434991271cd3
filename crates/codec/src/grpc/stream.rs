//! The messages that a stream of inferences sends: `ModelStreamInferResponse`.
//!
//! Each carries the parameter `triton_final_response`, so that a client knows
//! when nothing more follows on a request, and names the request that it
//! belongs to.

use galatea_infer::{InferenceResponse, Status};

use super::infer_message::InferMessage;
use super::message::{MessageChunks, MessageWriter, put_length, put_text};
use super::response::{fields_bytes_guess, length_of, put_names, put_outputs, text_length};

/// The parameter that says whether nothing more follows on a request.
const FINAL_RESPONSE: &str = "triton_final_response";
/// Number of the field that says why a request failed.
const ERROR_MESSAGE: u32 = 1;
/// Number of the field with the response.
const INFER_RESPONSE: u32 = 2;

/// What names a request in messages that its model did not make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTag {
    /// The client's identifier.
    pub id: String,
    /// The model's name.
    pub model_name: String,
    /// The version as the client wrote it, so empty if it asked for the newest.
    pub model_version: String,
}

impl RequestTag {
    /// What names this request.
    #[must_use]
    pub fn new(message: &InferMessage<'_>) -> Self {
        Self {
            id: message.id().to_owned(),
            model_name: message.model_name().to_owned(),
            model_version: message.model_version().to_owned(),
        }
    }
}

/// Encodes a response with its prefix; large outputs are not copied.
///
/// # Errors
///
/// `InvalidArgument` if the message would be longer than gRPC can say,
/// `Internal` if an output lies where the CPU can't read it.
pub fn encode_stream_response(
    response: &InferenceResponse,
    is_final: bool,
) -> Result<MessageChunks, Status> {
    let mut writer = MessageWriter::within(fields_bytes_guess(response));
    put_names(&mut writer, response);
    put_finality(&mut writer, is_final);
    put_outputs(&mut writer, response)?;
    writer.become_field(INFER_RESPONSE)?;
    writer.finish()
}

/// Encodes the end of a request whose model sends no last response.
///
/// # Errors
///
/// `InvalidArgument` if the message would be longer than gRPC can say.
pub fn encode_stream_end(tag: &RequestTag) -> Result<MessageChunks, Status> {
    let mut writer = tagged(tag, true);
    writer.become_field(INFER_RESPONSE)?;
    writer.finish()
}

/// Encodes a failure.
///
/// # Errors
///
/// `InvalidArgument` if the message would be longer than gRPC can say.
pub fn encode_stream_failure(
    tag: &RequestTag,
    message: &str,
    is_final: bool,
) -> Result<MessageChunks, Status> {
    let mut writer = tagged(tag, is_final);
    writer.become_field(INFER_RESPONSE)?;
    writer.text(ERROR_MESSAGE, message);
    writer.finish()
}

fn tagged(tag: &RequestTag, is_final: bool) -> MessageWriter {
    let names = [&tag.id, &tag.model_name, &tag.model_version];
    let bytes = names.iter().fold(64_usize, |sum, name| sum.saturating_add(name.len()));
    let mut writer = MessageWriter::within(bytes);
    writer.text(1, &tag.model_name);
    writer.text(2, &tag.model_version);
    writer.text(3, &tag.id);
    put_finality(&mut writer, is_final);
    writer
}

/// An entry of the map of parameters: a name, and a value whose first field is
/// the boolean.
fn put_finality(writer: &mut MessageWriter, is_final: bool) {
    let value = [0x08, u8::from(is_final)];
    let length = text_length(FINAL_RESPONSE).saturating_add(length_of(value.len()));
    writer.nested(4, length, |fields| {
        put_text(fields, 1, FINAL_RESPONSE);
        put_length(fields, 2, value.len());
        fields.extend_from_slice(&value);
    });
}
