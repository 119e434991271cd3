//! Decodes the parameters of an inference request.

use galatea_codec::limits::MessageLimits;
use galatea_infer::{CorrelationId, Parameter, ParameterValue, SequenceFlags, Status};

use super::fields;
use super::json::{JsonReader, JsonType, Number};
use super::output::OutputFormat;
use galatea_codec::limits;

/// A request's parameters, divided into those with a meaning to the server and the rest.
pub(super) struct RequestParameters {
    pub(super) correlation_id: CorrelationId,
    pub(super) sequence_flags: SequenceFlags,
    pub(super) priority: u64,
    pub(super) timeout_microseconds: u64,
    pub(super) default_form: OutputFormat,
    pub(super) others: Vec<Parameter>,
}

pub(super) fn read_parameters(reader: &mut JsonReader<'_>) -> Result<RequestParameters, Status> {
    if reader.value_type()? != JsonType::Object {
        return Err(Status::internal(
            "failed to get request params.: attempt to get members for non-object",
        ));
    }
    let mut parameters = RequestParameters::default();
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        let name = std::str::from_utf8(&name)
            .map_err(|_| Status::invalid_argument("parameter keys must be UTF-8"))?;
        read_parameter(reader, name, &mut parameters)?;
    }
    Ok(parameters)
}

fn read_parameter(
    reader: &mut JsonReader<'_>,
    name: &str,
    parameters: &mut RequestParameters,
) -> Result<(), Status> {
    match name {
        "sequence_id" => parameters.correlation_id = correlation_id(reader)?,
        "sequence_start" => parameters.sequence_flags.start = fields::boolean(reader, name)?,
        "sequence_end" => parameters.sequence_flags.end = fields::boolean(reader, name)?,
        "priority" => parameters.priority = fields::unsigned(reader, name)?,
        "timeout" => parameters.timeout_microseconds = fields::unsigned(reader, name)?,
        "binary_data_output" => {
            let binary = fields::boolean(reader, name)?;
            parameters.default_form = OutputFormat::of_binary_flag(binary);
        }
        _ if name.starts_with("triton_") => {
            return Err(Status::invalid_argument(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should \
                 not be specified.",
            ));
        }
        _ => {
            if parameters.others.len() >= MessageLimits::PARAMETERS_MAX {
                return Err(limits::too_many_parameters_error());
            }
            limits::check_name_length("parameter", name.len())?;
            let value = custom_value(reader, name)?;
            parameters.others.push(Parameter { name: name.to_owned(), value });
        }
    }
    Ok(())
}

fn correlation_id(reader: &mut JsonReader<'_>) -> Result<CorrelationId, Status> {
    match reader.value_type()? {
        JsonType::Number => match reader.number()?.as_unsigned() {
            Some(0) => Ok(CorrelationId::None),
            Some(number) => Ok(CorrelationId::Number(number)),
            None => Err(fields::wrong_type("sequence_id", "non-string as string")),
        },
        JsonType::Object | JsonType::Array | JsonType::String | JsonType::Bool | JsonType::Null => {
            let text = fields::string(reader, "sequence_id")?;
            if text.len() > MessageLimits::CORRELATION_ID_BYTES_MAX {
                return Err(Status::unsupported(
                    "string correlation ID cannot be longer than 128 characters",
                ));
            }
            if text.is_empty() {
                return Ok(CorrelationId::None);
            }
            Ok(CorrelationId::Text(text.into_owned()))
        }
    }
}

pub(super) fn custom_value(
    reader: &mut JsonReader<'_>,
    name: &str,
) -> Result<ParameterValue, Status> {
    match reader.value_type()? {
        JsonType::String => Ok(ParameterValue::String(reader.text()?.into_owned())),
        JsonType::Bool => Ok(ParameterValue::Bool(reader.boolean()?)),
        JsonType::Number => {
            let number: Number = reader.number()?;
            Ok(match number.as_signed() {
                Some(value) => ParameterValue::Int64(value),
                None => ParameterValue::Double(number.as_double()),
            })
        }
        JsonType::Object | JsonType::Array | JsonType::Null => {
            Err(Status::invalid_argument(format!(
                "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
            )))
        }
    }
}
