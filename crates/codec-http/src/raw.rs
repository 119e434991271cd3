//! Decodes raw requests, in which the body contains the bytes of the only input.

use bytes::Bytes;
use galatea_codec::raw::{RawInputInfo, tensor_from_raw_body};
use galatea_control::ModelConfigDocument;
use galatea_infer::{InferenceRequest, Status};

use super::bounds::DecodeContext;
use super::decode::TargetModel;
use super::output::{OutputFormat, OutputFormatMap};

/// The provisional name of a raw request's input, until the name from the model's configuration is
/// known. As in Triton, errors about the input's byte size contain this name.
const RAW_INPUT: &str = "raw_input";

/// Decodes a raw request. `body` is the only input of the model with this configuration, with batch
/// size 1. Outputs are sent in binary form.
///
/// # Errors
///
/// `InvalidArgument` unless the model has exactly one input whose shape follows from
/// the length of the body.
pub fn decode_raw_infer(
    body: &Bytes,
    target: TargetModel,
    config: &ModelConfigDocument,
    bounds: &DecodeContext<'_>,
) -> Result<(Box<InferenceRequest>, OutputFormatMap), Status> {
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    if length > bounds.limits.input_bytes_max {
        return Err(super::errors::raw_too_large(length, bounds.limits));
    }
    let mut request = Box::<InferenceRequest>::default();
    request.model_name = target.model_name;
    request.model_version = target.model_version;
    let given = RawInputInfo { name: RAW_INPUT, input_count: 1 };
    let input =
        tensor_from_raw_body(body, given, &request.model_name, config, Some(bounds.account))
            .map_err(|status| status.prefixed(request.log_prefix()))?;
    request.inputs.push(input);
    Ok((request, OutputFormatMap::uniform(OutputFormat::Binary)))
}
