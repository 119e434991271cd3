//! Maps the members of a request's object to inputs and parameters.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use galatea_codec::limits::MessageLimits;
use galatea_infer::{InferenceRequest, Parameter, ParameterValue, Status};
use galatea_protocol::inference::{ModelConfig, ModelInput};

use super::tensor::{MappedInput, read_input};
use crate::bounds::DecodeContext;
use crate::json::{JsonReader, JsonType};
use crate::parameters::custom_value;
use galatea_codec::limits;

/// The member that contains further members, which are mapped like the request's own.
const NESTED: &str = "parameters";

/// Maps the members of one request.
pub(super) struct Mapping<'m> {
    request: InferenceRequest,
    /// The model's inputs by name.
    inputs: BTreeMap<&'m str, &'m ModelInput>,
    has_batch: bool,
    /// The number of parameter bytes that may still be copied because of repeated names.
    copies_left: usize,
    bounds: &'m DecodeContext<'m>,
}

/// The earlier use of a name, in case the name is repeated. As in Triton, if several members have
/// the same name, each of them gets the first value.
struct NameUse {
    /// The first input that the name was mapped to.
    input: Option<usize>,
    /// All parameters that the name was mapped to.
    parameters: Range<usize>,
    is_nested: bool,
}

impl<'m> Mapping<'m> {
    /// Creates a mapping to `request` for the model with this configuration. The body has `length`
    /// bytes.
    pub(super) fn new(
        request: InferenceRequest,
        config: &'m ModelConfig,
        length: usize,
        bounds: &'m DecodeContext<'m>,
    ) -> Self {
        let inputs = config.input.iter().map(|input| (input.name.as_str(), input));
        Self {
            request,
            inputs: inputs.collect(),
            has_batch: config.max_batch_size > 0,
            copies_left: length,
            bounds,
        }
    }

    pub(super) fn into_request(self) -> InferenceRequest {
        self.request
    }

    /// Maps the members of the request's object.
    pub(super) fn map_root(&mut self, reader: &mut JsonReader<'_>) -> Result<(), Status> {
        self.map_object(reader, true)
    }

    fn map_object(&mut self, reader: &mut JsonReader<'_>, is_root: bool) -> Result<(), Status> {
        let mut seen: BTreeMap<Cow<'_, [u8]>, NameUse> = BTreeMap::new();
        // As in Triton, the inputs of each object are counted separately.
        let mut input_bytes: u64 = 0;
        let mut position = reader.open();
        while let Some(name) = reader.next_member(&mut position)? {
            if let Some(mapped) = seen.get(&name) {
                reader.skip_value()?;
                self.repeat(mapped, &mut input_bytes)?;
                continue;
            }
            let (inputs, parameters) = (self.request.inputs.len(), self.request.parameters.len());
            let text = std::str::from_utf8(&name)
                .map_err(|_| Status::invalid_argument("parameter keys must be UTF-8"))?;
            let is_nested = is_root && text == NESTED;
            if is_nested {
                self.map_nested(reader)?;
            } else {
                self.map_member(text, reader, &mut input_bytes)?;
            }
            let input = (self.request.inputs.len() > inputs).then_some(inputs);
            let parameters = parameters..self.request.parameters.len();
            seen.insert(name, NameUse { input, parameters, is_nested });
        }
        Ok(())
    }

    fn map_nested(&mut self, reader: &mut JsonReader<'_>) -> Result<(), Status> {
        if self.inputs.contains_key(NESTED) {
            return Err(Status::invalid_argument(format!(
                "Keyword '{NESTED}' for nested schema also given as input tensor name"
            )));
        }
        if reader.value_type()? != JsonType::Object {
            return Err(Status::internal(format!(
                "Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object \
                 as object"
            )));
        }
        self.map_object(reader, false).map_err(in_nested)
    }

    fn map_member(
        &mut self,
        name: &str,
        reader: &mut JsonReader<'_>,
        input_bytes: &mut u64,
    ) -> Result<(), Status> {
        let Some(input) = self.inputs.get(name).copied() else {
            limits::check_name_length("parameter", name.len())?;
            let value = custom_value(reader, name)?;
            return self.add_parameter(Parameter { name: name.to_owned(), value });
        };
        let MappedInput { measured, tensor } =
            read_input(reader, input, self.has_batch, self.bounds)?;
        self.count_bytes(name, measured, input_bytes)?;
        let tensor = tensor.finish(self.bounds)?;
        if self.request.input(name).is_some() {
            return Err(self.exists(name));
        }
        self.request.inputs.push(tensor);
        Ok(())
    }

    /// Maps a repeated name again.
    fn repeat(&mut self, mapped: &NameUse, input_bytes: &mut u64) -> Result<(), Status> {
        let NameUse { input, parameters, is_nested } = mapped;
        if let Some(input) = input.and_then(|index| self.request.inputs.get(index)) {
            let (name, bytes) =
                (input.name.clone(), u64::try_from(input.data.len()).unwrap_or(u64::MAX));
            if *is_nested {
                return Err(in_nested(self.exists(&name)));
            }
            self.count_bytes(&name, bytes, input_bytes)?;
            return Err(self.exists(&name));
        }
        for index in parameters.clone() {
            let Some(parameter) = self.request.parameters.get(index) else { break };
            let text = match &parameter.value {
                ParameterValue::String(text) => text.len(),
                ParameterValue::Bool(_) | ParameterValue::Int64(_) | ParameterValue::Double(_) => 0,
            };
            let bytes = parameter.name.len().saturating_add(text);
            self.copies_left = self
                .copies_left
                .checked_sub(bytes)
                .ok_or_else(limits::too_many_parameters_error)?;
            self.add_parameter(parameter.clone())?;
        }
        Ok(())
    }

    fn add_parameter(&mut self, parameter: Parameter) -> Result<(), Status> {
        if self.request.parameters.len() >= MessageLimits::PARAMETERS_MAX {
            return Err(limits::too_many_parameters_error());
        }
        self.request.parameters.push(parameter);
        Ok(())
    }

    /// Adds the bytes of an input to the count of its object.
    fn count_bytes(&self, name: &str, bytes: u64, input_bytes: &mut u64) -> Result<(), Status> {
        let all = input_bytes.saturating_add(bytes);
        if bytes > 0 && all > self.bounds.limits.input_bytes_max {
            return Err(Status::invalid_argument(format!(
                "request size of {input_bytes} bytes with input '{name}' of size {bytes} bytes \
                 exceeds the maximum allowed input size of {}. Use --http-max-input-size to \
                 increase the limit.",
                self.bounds.limits.input_bytes_max
            )));
        }
        *input_bytes = all;
        Ok(())
    }

    fn exists(&self, name: &str) -> Status {
        Status::invalid_argument(format!("input '{name}' already exists in request"))
            .prefixed(self.request.log_prefix())
    }
}

/// Creates the error for a member of the nested object.
fn in_nested(status: Status) -> Status {
    status.prefixed(format!("Converting keyword: '{NESTED}': "))
}
