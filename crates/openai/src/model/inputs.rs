//! Converts values to tensors with the types and shapes that a model declares.

use galatea_infer::InputTensor;
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{Buffer, DataType, Shape};

use super::DeclaredInput;
use crate::Failure;

/// The elements of an input.
pub(super) enum InputElements<'a> {
    Bool(bool),
    Int(i64),
    Float(f64),
    Texts(&'a [&'a str]),
    /// The same text in each element.
    Repeated {
        text: &'a str,
        count: usize,
    },
}

/// The bytes that an element needs in addition to its text.
const LENGTH_BYTES: usize = size_of::<u32>();

impl InputElements<'_> {
    /// The size of the input, if it contains texts.
    pub(super) fn texts_bytes(&self) -> usize {
        let element = |text: &str| text.len().saturating_add(LENGTH_BYTES);
        match self {
            Self::Bool(_) | Self::Int(_) | Self::Float(_) => 0,
            Self::Texts(texts) => {
                texts.iter().map(|text| element(text)).fold(0, usize::saturating_add)
            }
            Self::Repeated { text, count } => element(text).saturating_mul(*count),
        }
    }
}

/// Serializes texts, whose total size is known.
fn serialized<'t>(size: usize, texts: impl Iterator<Item = &'t str>) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::with_capacity(size);
    for text in texts {
        push_bytes_element(&mut data, text.as_bytes())
            .map_err(|error| Failure::server(error.to_string()))?;
    }
    Ok(data)
}

/// Creates the tensor for an input.
pub(super) fn tensor(
    declared: &DeclaredInput,
    elements: &InputElements<'_>,
) -> Result<InputTensor, Failure> {
    let (data, count) = match elements {
        InputElements::Texts(texts) if declared.datatype == DataType::Bytes => {
            (serialized(elements.texts_bytes(), texts.iter().copied())?, texts.len())
        }
        InputElements::Repeated { text, count } if declared.datatype == DataType::Bytes => {
            (serialized(elements.texts_bytes(), std::iter::repeat_n(*text, *count))?, *count)
        }
        InputElements::Texts(_) | InputElements::Repeated { .. } => {
            return Err(mismatch(declared, "a text"));
        }
        InputElements::Bool(value) => (number(declared, InputNumber::Int(i64::from(*value)))?, 1),
        InputElements::Int(value) => (number(declared, InputNumber::Int(*value))?, 1),
        InputElements::Float(value) => (number(declared, InputNumber::Float(*value))?, 1),
    };
    Ok(InputTensor {
        name: declared.name.clone(),
        datatype: declared.datatype,
        shape: shape(declared, count)?,
        data: Buffer::from_vec(data),
    })
}

fn mismatch(declared: &DeclaredInput, value: &str) -> Failure {
    let name = declared.datatype.protocol_name();
    Failure::server(format!("input '{}' of type {name} can't hold {value}", declared.name))
}

/// Returns the shape for `count` elements, in which the last variable dimension has this size.
fn shape(declared: &DeclaredInput, count: usize) -> Result<Shape, Failure> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let mut left = count;
    let mut dims: Vec<i64> = declared
        .dims
        .iter()
        .rev()
        .map(|dim| match dim {
            -1 => std::mem::replace(&mut left, 1),
            dim => *dim,
        })
        .collect();
    dims.reverse();
    let found = Shape::new(&dims).map_err(|error| Failure::server(error.to_string()))?;
    if found.element_count() == u64::try_from(count).unwrap_or(u64::MAX) {
        return Ok(found);
    }
    Err(mismatch(declared, &format!("{count} elements in its shape")))
}

#[derive(Copy, Clone)]
enum InputNumber {
    Int(i64),
    Float(f64),
}

fn number(declared: &DeclaredInput, number: InputNumber) -> Result<Vec<u8>, Failure> {
    let float = match number {
        InputNumber::Int(number) => to_float(number),
        InputNumber::Float(number) => number,
    };
    let int = || whole(number).ok_or_else(|| mismatch(declared, &format!("the number {float}")));
    let out = |_| mismatch(declared, &format!("the number {float}"));
    Ok(match declared.datatype {
        DataType::Bool => vec![u8::from(float != 0.0)],
        DataType::Int8 => i8::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Int16 => i16::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Int32 => i32::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Int64 => int()?.to_le_bytes().to_vec(),
        DataType::Uint8 => u8::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Uint16 => u16::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Uint32 => u32::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Uint64 => u64::try_from(int()?).map_err(out)?.to_le_bytes().to_vec(),
        DataType::Fp32 => single(float).to_le_bytes().to_vec(),
        DataType::Fp64 => float.to_le_bytes().to_vec(),
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => {
            return Err(mismatch(declared, "a number"));
        }
    })
}

#[expect(clippy::cast_precision_loss, reason = "a model that takes floats gets the nearest")]
const fn to_float(number: i64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, reason = "a model that takes floats gets the nearest")]
const fn single(number: f64) -> f32 {
    number as f32
}

/// Returns the integer that a number represents, if it is one.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole(number: InputNumber) -> Option<i64> {
    match number {
        InputNumber::Int(number) => Some(number),
        InputNumber::Float(number) if number.fract() == 0.0 && number.abs() < 9.0e18 => {
            Some(number as i64)
        }
        InputNumber::Float(_) => None,
    }
}
