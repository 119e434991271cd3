//! Decodes inference requests from HTTP bodies.

use bytes::Bytes;
use galatea_infer::{Code, InferenceRequest, Status};

use galatea_codec::classification::Classification;
use galatea_codec::limits::MessageLimits;
use galatea_codec::regions::OutputPostprocessing;

use super::bounds::DecodeContext;
use super::fields;
use super::input::{BinaryTensorReader, check_inputs, read_inputs};
use super::json::{JsonReader, JsonType, depth_exceeded};
use super::output::{OutputFormat, OutputFormatMap, RequestedOutputs, read_outputs};
use super::parameters::{RequestParameters, read_parameters};

/// The model named in a request's path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetModel {
    /// The model's name.
    pub model_name: String,
    /// The model's version; `None` selects the newest ready version.
    pub model_version: Option<i64>,
}

/// Decodes the body of an inference request.
///
/// The first `header_length` bytes of `body` are JSON. Binary tensors follow in input order and
/// become slices of `body`. If `header_length` is 0, the request is raw; see
/// [`decode_raw_infer`](super::decode_raw_infer).
///
/// # Errors
///
/// Usually `InvalidArgument`. `Exhausted` if the memory limit leaves no room for the tensors.
/// `Internal`, as in Triton, if elements of JSON `data` don't fit the datatype or the shape. For
/// tensors in regions, also `NotFound` and `Unsupported`.
pub fn decode_infer(
    body: &Bytes,
    header_length: usize,
    target: TargetModel,
    bounds: &DecodeContext<'_>,
) -> Result<(Box<InferenceRequest>, OutputFormatMap), Status> {
    check_json_size(header_length, bounds.limits)?;
    let Some((json, binary)) = body.split_at_checked(header_length) else {
        return Err(Status::invalid_argument(format!(
            "unexpected size for request JSON, expecting {} more bytes",
            header_length.saturating_sub(body.len())
        )));
    };
    let mut request = Box::<InferenceRequest>::default();
    request.model_name = target.model_name;
    request.model_version = target.model_version;
    let mut tail = BinaryTensorReader::new(body, header_length, binary.len());
    let members = read_members(json, &mut request, &mut tail, bounds)
        .map_err(|found| first_mistake(json, tail.inputs_seen(), found))?;
    tail.finish(&request.model_name)?;
    let default = members.parameters.default_form;
    members.parameters.apply(&mut request);
    let RequestedOutputs { names, forms, classes, regions } = members.outputs;
    request.outputs = names;
    let requests = request.outputs.iter().map(String::as_str).zip(classes);
    let classification = Classification::new(requests);
    request.classes = classification.as_ref().map(Classification::class_labels_cell);
    let encoding = OutputFormatMap::new(default, &request.outputs, &forms);
    let replaced = OutputPostprocessing::new(classification, regions, &request.inputs);
    request.device_outputs = replaced.outputs_on_device();
    Ok((request, encoding.replacing(replaced)))
}

pub(super) fn check_json_size(length: usize, limits: &MessageLimits) -> Result<(), Status> {
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    if length <= limits.input_bytes_max {
        return Ok(());
    }
    Err(super::errors::json_too_large(length, limits))
}

/// The top-level members that are not stored in the request immediately.
#[derive(Default)]
struct Members {
    parameters: RequestParameters,
    outputs: RequestedOutputs,
}

fn read_members(
    json: &[u8],
    request: &mut InferenceRequest,
    tail: &mut BinaryTensorReader<'_>,
    bounds: &DecodeContext<'_>,
) -> Result<Members, Status> {
    let mut reader = JsonReader::new(json);
    let mut seen = SeenMembers::default();
    let mut members = Members::default();
    if reader.value_type()? != JsonType::Object {
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
                request.inputs = read_inputs(&mut reader, tail, &request.model_name, bounds)?;
            }
            b"outputs" if !std::mem::replace(&mut seen.outputs, true) => {
                members.outputs = read_outputs(&mut reader, &bounds.region_access())?;
            }
            _ => reader.skip_value()?,
        }
    }
    reader.end()?;
    if seen.inputs { Ok(members) } else { Err(fields::missing("inputs")) }
}

/// Finds the error that Triton would report. Triton parses the whole text before it examines any
/// member. It then examines the ID, the parameters, and for each input its source, name, type and
/// shape.
#[cold]
fn first_mistake(json: &[u8], inputs_seen: usize, found: Status) -> Status {
    if found.code() == Code::Exhausted {
        return found;
    }
    match check_members(json, inputs_seen) {
        // Triton's reader has no depth limit.
        Err(mistake) if mistake != depth_exceeded() => mistake,
        Err(_) | Ok(()) => found,
    }
}

fn check_members(json: &[u8], inputs_seen: usize) -> Result<(), Status> {
    let mut reader = JsonReader::new(json);
    reader.skip_value()?;
    // For Triton, the text ends before a NUL.
    if reader.peek() != Some(0) {
        reader.end()?;
    }
    let mut reader = JsonReader::new(json);
    if reader.value_type()? != JsonType::Object {
        return Ok(());
    }
    let (mut id, mut parameters, mut inputs) = (None, None, None);
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match name.as_ref() {
            b"id" => fields::keep_first(&mut id, reader.clone()),
            b"parameters" => fields::keep_first(&mut parameters, reader.clone()),
            b"inputs" => fields::keep_first(&mut inputs, reader.clone()),
            _ => {}
        }
        reader.skip_value()?;
    }
    if let Some(mut id) = id {
        fields::string(&mut id, "id")?;
    }
    if let Some(mut parameters) = parameters {
        read_parameters(&mut parameters)?;
    }
    check_inputs(&mut inputs.ok_or_else(|| fields::missing("inputs"))?, inputs_seen)
}

/// The members read so far. If several have the same name, the first one counts.
#[derive(Default)]
struct SeenMembers {
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
            default_form: OutputFormat::Json,
            others: Vec::new(),
        }
    }
}
