//! Encodes responses as flat JSON, either as documents or as server-sent events.

use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{InferenceResponse, OutputTensor, ParameterValue, Status};
use smallvec::{SmallVec, smallvec};

use crate::encode::{json_bytes_estimate, push_elements, push_parameter_value};
use crate::json::{push_json_i64, push_json_string};
use crate::output::{OutputFormat, OutputFormatMap};
use crate::response_charge::ResponseCharge;
use galatea_codec::documents::encode_error_json;

/// The form in which a response is sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum GenerateBodyFormat {
    /// The response is the whole body.
    Document,
    /// The response is one of the body's server-sent events.
    Event,
}

impl GenerateBodyFormat {
    fn begin(self, text: &mut Vec<u8>) {
        if self == Self::Event {
            text.extend_from_slice(b"data: ");
        }
    }

    fn end(self, text: &mut Vec<u8>) {
        if self == Self::Event {
            text.extend_from_slice(b"\n\n");
        }
    }
}

/// The value of a response member.
enum MemberValue<'a> {
    Text(&'a str),
    Version(i64),
    Parameter(&'a ParameterValue),
    Output(&'a OutputTensor),
}

/// Encodes a response. A long response is charged to `account` until it is dropped.
///
/// # Errors
///
/// `Exhausted` if the memory limit leaves no room for it; `InvalidArgument` if the type of an
/// output has no JSON form; `Internal` if an output's bytes don't fit its shape.
pub fn encode_generate_response(
    response: &InferenceResponse,
    form: GenerateBodyFormat,
    account: &Arc<MemoryAccount>,
) -> Result<Bytes, Status> {
    let encoding = OutputFormatMap::uniform(OutputFormat::Json);
    let charge = ResponseCharge::new(response, &encoding, account)?;
    let capacity = match &charge {
        None => json_bytes_estimate(response, &encoding),
        Some(charge) => charge.text_bytes_max,
    };
    let mut text = Vec::with_capacity(capacity);
    form.begin(&mut text);
    let mut separator = b'{';
    for (name, value) in members(response) {
        text.push(std::mem::replace(&mut separator, b','));
        push_json_string(&mut text, name.as_bytes());
        text.push(b':');
        push_value(&mut text, &value)?;
    }
    text.push(b'}');
    form.end(&mut text);
    let Some(charge) = charge else { return Ok(Bytes::from(text)) };
    text.shrink_to_fit();
    let length = text.capacity();
    let mut chunks = smallvec![Bytes::from(text)];
    charge.hold(&mut chunks, length);
    Ok(chunks.into_iter().next().unwrap_or_default())
}

/// Returns the members sorted by name. Among several with the same name, the response's own members
/// precede parameters, and parameters precede outputs.
fn members(response: &InferenceResponse) -> SmallVec<[(&str, MemberValue<'_>); 8]> {
    let id = Some(("id", MemberValue::Text(&response.id))).filter(|_| !response.id.is_empty());
    let own = [
        ("model_name", MemberValue::Text(&response.model_name)),
        ("model_version", MemberValue::Version(response.model_version)),
    ];
    let parameters = response.parameters.iter();
    let parameters = parameters
        .map(|parameter| (parameter.name.as_str(), MemberValue::Parameter(&parameter.value)));
    let outputs =
        response.outputs.iter().map(|output| (&*output.name, MemberValue::Output(output)));
    let mut members: SmallVec<[_; 8]> =
        id.into_iter().chain(own).chain(parameters).chain(outputs).collect();
    members.sort_by_key(|(name, _)| *name);
    members.dedup_by(|(again, _), (first, _)| again == first);
    members
}

fn push_value(text: &mut Vec<u8>, value: &MemberValue<'_>) -> Result<(), Status> {
    match value {
        MemberValue::Text(value) => push_json_string(text, value.as_bytes()),
        MemberValue::Version(version) => {
            text.push(b'"');
            push_json_i64(text, *version);
            text.push(b'"');
        }
        MemberValue::Parameter(value) => push_parameter_value(text, value),
        MemberValue::Output(output) => push_output(text, output)?,
    }
    Ok(())
}

/// Pushes the elements of an output. A single element is not wrapped in a list.
fn push_output(text: &mut Vec<u8>, output: &OutputTensor) -> Result<(), Status> {
    let data = output.data.host_bytes().ok_or_else(|| {
        Status::internal(format!("output '{}' is not in memory that the CPU can read", output.name))
    })?;
    let is_list = output.shape.element_count() != 1;
    if is_list {
        text.push(b'[');
    }
    push_elements(text, output, data)?;
    if is_list {
        text.push(b']');
    }
    Ok(())
}

/// Encodes an error that replaces a response.
#[must_use]
pub fn encode_generate_error(message: &str, form: GenerateBodyFormat) -> Bytes {
    let mut text = Vec::new();
    form.begin(&mut text);
    text.extend_from_slice(&encode_error_json(message));
    form.end(&mut text);
    Bytes::from(text)
}
