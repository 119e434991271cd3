//! Decodes input tensors from JSON or from the binary data at the end of the body.

use std::borrow::Cow;

use bytes::Bytes;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{InputTensor, Status};
use galatea_tensor::{Buffer, DataType, Shape};

use galatea_codec::limits::MessageLimits;

use galatea_codec::charged_vec::ChargedVec;
use galatea_codec::limits::{check_name_length, too_many_dims_error};

use super::bounds::DecodeContext;
use super::elements::read_elements;
use super::fields;
use super::json::{JsonReader, JsonType};
use super::region::RegionParameters;

/// The binary tensors after the JSON, read in order.
pub(super) struct BinaryTensorReader<'a> {
    body: &'a Bytes,
    position: usize,
    remaining: usize,
    /// The number of inputs that were completely read; `None` before they are read.
    inputs: Option<usize>,
}

impl<'a> BinaryTensorReader<'a> {
    pub(super) const fn new(body: &'a Bytes, position: usize, remaining: usize) -> Self {
        Self { body, position, remaining, inputs: None }
    }

    /// Takes the next `length` bytes, or returns the number of missing bytes.
    fn take(&mut self, length: u64) -> Result<Bytes, u64> {
        let remaining = u64::try_from(self.remaining).unwrap_or(u64::MAX);
        let missing = length.saturating_sub(remaining);
        let Ok(length) = usize::try_from(length) else { return Err(missing) };
        let end = self.position.checked_add(length).filter(|_| missing == 0).ok_or(missing)?;
        let bytes = self.body.slice(self.position..end);
        self.position = end;
        self.remaining = self.remaining.saturating_sub(length);
        Ok(bytes)
    }

    /// The number of inputs that were examined. Later inputs may have errors that are not known
    /// yet.
    pub(super) fn inputs_seen(&self) -> usize {
        self.inputs.map_or(usize::MAX, |read| read.saturating_add(1))
    }

    /// Returns true if the body is charged by its owner.
    const fn is_charged(&self) -> bool {
        self.body.len() > MemoryAccount::SMALL_BYTES_MAX
    }

    /// Checks that no bytes are left.
    pub(super) fn finish(&self, model_name: &str) -> Result<(), Status> {
        if self.remaining == 0 {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "unexpected additional input data for model '{model_name}'"
        )))
    }
}

pub(super) fn read_inputs(
    reader: &mut JsonReader<'_>,
    tail: &mut BinaryTensorReader<'_>,
    model_name: &str,
    bounds: &DecodeContext<'_>,
) -> Result<Vec<InputTensor>, Status> {
    fields::array(reader, "inputs")?;
    // Most models have one input.
    let mut inputs: Vec<InputTensor> = Vec::with_capacity(1);
    let mut progress = reader.open();
    while reader.next_element(&mut progress)? {
        tail.inputs = Some(inputs.len());
        if inputs.len() >= MessageLimits::TENSORS_MAX {
            return Err(super::errors::too_many_tensors("inputs"));
        }
        let input = read_input(reader, bounds)?;
        let input = input.finish(tail, model_name, bounds)?;
        inputs.push(input);
    }
    tail.inputs = Some(inputs.len());
    Ok(inputs)
}

/// The members of an input read so far. They may come in any order.
#[derive(Default)]
struct PartialInput<'a> {
    name: Option<Cow<'a, str>>,
    datatype: Option<Option<DataType>>,
    shape: Option<CheckedShape>,
    data: Option<PartialData<'a>>,
    binary_size: Option<u64>,
    region: RegionParameters,
    has_parameters: bool,
}

/// A list of dimensions, or the error if they are not a valid shape.
struct CheckedShape(Result<Shape, Status>);

enum PartialData<'a> {
    /// The elements, which were read immediately because the type and shape were known.
    Elements(ChargedVec),
    /// The position of the array, which is read once the type and shape are known.
    Unread(JsonReader<'a>),
}

fn read_input<'a>(
    reader: &mut JsonReader<'a>,
    bounds: &DecodeContext<'_>,
) -> Result<PartialInput<'a>, Status> {
    let mut input = PartialInput::default();
    if reader.value_type()? != JsonType::Object {
        return Err(wrong_source(&input));
    }
    let mut progress = reader.open();
    while let Some(member) = reader.next_member(&mut progress)? {
        match member.as_ref() {
            b"name" => {
                let name = fields::string(reader, "name")?;
                check_name_length("input", name.len())?;
                fields::keep_first(&mut input.name, name);
            }
            b"datatype" => {
                let name = fields::string(reader, "datatype")?;
                fields::keep_first(&mut input.datatype, DataType::from_protocol_name(&name));
            }
            b"shape" => fields::keep_first(&mut input.shape, CheckedShape(read_shape(reader)?)),
            b"parameters" if !input.has_parameters && reader.value_type()? == JsonType::Object => {
                input.has_parameters = true;
                read_input_parameters(reader, &mut input)?;
            }
            b"data" if input.data.is_none() => {
                input.data = Some(read_data(reader, &input, bounds)?);
            }
            _ => reader.skip_value()?,
        }
    }
    Ok(input)
}

fn read_data<'a>(
    reader: &mut JsonReader<'a>,
    input: &PartialInput<'_>,
    bounds: &DecodeContext<'_>,
) -> Result<PartialData<'a>, Status> {
    if reader.value_type()? == JsonType::Array
        && let Some(name) = &input.name
        && let Some(Some(datatype)) = input.datatype
        && let Some(CheckedShape(Ok(shape))) = &input.shape
        && shape.element_count() > 0
    {
        return read_elements(reader, name, datatype, shape, bounds).map(PartialData::Elements);
    }
    let start = reader.clone();
    reader.skip_value()?;
    Ok(PartialData::Unread(start))
}

/// Checks the parts of the first inputs that Triton examines before their data, in Triton's order.
///
/// # Errors
///
/// The first error, which may be a syntax error.
pub(super) fn check_inputs(reader: &mut JsonReader<'_>, count: usize) -> Result<(), Status> {
    fields::array(reader, "inputs")?;
    let mut progress = reader.open();
    for _ in 0..count {
        if !reader.next_element(&mut progress)? {
            break;
        }
        check_input(reader.clone())?;
        reader.skip_value()?;
    }
    Ok(())
}

fn check_input(mut reader: JsonReader<'_>) -> Result<(), Status> {
    if reader.value_type()? != JsonType::Object {
        return Ok(());
    }
    let mut input = PartialInput::default();
    let (mut name, mut datatype, mut shape) = (None, None, None);
    let mut has_parameters = false;
    let mut progress = reader.open();
    while let Some(member) = reader.next_member(&mut progress)? {
        reader.peek();
        let place = reader.clone();
        match member.as_ref() {
            b"name" => fields::keep_first(&mut name, place),
            b"datatype" => fields::keep_first(&mut datatype, place),
            b"shape" => fields::keep_first(&mut shape, place),
            b"data" => fields::keep_first(&mut input.data, PartialData::Unread(place)),
            b"parameters" if !has_parameters && reader.value_type()? == JsonType::Object => {
                has_parameters = true;
                note_sources(place, &mut input)?;
            }
            _ => {}
        }
        reader.skip_value()?;
    }
    input.check_sources()?;
    fields::string(&mut name.ok_or_else(|| fields::missing("name"))?, "name")?;
    fields::string(&mut datatype.ok_or_else(|| fields::missing("datatype"))?, "datatype")?;
    read_shape(&mut shape.ok_or_else(|| fields::missing("shape"))?)?.map(drop).or(Ok(()))
}

/// Notes which sources the parameters name.
fn note_sources(mut reader: JsonReader<'_>, input: &mut PartialInput<'_>) -> Result<(), Status> {
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        if name.as_ref() == b"binary_data_size" {
            input.binary_size = Some(0);
            reader.skip_value()?;
        } else if !input.region.read(&name, &mut reader)? {
            reader.skip_value()?;
        }
    }
    Ok(())
}

fn read_shape(reader: &mut JsonReader<'_>) -> Result<Result<Shape, Status>, Status> {
    fields::array(reader, "shape")?;
    let mut dims = smallvec::SmallVec::<[i64; 8]>::new();
    let mut beyond = None;
    let mut progress = reader.open();
    while reader.next_element(&mut progress)? {
        let dim = fields::unsigned(reader, "shape")?;
        if dims.len() >= MessageLimits::DIMS_MAX {
            return Err(too_many_dims_error());
        }
        match i64::try_from(dim) {
            Ok(dim) => dims.push(dim),
            Err(_) => fields::keep_first(&mut beyond, dim),
        }
    }
    if let Some(dim) = beyond {
        return Ok(Err(Status::invalid_argument(format!(
            "shape with dimension {dim} contains one or more invalid dimensions"
        ))));
    }
    Ok(Shape::new(&dims).map_err(|_| {
        let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
        Status::invalid_argument(format!(
            "shape [{}] causes total element count to exceed maximum size of {}",
            dims.join(","),
            i64::MAX
        ))
    }))
}

fn read_input_parameters(
    reader: &mut JsonReader<'_>,
    input: &mut PartialInput<'_>,
) -> Result<(), Status> {
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match name.as_ref() {
            b"binary_data_size" => {
                let size = fields::unsigned(reader, "binary_data_size")?;
                fields::keep_first(&mut input.binary_size, size);
            }
            other => {
                if !input.region.read(other, reader)? {
                    reader.skip_value()?;
                }
            }
        }
    }
    Ok(())
}

impl PartialInput<'_> {
    fn check_sources(&self) -> Result<(), Status> {
        let sources = [self.data.is_some(), self.binary_size.is_some(), self.region.is_named()];
        let is_one = sources.into_iter().filter(|set| *set).count() == 1;
        if is_one { Ok(()) } else { Err(wrong_source(self)) }
    }

    fn finish(
        self,
        tail: &mut BinaryTensorReader<'_>,
        model_name: &str,
        bounds: &DecodeContext<'_>,
    ) -> Result<InputTensor, Status> {
        self.check_sources()?;
        let name = self.name.ok_or_else(|| fields::missing("name"))?.into_owned();
        let datatype = self.datatype.ok_or_else(|| fields::missing("datatype"))?;
        let CheckedShape(shape) = self.shape.ok_or_else(|| fields::missing("shape"))?;
        let shape = shape
            .map_err(|status| status.prefixed(format!("invalid shape for input '{name}': ")))?;
        let datatype = datatype.ok_or_else(|| {
            Status::invalid_argument(format!("invalid datatype for input {name}"))
        })?;
        // As in Triton, binary data hides errors in these parameters.
        if self.binary_size.is_none()
            && let Some(part) = self.region.part()?
        {
            let data = bounds.region_access().input_buffer(&part)?;
            return Ok(InputTensor { name, datatype, shape, data });
        }
        let data = match (self.data, self.binary_size) {
            (Some(PartialData::Elements(bytes)), _) => bytes.into_buffer(),
            (Some(PartialData::Unread(_)), _) if shape.element_count() == 0 => Buffer::empty(),
            (Some(PartialData::Unread(mut text)), _) => {
                fields::array(&mut text, "data")?;
                read_elements(&mut text, &name, datatype, &shape, bounds)?.into_buffer()
            }
            (None, size) => {
                let bytes = tail.take(size.unwrap_or(0));
                let bytes = bytes.map_err(|missing| too_few_bytes(&name, missing, model_name))?;
                let buffer = Buffer::from_bytes(bytes);
                if tail.is_charged() { buffer.mark_charged() } else { buffer }
            }
        };
        Ok(InputTensor { name, datatype, shape, data })
    }
}

fn too_few_bytes(name: &str, missing: u64, model_name: &str) -> Status {
    Status::invalid_argument(format!(
        "unexpected size for input '{name}', expecting {missing} additional bytes for model \
         '{model_name}'"
    ))
}

fn wrong_source(input: &PartialInput<'_>) -> Status {
    let sources = [
        (input.data.is_some(), " 'data'"),
        (input.binary_size.is_some(), " 'binary_data_size'"),
        (input.region.is_named(), " 'shared_memory_region'"),
    ];
    let set: String = sources.into_iter().filter_map(|(set, name)| set.then_some(name)).collect();
    let set = if set.is_empty() { " no field is set".to_owned() } else { format!(" set{set}") };
    Status::invalid_argument(format!(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in \
         'parameters', 'shared_memory_region' in 'parameters'. But{set}"
    ))
}
