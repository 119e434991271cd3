//! Converts tensor elements from JSON to bytes.

use galatea_infer::Status;
use galatea_tensor::elements::push_bytes_element;
use galatea_tensor::{DataType, Shape};

use galatea_codec::charged_vec::ChargedVec;

use super::bounds::DecodeContext;
use super::json::{JsonReader, Number, depth_exceeded};
use galatea_codec::limits::MessageLimits;

/// Reads the array `data` into the bytes of a tensor in row-major order. The array is either flat
/// or nested like the shape.
///
/// Memory grows with the text, never with the shape.
pub(super) fn read_elements(
    reader: &mut JsonReader<'_>,
    name: &str,
    datatype: DataType,
    shape: &Shape,
    bounds: &DecodeContext<'_>,
) -> Result<ChargedVec, Status> {
    let expected = match datatype.byte_size() {
        None => None,
        Some(_) if matches!(datatype, DataType::Fp16 | DataType::Bf16) => {
            return Err(no_json_form(name, datatype));
        }
        Some(size) => {
            let bytes = checked_byte_size(name, datatype, size, shape)?;
            check_limit(name, bytes, bounds.limits)?;
            Some(ExpectedSize {
                elements: shape.element_count(),
                bytes,
                may_be_empty: shape.rank() == 0,
            })
        }
    };
    let Some(expected) = expected else {
        return read_byte_strings(reader, name, bounds);
    };
    let mut walk = ElementWalk { reader, expected, bounds };
    match datatype {
        DataType::Bool => walk.read(|reader, out| push_low::<1>(out, boolean(reader)?)),
        DataType::Uint8 => walk.read(|reader, out| push_low::<1>(out, unsigned(reader)?)),
        DataType::Uint16 => walk.read(|reader, out| push_low::<2>(out, unsigned(reader)?)),
        DataType::Uint32 => walk.read(|reader, out| push_low::<4>(out, unsigned(reader)?)),
        DataType::Uint64 => walk.read(|reader, out| push_low::<8>(out, unsigned(reader)?)),
        DataType::Int8 => walk.read(|reader, out| push_low::<1>(out, signed(reader)?)),
        DataType::Int16 => walk.read(|reader, out| push_low::<2>(out, signed(reader)?)),
        DataType::Int32 => walk.read(|reader, out| push_low::<4>(out, signed(reader)?)),
        DataType::Int64 => walk.read(|reader, out| push_low::<8>(out, signed(reader)?)),
        DataType::Fp32 => walk.read(|reader, out| {
            let value = to_single(double(reader)?);
            out.extend_from_slice(&value.to_le_bytes());
            Ok(())
        }),
        DataType::Fp64 => walk.read(|reader, out| {
            out.extend_from_slice(&double(reader)?.to_le_bytes());
            Ok(())
        }),
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => Err(no_json_form(name, datatype)),
    }
}

/// The size of a tensor whose elements have a fixed size.
#[derive(Copy, Clone)]
struct ExpectedSize {
    elements: u64,
    bytes: u64,
    /// True if the tensor may lack its element. As in Triton, this applies to tensors without
    /// dimensions. No model accepts them, which admission reports.
    may_be_empty: bool,
}

struct ElementWalk<'r, 'a> {
    reader: &'r mut JsonReader<'a>,
    expected: ExpectedSize,
    bounds: &'r DecodeContext<'r>,
}

impl ElementWalk<'_, '_> {
    fn read(
        &mut self,
        mut element: impl FnMut(&mut JsonReader<'_>, &mut Vec<u8>) -> Result<(), Status>,
    ) -> Result<ChargedVec, Status> {
        let mut left = self.expected.elements;
        let bytes = usize::try_from(self.expected.bytes).unwrap_or(usize::MAX);
        // Two characters of text, such as "1,", produce an element of at most eight bytes.
        let text_max = self.reader.remaining().saturating_mul(4).saturating_add(8);
        let mut charged = ChargedVec::default();
        charged.reserve(bytes.min(text_max), self.bounds.account)?;
        let out = charged.bytes_mut();
        walk_leaves(self.reader, |reader, depth| {
            if depth >= MessageLimits::JSON_DEPTH_MAX {
                return Err(depth_exceeded().prefixed(CONTEXT));
            }
            let Some(after) = left.checked_sub(1) else {
                // A syntax error, such as a trailing comma, is reported first.
                reader.skip_value()?;
                return Err(Status::internal(
                    "Unable to parse 'data': Shape does not match true shape of 'data' field",
                ));
            };
            left = after;
            element(reader, out)
        })
        .map_err(|error| error.into_status(CONTEXT))?;
        if left != 0 && !(self.expected.may_be_empty && out.is_empty()) {
            return Err(Status::internal(
                "Failed to parse 'data' field: shape does not match true shape",
            ));
        }
        Ok(charged)
    }
}

/// The prefix of error messages about elements.
const CONTEXT: &str = "Unable to parse 'data': ";

/// The error of a walk over nested arrays.
enum WalkError {
    TooDeep,
    Status(Status),
}

impl WalkError {
    fn into_status(self, context: &str) -> Status {
        match self {
            Self::TooDeep => depth_exceeded().prefixed(context),
            Self::Status(status) => status,
        }
    }
}

/// Calls `leaf` for each value that is not an array, with its nesting depth. Arrays are counted
/// rather than stacked, so the depth uses no memory.
fn walk_leaves<'a>(
    reader: &mut JsonReader<'a>,
    mut leaf: impl FnMut(&mut JsonReader<'a>, usize) -> Result<(), Status>,
) -> Result<(), WalkError> {
    let mut depth: usize = 0;
    loop {
        if reader.peek() == Some(b'[') {
            depth = depth.saturating_add(1);
            if depth > MessageLimits::JSON_DEPTH_MAX {
                return Err(WalkError::TooDeep);
            }
            if !reader.open_array() {
                continue;
            }
            depth = depth.saturating_sub(1);
        } else {
            leaf(reader, depth).map_err(WalkError::Status)?;
        }
        while depth > 0 && !reader.following_element().map_err(WalkError::Status)? {
            depth = depth.saturating_sub(1);
        }
        if depth == 0 {
            return Ok(());
        }
    }
}

fn read_byte_strings(
    reader: &mut JsonReader<'_>,
    name: &str,
    bounds: &DecodeContext<'_>,
) -> Result<ChargedVec, Status> {
    read_strings(reader, bounds, |length| {
        check_limit(name, u64::try_from(length).unwrap_or(u64::MAX), bounds.limits)
    })
}

/// Reads strings, inside arrays or not, into the bytes of a tensor. `check` receives the number of
/// bytes before each string is added.
pub(super) fn read_strings(
    reader: &mut JsonReader<'_>,
    bounds: &DecodeContext<'_>,
    check: impl Fn(usize) -> Result<(), Status>,
) -> Result<ChargedVec, Status> {
    let mut charged = ChargedVec::default();
    walk_leaves(reader, |reader, depth| {
        if depth >= MessageLimits::JSON_DEPTH_MAX {
            return Err(depth_exceeded());
        }
        if reader.peek() != Some(b'"') {
            return Err(type_error(
                reader,
                "Unable to parse JSON bytes array: ",
                "non-string as string",
            ));
        }
        let element = reader.string()?;
        let length = charged.len().saturating_add(element.len()).saturating_add(size_of::<u32>());
        check(length)?;
        charged.reserve(length, bounds.account)?;
        push_bytes_element(charged.bytes_mut(), &element)
            .map_err(|error| Status::invalid_argument(error.to_string()))
    })
    .map_err(|error| error.into_status(""))?;
    Ok(charged)
}

fn checked_byte_size(
    name: &str,
    datatype: DataType,
    size: usize,
    shape: &Shape,
) -> Result<u64, Status> {
    shape.byte_size(datatype).ok_or_else(|| {
        Status::invalid_argument(format!(
            "byte size overflow for input '{name}': element count ({}) * data type size ({size}) \
             exceeds maximum allowed size ({})",
            shape.element_count(),
            i64::MAX
        ))
    })
}

fn check_limit(name: &str, bytes: u64, limits: &MessageLimits) -> Result<(), Status> {
    if bytes <= limits.input_bytes_max {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "JSON input '{name}' has a byte_size ({bytes} bytes) that exceeds the maximum allowed \
         value of {} bytes. Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    )))
}

fn no_json_form(name: &str, datatype: DataType) -> Status {
    Status::invalid_argument(format!(
        "receiving {datatype} data via JSON is not supported. Please use the binary data format \
         for input {name}"
    ))
}

/// Returns the error for an element of the wrong type, which is an internal error as in Triton.
fn type_error(reader: &mut JsonReader<'_>, context: &str, what: &str) -> Status {
    match reader.value_type() {
        Ok(_) => Status::internal(format!("{context}attempt to access JSON {what}")),
        Err(status) => status,
    }
}

#[inline]
fn number(reader: &mut JsonReader<'_>, what: &'static str) -> Result<Number, Status> {
    match reader.peek() {
        Some(b'-' | b'0'..=b'9' | b'N' | b'I') => reader.number(),
        _ => Err(type_error(reader, CONTEXT, what)),
    }
}

fn mismatch(what: &str) -> Status {
    Status::internal(format!("{CONTEXT}attempt to access JSON {what}"))
}

#[inline]
fn unsigned(reader: &mut JsonReader<'_>) -> Result<[u8; 8], Status> {
    const WHAT: &str = "non-unsigned-integer as unsigned-integer";
    let value = number(reader, WHAT)?.as_unsigned().ok_or_else(|| mismatch(WHAT))?;
    Ok(value.to_le_bytes())
}

#[inline]
fn signed(reader: &mut JsonReader<'_>) -> Result<[u8; 8], Status> {
    const WHAT: &str = "non-signed-integer as signed-integer";
    let value = number(reader, WHAT)?.as_signed().ok_or_else(|| mismatch(WHAT))?;
    Ok(value.to_le_bytes())
}

#[inline]
fn double(reader: &mut JsonReader<'_>) -> Result<f64, Status> {
    Ok(number(reader, "non-number as double")?.as_double())
}

fn boolean(reader: &mut JsonReader<'_>) -> Result<[u8; 8], Status> {
    match reader.peek() {
        Some(b't' | b'f') => Ok(u64::from(reader.boolean()?).to_le_bytes()),
        _ => Err(type_error(reader, CONTEXT, "non-boolean as boolean")),
    }
}

/// Appends the low bytes of a number. As in Triton, ranges are not checked and the
/// other bytes are dropped.
#[inline]
fn push_low<const SIZE: usize>(out: &mut Vec<u8>, value: [u8; 8]) -> Result<(), Status> {
    if let Some(low) = value.first_chunk::<SIZE>() {
        out.extend_from_slice(low);
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "the value is rounded to single precision")]
fn to_single(value: f64) -> f32 {
    value as f32
}
