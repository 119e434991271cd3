//! Parameters of requests and of tensors.

use galatea_infer::{CorrelationId, InferenceRequest, Parameter, ParameterValue, Status};

use super::infer_message::{Choice, Parameters};

/// The one parameter with the reserved prefix that clients may set. It
/// concerns streams alone, so here its type is checked and nothing else.
pub(super) const EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// The longest correlation ID, as backends get it in a tensor.
const CORRELATION_ID_BYTES_MAX: usize = 128;

/// Gives the parameters with a meaning to the request's fields and keeps the
/// others for the backend.
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

fn correlation_id(choice: Choice<'_>) -> Result<CorrelationId, Status> {
    match choice {
        // A negative number is the correlation ID with the same bits, as in
        // the original.
        Choice::Int64(0) | Choice::Text("") => Ok(CorrelationId::None),
        Choice::Int64(number) => Ok(CorrelationId::Number(number.cast_unsigned())),
        Choice::Text(text) if text.len() > CORRELATION_ID_BYTES_MAX => {
            Err(Status::unsupported("string correlation ID cannot be longer than 128 characters"))
        }
        Choice::Text(text) => Ok(CorrelationId::Text(text.to_owned())),
        Choice::Unset | Choice::Bool(_) | Choice::Double(_) | Choice::Uint64(_) => {
            Err(wrong_type("sequence_id", "int64_param or string_param"))
        }
    }
}

fn flag(name: &str, choice: Choice<'_>) -> Result<bool, Status> {
    match choice {
        Choice::Bool(value) => Ok(value),
        Choice::Unset
        | Choice::Int64(_)
        | Choice::Text(_)
        | Choice::Double(_)
        | Choice::Uint64(_) => Err(wrong_type(name, "bool_param")),
    }
}

fn priority(choice: Choice<'_>) -> Result<u64, Status> {
    match choice {
        Choice::Int64(number) => u64::try_from(number).map_err(|_| {
            Status::invalid_argument("invalid value for 'priority', expected value >= 0.")
        }),
        Choice::Uint64(number) => Ok(number),
        Choice::Unset | Choice::Bool(_) | Choice::Text(_) | Choice::Double(_) => {
            Err(wrong_type("priority", "int64_param or uint64_param"))
        }
    }
}

/// A negative timeout is refused, where the original would wait for half a
/// million years.
fn timeout(choice: Choice<'_>) -> Result<u64, Status> {
    match choice {
        Choice::Int64(number) => u64::try_from(number).map_err(|_| {
            Status::invalid_argument("invalid value for 'timeout', expected value >= 0.")
        }),
        Choice::Unset
        | Choice::Bool(_)
        | Choice::Text(_)
        | Choice::Double(_)
        | Choice::Uint64(_) => Err(wrong_type("timeout", "int64_param")),
    }
}

fn custom(name: &str, choice: Choice<'_>) -> Result<ParameterValue, Status> {
    match choice {
        Choice::Bool(value) => Ok(ParameterValue::Bool(value)),
        Choice::Int64(value) => Ok(ParameterValue::Int64(value)),
        Choice::Text(value) => Ok(ParameterValue::String(value.to_owned())),
        Choice::Double(value) => Ok(ParameterValue::Double(value)),
        Choice::Unset | Choice::Uint64(_) => {
            Err(wrong_type(name, "int64_param, bool_param, or string_param"))
        }
    }
}

fn wrong_type(name: &str, expected: &str) -> Status {
    Status::invalid_argument(format!(
        "invalid value type for '{name}' parameter, expected {expected}."
    ))
}

/// Whether a tensor is to be in shared memory.
pub(super) fn names_shared_memory(
    tensor: &str,
    parameters: &Parameters<'_>,
) -> Result<bool, Status> {
    if parameters.is_empty() {
        return Ok(false);
    }
    let region = parameters.get("shared_memory_region");
    if let Some(region) = region {
        let Choice::Text(_) = region else {
            return Err(wrong_tensor_type("shared_memory_region", tensor, "string_param"));
        };
    }
    for name in ["shared_memory_offset", "shared_memory_byte_size"] {
        match parameters.get(name) {
            None => {}
            Some(_) if region.is_none() => {
                return Err(Status::invalid_argument(format!(
                    "'{name}' can not be specified without 'shared_memory_region' parameter for \
                     tensor '{tensor}'"
                )));
            }
            Some(Choice::Int64(_)) => {}
            Some(_) => return Err(wrong_tensor_type(name, tensor, "int64_param")),
        }
    }
    if region.is_none() {
        return Ok(false);
    }
    if !parameters.contains_key("shared_memory_byte_size") {
        return Err(Status::invalid_argument(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' \
             parameter for tensor '{tensor}'"
        )));
    }
    Ok(true)
}

/// Refuses a tensor in shared memory, after the mistakes that would be refused
/// in any case.
pub(super) fn no_shared_memory(tensor: &str) -> Status {
    Status::unsupported(format!(
        "'shared_memory_region' for tensor '{tensor}' is not supported: this server has no client \
         shared memory"
    ))
}

fn wrong_tensor_type(name: &str, tensor: &str, expected: &str) -> Status {
    Status::invalid_argument(format!(
        "invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."
    ))
}

/// How many classes of an output are wanted, if any are.
pub(super) fn class_count(parameters: &Parameters<'_>) -> Result<Option<u64>, Status> {
    match parameters.get("classification") {
        None => Ok(None),
        // Like the original, whose text names the limit wrongly.
        Some(Choice::Int64(..=0)) => Err(Status::invalid_argument(
            "invalid value for 'classification' parameter, expected >= 0",
        )),
        Some(Choice::Int64(count)) => Ok(Some(count.unsigned_abs())),
        Some(_) => Err(Status::invalid_argument(
            "invalid value type for 'classification' parameter, expected int64_param",
        )),
    }
}
