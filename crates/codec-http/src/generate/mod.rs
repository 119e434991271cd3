//! The generate extension, which converts flat JSON to requests, and responses to flat JSON or
//! events.
//!
//! A member of a request's object that is named like an input becomes that input. Other members
//! become request parameters. The messages and the order of checks match Triton's.

mod mapping;
mod response;
mod tensor;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use galatea_control::ModelConfigDocument;
use galatea_infer::{InferenceRequest, Status};
use galatea_protocol::inference::ModelConfig;
use prost::Message;

use self::mapping::Mapping;
use super::bounds::DecodeContext;
use super::decode::{TargetModel, check_json_size};
use super::fields;
use super::json::{JsonReader, JsonType};

pub use response::{GenerateBodyFormat, encode_generate_error, encode_generate_response};

/// Decodes the body of a generate request to the model with this configuration.
///
/// # Errors
///
/// `InvalidArgument` for members that don't fit the model; `Internal` for malformed JSON and values
/// of the wrong type, as in Triton; `Exhausted` if the memory limit leaves no room for the tensors.
pub fn decode_generate(
    body: &Bytes,
    target: TargetModel,
    config: &ModelConfigDocument,
    bounds: &DecodeContext<'_>,
) -> Result<InferenceRequest, Status> {
    check_json_size(body.len(), bounds.limits)?;
    let mut request = InferenceRequest {
        model_name: target.model_name,
        model_version: target.model_version,
        ..InferenceRequest::default()
    };
    let Document { mut members, id } = Document::check(body)?;
    if let Some(mut id) = id {
        request.id = fields::string(&mut id, "id")?.into_owned();
    }
    let config = ModelConfig::decode(config.protobuf.as_slice())
        .map_err(|error| Status::internal(format!("unreadable model configuration: {error}")))?;
    let mut mapping = Mapping::new(request, &config, body.len(), bounds);
    mapping.map_root(&mut members)?;
    Ok(mapping.into_request())
}

/// The object of a syntactically valid request.
struct Document<'a> {
    /// The position before its first member.
    members: JsonReader<'a>,
    /// The value of the first member `id`.
    id: Option<JsonReader<'a>>,
}

impl<'a> Document<'a> {
    /// Checks the syntax of the whole object. A syntax error is reported before any other error.
    fn check(json: &'a [u8]) -> Result<Self, Status> {
        let mut reader = JsonReader::new(json);
        let is_object = reader.value_type()? == JsonType::Object;
        let members = reader.clone();
        let mut id = None;
        if is_object {
            let mut position = reader.open();
            while let Some(name) = reader.next_member(&mut position)? {
                if name.as_ref() == b"id" {
                    fields::keep_first(&mut id, reader.clone());
                }
                reader.skip_value()?;
            }
        } else {
            reader.skip_value()?;
        }
        reader.end()?;
        if is_object {
            Ok(Self { members, id })
        } else {
            Err(Status::internal("attempt to get members for non-object"))
        }
    }
}
