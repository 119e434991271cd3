//! Converts a message to a request.

use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{InferenceRequest, InputTensor, MalformedInput, Status};
use galatea_tensor::{Buffer, DataType, Shape};

use galatea_codec::classification::Classification;

use galatea_codec::regions::{OutputPostprocessing, SharedMemoryAccess};

use super::infer_message::{InferRequestMessage, WireInput};
use super::parameters;

impl InferRequestMessage<'_> {
    /// Converts the message to a request, and returns the outputs that the client receives in
    /// another form. `version` is the model version from [`parse_version`](galatea_codec::numbers::parse_version).
    ///
    /// Tensors from raw contents remain slices of the body. Typed contents were copied when the
    /// message was parsed. Tensors in regions stay there.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for parameters of the wrong type, and for missing or duplicate data. The
    /// model refuses inputs that have an unknown type or no shape. For tensors in regions, also
    /// `NotFound`, `Unsupported` and `Exhausted`.
    pub fn into_request(
        mut self,
        version: Option<i64>,
        access: &SharedMemoryAccess<'_>,
    ) -> Result<(Box<InferenceRequest>, OutputPostprocessing), Status> {
        let mut request = Box::<InferenceRequest>::default();
        request.id = self.id.to_owned();
        request.model_name = self.model_name.to_owned();
        request.model_version = version;
        parameters::apply(&mut request, &self.parameters)?;
        self.take_inputs(&mut request, access)?;
        let replaced = self.read_outputs(&mut request.outputs, &request.inputs, access)?;
        request.classes = replaced.classification().map(Classification::class_labels_cell);
        request.device_outputs = replaced.outputs_on_device();
        Ok((request, replaced))
    }

    fn take_inputs(
        &mut self,
        request: &mut InferenceRequest,
        access: &SharedMemoryAccess<'_>,
    ) -> Result<(), Status> {
        let inputs = std::mem::take(&mut self.inputs);
        let mut raw = self.raw.iter();
        request.inputs.reserve(inputs.len());
        for input in inputs {
            let name = input.name.to_owned();
            let datatype = DataType::from_protocol_name(input.datatype);
            let shape = Shape::new(&input.shape).ok();
            if datatype.is_none() || shape.is_none() {
                let malformed =
                    MalformedInput { name: name.clone(), datatype, dims: input.shape.to_vec() };
                request.malformed_inputs.push(malformed);
            }
            let data = self.input_data(input, datatype, &mut raw, access)?;
            let (datatype, shape) =
                (datatype.unwrap_or(DataType::Bytes), shape.unwrap_or_default());
            request.inputs.push(InputTensor { name, datatype, shape, data });
        }
        // Triton ignores extra contents over gRPC. Over HTTP, this is its message.
        if raw.next().is_some() {
            return Err(Status::invalid_argument(format!(
                "unexpected additional input data for model '{}'",
                self.model_name
            )));
        }
        Ok(())
    }

    fn input_data<'r>(
        &self,
        input: WireInput<'_>,
        datatype: Option<DataType>,
        raw: &mut impl Iterator<Item = &'r &'r [u8]>,
        access: &SharedMemoryAccess<'_>,
    ) -> Result<Buffer, Status> {
        let (name, model) = (input.name, self.model_name);
        if let Some(part) = parameters::region_part(name, &input.parameters)? {
            if input.contents.is_some() {
                return Err(Status::invalid_argument(format!(
                    "unexpected 'content' provided when using shared memory for input tensor \
                     '{name}' for model '{model}'"
                )));
            }
            return access.input_buffer(&part);
        }
        match input.contents {
            Some(_) if !self.raw.is_empty() => Err(Status::invalid_argument(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' \
                 for model '{model}'"
            ))),
            Some(contents) => contents.into_buffer(name, model, datatype),
            None => match raw.next() {
                Some(bytes) => {
                    let slice = Buffer::from_bytes(self.body.slice_ref(bytes));
                    let slice = slice.with_retained_bytes(self.body.len());
                    // The door charges the owner of a longer message.
                    let is_charged = self.body.len() > MemoryAccount::SMALL_BYTES_MAX;
                    Ok(if is_charged { slice.mark_charged() } else { slice })
                }
                None => Err(Status::invalid_argument(format!(
                    "unable to find data for input tensor '{name}' for model '{model}' in request."
                ))),
            },
        }
    }

    fn read_outputs(
        &self,
        names: &mut Vec<String>,
        inputs: &[InputTensor],
        access: &SharedMemoryAccess<'_>,
    ) -> Result<OutputPostprocessing, Status> {
        let (mut counts, mut regions) = (Vec::new(), Vec::new());
        names.reserve(self.outputs.len());
        for output in &self.outputs {
            let part = parameters::region_part(output.name, &output.parameters)?;
            match (parameters::class_count(&output.parameters)?, part) {
                (Some(_), Some(_)) => {
                    return Err(Status::invalid_argument(
                        "output can't set both 'shared_memory_region' and 'classification'",
                    ));
                }
                (count @ Some(_), None) => counts.push((output.name, count)),
                (None, Some(part)) => {
                    regions.push((output.name.to_owned(), access.output_region(&part)?));
                }
                (None, None) => {}
            }
            names.push(output.name.to_owned());
        }
        Ok(OutputPostprocessing::new(Classification::new(counts.into_iter()), regions, inputs))
    }
}
