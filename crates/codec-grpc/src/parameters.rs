//! Converts request and tensor parameters.

use galatea_codec::limits::MessageLimits;
use galatea_infer::{CorrelationId, InferenceRequest, Parameter, ParameterValue, Status};

use galatea_codec::regions::SharedMemoryRange;

use super::infer_message::{EMPTY_FINAL_RESPONSE, Parameters, WireParameter};

/// Sets the request's fields from the parameters that the server interprets, and keeps the other
/// parameters for the backend.
pub(super) fn apply(
    request: &mut InferenceRequest,
    parameters: &Parameters<'_>,
) -> Result<(), Status> {
    for (&name, &choice) in parameters {
        match name {
            "sequence_id" => request.correlation_id = correlation_id(choice)?,
            "sequence_start" => request.sequence_flags.start = flag(name, choice)?,
            "sequence_end" => request.sequence_flags.end = flag(name, choice)?,
            "priority" => request.priority = priority(choice)?,
            "timeout" => request.timeout_microseconds = timeout(choice)?,
            EMPTY_FINAL_RESPONSE => {
                flag(name, choice)?;
            }
            _ if name.starts_with("triton_") => {
                return Err(Status::invalid_argument(format!(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only \
                     the following keys starting with 'triton_' are allowed: \
                     {EMPTY_FINAL_RESPONSE}"
                )));
            }
            _ => request
                .parameters
                .push(Parameter { name: name.to_owned(), value: custom(name, choice)? }),
        }
    }
    Ok(())
}

fn correlation_id(choice: WireParameter<'_>) -> Result<CorrelationId, Status> {
    match choice {
        // As in Triton, a negative number is the correlation ID with the same bits.
        WireParameter::Int64(0) | WireParameter::Text("") => Ok(CorrelationId::None),
        WireParameter::Int64(number) => Ok(CorrelationId::Number(number.cast_unsigned())),
        WireParameter::Text(text) if text.len() > MessageLimits::CORRELATION_ID_BYTES_MAX => {
            Err(Status::unsupported("string correlation ID cannot be longer than 128 characters"))
        }
        WireParameter::Text(text) => Ok(CorrelationId::Text(text.to_owned())),
        WireParameter::Unset
        | WireParameter::Bool(_)
        | WireParameter::Double(_)
        | WireParameter::Uint64(_) => Err(wrong_type("sequence_id", "int64_param or string_param")),
    }
}

fn flag(name: &str, choice: WireParameter<'_>) -> Result<bool, Status> {
    match choice {
        WireParameter::Bool(value) => Ok(value),
        WireParameter::Unset
        | WireParameter::Int64(_)
        | WireParameter::Text(_)
        | WireParameter::Double(_)
        | WireParameter::Uint64(_) => Err(wrong_type(name, "bool_param")),
    }
}

fn priority(choice: WireParameter<'_>) -> Result<u64, Status> {
    match choice {
        WireParameter::Int64(number) => u64::try_from(number).map_err(|_| {
            Status::invalid_argument("invalid value for 'priority', expected value >= 0.")
        }),
        WireParameter::Uint64(number) => Ok(number),
        WireParameter::Unset
        | WireParameter::Bool(_)
        | WireParameter::Text(_)
        | WireParameter::Double(_) => Err(wrong_type("priority", "int64_param or uint64_param")),
    }
}

/// Returns the timeout. As in Triton, a negative timeout is a huge one.
fn timeout(choice: WireParameter<'_>) -> Result<u64, Status> {
    match choice {
        WireParameter::Int64(number) => Ok(number.cast_unsigned()),
        WireParameter::Unset
        | WireParameter::Bool(_)
        | WireParameter::Text(_)
        | WireParameter::Double(_)
        | WireParameter::Uint64(_) => Err(wrong_type("timeout", "int64_param")),
    }
}

fn custom(name: &str, choice: WireParameter<'_>) -> Result<ParameterValue, Status> {
    match choice {
        WireParameter::Bool(value) => Ok(ParameterValue::Bool(value)),
        WireParameter::Int64(value) => Ok(ParameterValue::Int64(value)),
        WireParameter::Text(value) => Ok(ParameterValue::String(value.to_owned())),
        WireParameter::Double(value) => Ok(ParameterValue::Double(value)),
        WireParameter::Unset | WireParameter::Uint64(_) => {
            Err(wrong_type(name, "int64_param, bool_param, or string_param"))
        }
    }
}

fn wrong_type(name: &str, expected: &str) -> Status {
    Status::invalid_argument(format!(
        "invalid value type for '{name}' parameter, expected {expected}."
    ))
}

/// Returns the part of a region that contains a tensor, if the tensor is in a region. As in Triton,
/// a negative number is a huge one.
pub(super) fn region_part(
    tensor: &str,
    parameters: &Parameters<'_>,
) -> Result<Option<SharedMemoryRange>, Status> {
    if parameters.is_empty() {
        return Ok(None);
    }
    let region = match parameters.get("shared_memory_region") {
        None => None,
        Some(WireParameter::Text(region)) => Some((*region).to_owned()),
        Some(_) => return Err(wrong_tensor_type("shared_memory_region", tensor, "string_param")),
    };
    let number = |name: &str| match parameters.get(name) {
        None => Ok(None),
        Some(_) if region.is_none() => Err(Status::invalid_argument(format!(
            "'{name}' can not be specified without 'shared_memory_region' parameter for tensor \
             '{tensor}'"
        ))),
        Some(WireParameter::Int64(number)) => Ok(Some(number.cast_unsigned())),
        Some(_) => Err(wrong_tensor_type(name, tensor, "int64_param")),
    };
    let offset = number("shared_memory_offset")?.unwrap_or(0);
    let byte_size = number("shared_memory_byte_size")?;
    match (region, byte_size) {
        (None, _) => Ok(None),
        (Some(region), Some(byte_size)) => {
            Ok(Some(SharedMemoryRange { region, offset, byte_size }))
        }
        (Some(_), None) => Err(Status::invalid_argument(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' \
             parameter for tensor '{tensor}'"
        ))),
    }
}

fn wrong_tensor_type(name: &str, tensor: &str, expected: &str) -> Status {
    Status::invalid_argument(format!(
        "invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."
    ))
}

/// Returns the number of requested classes for an output, if any. As in Triton, it is truncated to
/// 32 bits.
pub(super) fn class_count(parameters: &Parameters<'_>) -> Result<Option<u32>, Status> {
    match parameters.get("classification") {
        None => Ok(None),
        // As in Triton, the message names the wrong limit.
        Some(WireParameter::Int64(..=0)) => Err(Status::invalid_argument(
            "invalid value for 'classification' parameter, expected >= 0",
        )),
        Some(WireParameter::Int64(count)) => {
            Ok(u32::try_from(count.unsigned_abs() & u64::from(u32::MAX)).ok())
        }
        Some(_) => Err(Status::invalid_argument(
            "invalid value type for 'classification' parameter, expected int64_param",
        )),
    }
}
