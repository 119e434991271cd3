//! From a message to a request.

use galatea_infer::{InferenceRequest, InputTensor, Status};
use galatea_tensor::{Buffer, DataType, Shape};

use crate::classification::Classification;

use super::infer_message::{InferMessage, Input};
use super::parameters;

/// A version as clients write it: a number, or nothing for the newest that is
/// ready.
///
/// # Errors
///
/// `InvalidArgument` for anything else.
pub fn parse_version(version: &str) -> Result<Option<i64>, Status> {
    if version.is_empty() {
        return Ok(None);
    }
    match version.parse::<i64>() {
        Ok(number) if number >= 0 => Ok(Some(number)),
        Ok(_) => Err(Status::invalid_argument(format!(
            "invalid model version specified '{version}' , version should be an integral value > 0"
        ))),
        // `stol` is what the original's message names here.
        Err(_) => Err(Status::invalid_argument(format!(
            "failed to get model version from specified version string '{version}' (details: \
             stol), version should be an integral value > 0"
        ))),
    }
}

impl InferMessage<'_> {
    /// The request that this message asks for, with the model's version
    /// parsed by [`parse_version`], and which outputs its response has classes of.
    ///
    /// Tensors given as raw contents stay slices of the body; typed contents
    /// were gathered when the message was read.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for parameters of a wrong type, unknown datatypes,
    /// impossible shapes, missing or doubled data; `Unsupported` for shared
    /// memory.
    pub fn into_request(
        mut self,
        version: Option<i64>,
    ) -> Result<(InferenceRequest, Option<Classification>), Status> {
        let mut request = InferenceRequest {
            id: self.id.to_owned(),
            model_name: self.model_name.to_owned(),
            model_version: version,
            ..InferenceRequest::default()
        };
        parameters::apply(&mut request, &self.parameters)?;
        request.inputs = self.take_inputs()?;
        let classification = self.read_outputs(&mut request.outputs)?;
        request.classes = classification.as_ref().map(Classification::slot);
        Ok((request, classification))
    }

    fn take_inputs(&mut self) -> Result<Vec<InputTensor>, Status> {
        let inputs = std::mem::take(&mut self.inputs);
        let mut raw = self.raw.iter();
        inputs.into_iter().map(|input| self.input_tensor(input, &mut raw)).collect()
    }

    fn input_tensor<'r>(
        &self,
        input: Input<'_>,
        raw: &mut impl Iterator<Item = &'r &'r [u8]>,
    ) -> Result<InputTensor, Status> {
        let name = input.name;
        let datatype = DataType::from_protocol_name(input.datatype).ok_or_else(|| {
            Status::invalid_argument(format!(
                "unknown datatype '{}' of input '{name}' for model '{}'",
                input.datatype, self.model_name
            ))
        })?;
        let shape = Shape::new(&input.shape).map_err(|error| {
            Status::invalid_argument(format!(
                "input '{name}' for model '{}': {error}",
                self.model_name
            ))
        })?;
        let data = self.input_data(input, datatype, raw)?;
        Ok(InputTensor { name: name.to_owned(), datatype, shape, data })
    }

    fn input_data<'r>(
        &self,
        input: Input<'_>,
        datatype: DataType,
        raw: &mut impl Iterator<Item = &'r &'r [u8]>,
    ) -> Result<Buffer, Status> {
        let (name, model) = (input.name, self.model_name);
        if parameters::names_shared_memory(name, &input.parameters)? {
            return Err(parameters::no_shared_memory(name));
        }
        match input.contents {
            Some(_) if !self.raw.is_empty() => Err(Status::invalid_argument(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' \
                 for model '{model}'"
            ))),
            Some(contents) => contents.into_buffer(name, model, datatype),
            None => match raw.next() {
                Some(bytes) => {
                    Ok(Buffer::from_bytes(self.body.slice_ref(bytes)).part_of(self.body.len()))
                }
                None => Err(Status::invalid_argument(format!(
                    "unable to find data for input tensor '{name}' for model '{model}' in request."
                ))),
            },
        }
    }

    fn read_outputs(&self, names: &mut Vec<String>) -> Result<Option<Classification>, Status> {
        let mut counts = Vec::new();
        names.reserve(self.outputs.len());
        for output in &self.outputs {
            let shared = parameters::names_shared_memory(output.name, &output.parameters)?;
            match parameters::class_count(&output.parameters)? {
                Some(_) if shared => {
                    return Err(Status::invalid_argument(
                        "output can't set both 'shared_memory_region' and 'classification'",
                    ));
                }
                Some(count) => counts.push((output.name, count)),
                None if shared => return Err(parameters::no_shared_memory(output.name)),
                None => {}
            }
            names.push(output.name.to_owned());
        }
        Ok(Classification::of(counts.into_iter()))
    }
}
