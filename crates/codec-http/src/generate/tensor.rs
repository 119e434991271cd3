//! Converts a value to a tensor whose shape follows from the number of elements.

use galatea_infer::{InputTensor, Status};
use galatea_protocol::inference::ModelInput;
use galatea_tensor::{Buffer, DataType, Shape};
use smallvec::SmallVec;

use crate::bounds::DecodeContext;
use crate::elements::{read_elements, read_strings};
use crate::json::{JsonReader, JsonType};
use galatea_codec::charged_vec::ChargedVec;

/// An input whose size is known.
pub(super) struct MappedInput<'a, 'm> {
    /// The length of the input's tensor in bytes.
    pub(super) measured: u64,
    pub(super) tensor: PendingTensor<'a, 'm>,
}

/// A tensor that is created once its size has been accepted.
pub(super) struct PendingTensor<'a, 'm> {
    input: &'m ModelInput,
    datatype: DataType,
    has_batch: bool,
    /// The number of elements in the value's outermost array; a scalar counts as one.
    count: u64,
    data: PendingData<'a>,
}

enum PendingData<'a> {
    /// The value has no elements.
    Nothing,
    Strings(ChargedVec),
    /// Numbers, at this position in the body.
    Numbers(JsonReader<'a>),
}

/// Measures a value and moves the reader past it.
pub(super) fn read_input<'a, 'm>(
    reader: &mut JsonReader<'a>,
    input: &'m ModelInput,
    has_batch: bool,
    bounds: &DecodeContext<'_>,
) -> Result<MappedInput<'a, 'm>, Status> {
    let datatype = DataType::from_config_number(input.data_type)
        .ok_or_else(|| Status::internal("model configuration with an unknown datatype"))?;
    let mut value = reader.clone();
    let count = count_elements(reader)?;
    let (measured, data) = match datatype.byte_size() {
        None => {
            let strings = read_strings(&mut value, bounds, |_| Ok(()))?;
            let length = u64::try_from(strings.len()).unwrap_or(u64::MAX);
            (length, PendingData::Strings(strings))
        }
        Some(size) => {
            let size = u64::try_from(size).unwrap_or(u64::MAX);
            (count.saturating_mul(size), PendingData::Numbers(value))
        }
    };
    let data = if measured == 0 { PendingData::Nothing } else { data };
    let tensor = PendingTensor { input, datatype, has_batch, count, data };
    Ok(MappedInput { measured, tensor })
}

/// Skips a value and counts the elements of its outermost array.
fn count_elements(reader: &mut JsonReader<'_>) -> Result<u64, Status> {
    if reader.value_type()? != JsonType::Array {
        reader.skip_value()?;
        return Ok(1);
    }
    let mut count: u64 = 0;
    let mut position = reader.open();
    while reader.next_element(&mut position)? {
        reader.skip_value()?;
        count = count.saturating_add(1);
    }
    Ok(count)
}

impl PendingTensor<'_, '_> {
    /// Creates the tensor.
    pub(super) fn finish(self, bounds: &DecodeContext<'_>) -> Result<InputTensor, Status> {
        let name = &self.input.name;
        let (shape, data) = match self.data {
            // As in later releases of Triton, the tensor has no dimensions, which no model accepts.
            PendingData::Nothing => (Some(SmallVec::new()), Buffer::empty()),
            PendingData::Strings(strings) => {
                (dims_of(self.input, self.has_batch, self.count), strings.into_buffer())
            }
            PendingData::Numbers(mut value) => {
                let dims = dims_of(self.input, self.has_batch, self.count);
                let shape = as_shape(name, dims)?;
                let data = read_elements(&mut value, name, self.datatype, &shape, bounds)?;
                let data = data.into_buffer();
                return Ok(InputTensor {
                    name: name.clone(),
                    datatype: self.datatype,
                    shape,
                    data,
                });
            }
        };
        let shape = as_shape(name, shape)?;
        Ok(InputTensor { name: name.clone(), datatype: self.datatype, shape, data })
    }
}

/// Distributes elements over the dimensions of an input. The innermost variable dimension takes all
/// elements that the fixed dimensions leave; other variable dimensions become 1. Returns `None` if
/// the elements can't be distributed evenly.
fn dims_of(input: &ModelInput, has_batch: bool, count: u64) -> Option<SmallVec<[i64; 8]>> {
    let batch = has_batch.then_some(-1);
    let mut dims: SmallVec<[i64; 8]> =
        batch.into_iter().chain(input.dims.iter().copied()).collect();
    let mut left = i64::try_from(count).ok()?;
    for &dim in dims.iter().filter(|dim| **dim != -1) {
        if left.checked_rem(dim)? != 0 {
            return None;
        }
        left = left.checked_div(dim)?;
    }
    for dim in dims.iter_mut().rev().filter(|dim| **dim == -1) {
        *dim = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(dims)
}

fn as_shape(name: &str, dims: Option<SmallVec<[i64; 8]>>) -> Result<Shape, Status> {
    dims.and_then(|dims| Shape::new(&dims).ok()).ok_or_else(|| {
        Status::invalid_argument(format!(
            "The schema can not convert input '{name}' to tensor with proper shape"
        ))
    })
}
