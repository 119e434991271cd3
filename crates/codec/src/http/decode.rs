//! Inference requests from HTTP bodies.

use bytes::Bytes;
use galatea_infer::{InferenceRequest, Status};

use crate::classification::Classification;
use crate::limits::Limits;

use super::fields;
use super::input::{BinaryTail, read_inputs};
use super::json::{Kind, Reader};
use super::output::{OutputEncoding, OutputForm, RequestedOutputs, read_outputs};
use super::parameters::{RequestParameters, read_parameters};

/// The model that a request's path names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The model's name.
    pub model_name: String,
    /// Its version; `None` for the newest that is ready.
    pub model_version: Option<i64>,
}

/// Decodes the body of an inference request.
///
/// The first `header_length` bytes of `body` are JSON, what follows are
/// binary tensors in the order of the inputs; they become slices of `body`.
/// A `header_length` of 0 is a raw request, see
/// [`decode_raw_infer`](super::decode_raw_infer).
///
/// # Errors
///
/// Mostly `InvalidArgument`. `Internal` where the original says so: elements
/// of JSON `data` that don't fit the datatype or the shape. `Unsupported`
/// for shared memory.
pub fn decode_infer(
    body: &Bytes,
    header_length: usize,
    target: Target,
    limits: &Limits,
) -> Result<(InferenceRequest, OutputEncoding), Status> {
    check_json_size(header_length, limits)?;
    let Some((json, binary)) = body.split_at_checked(header_length) else {
        return Err(Status::invalid_argument(format!(
            "unexpected size for request JSON, expecting {} more bytes",
            header_length.saturating_sub(body.len())
        )));
    };
    let mut request = InferenceRequest {
        model_name: target.model_name,
        model_version: target.model_version,
        ..InferenceRequest::default()
    };
    let mut tail = BinaryTail::new(body, header_length, binary.len());
    let members = read_members(json, &mut request, &mut tail, limits)?;
    tail.finish(&request.model_name)?;
    let default = members.parameters.default_form;
    members.parameters.apply(&mut request);
    let RequestedOutputs { names, forms, classes } = members.outputs;
    request.outputs = names;
    let mentions = request.outputs.iter().map(String::as_str).zip(classes);
    let classification = Classification::of(mentions);
    request.classes = classification.as_ref().map(Classification::slot);
    let encoding = OutputEncoding::new(default, &request.outputs, &forms);
    Ok((request, encoding.with_classification(classification)))
}

fn check_json_size(length: usize, limits: &Limits) -> Result<(), Status> {
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    if length <= limits.input_bytes_max {
        return Ok(());
    }
    Err(super::errors::json_too_large(length, limits))
}

/// What of the top level isn't put into the request at once.
#[derive(Default)]
struct Members {
    parameters: RequestParameters,
    outputs: RequestedOutputs,
}

fn read_members(
    json: &[u8],
    request: &mut InferenceRequest,
    tail: &mut BinaryTail<'_>,
    limits: &Limits,
) -> Result<Members, Status> {
    let mut reader = Reader::new(json);
    let mut seen = Seen::default();
    let mut members = Members::default();
    if reader.kind()? != Kind::Object {
        reader.skip_value()?;
        reader.end()?;
        return Err(fields::missing("inputs"));
    }
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match name.as_ref() {
            b"id" if !std::mem::replace(&mut seen.id, true) => {
                request.id = fields::string(&mut reader, "id")?.into_owned();
            }
            b"parameters" if !std::mem::replace(&mut seen.parameters, true) => {
                members.parameters = read_parameters(&mut reader)?;
            }
            b"inputs" if !std::mem::replace(&mut seen.inputs, true) => {
                request.inputs = read_inputs(&mut reader, tail, &request.model_name, limits)?;
            }
            b"outputs" if !std::mem::replace(&mut seen.outputs, true) => {
                members.outputs = read_outputs(&mut reader)?;
            }
            _ => reader.skip_value()?,
        }
    }
    reader.end()?;
    if seen.inputs { Ok(members) } else { Err(fields::missing("inputs")) }
}

/// Which members were met: of several with one name the first counts.
#[derive(Default)]
struct Seen {
    id: bool,
    parameters: bool,
    inputs: bool,
    outputs: bool,
}

impl RequestParameters {
    fn apply(self, request: &mut InferenceRequest) {
        request.correlation_id = self.correlation_id;
        request.sequence_flags = self.sequence_flags;
        request.priority = self.priority;
        request.timeout_microseconds = self.timeout_microseconds;
        request.parameters = self.others;
    }
}

impl Default for RequestParameters {
    fn default() -> Self {
        Self {
            correlation_id: Default::default(),
            sequence_flags: Default::default(),
            priority: 0,
            timeout_microseconds: 0,
            default_form: OutputForm::Json,
            others: Vec::new(),
        }
    }
}
