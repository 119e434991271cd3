//! The contents of tensors that come from a model's configuration, not from a client:
//! warmup samples, and the states that a sequence begins with.

use galatea_tensor::elements::count_bytes_elements;
use galatea_tensor::{DataType, Shape};

/// The bytes of an empty string: its length.
const EMPTY_STRING_BYTES: u64 = 4;

/// Zeros, or as many empty strings.
pub(crate) fn zeros(shape: &Shape, datatype: DataType) -> Result<Vec<u8>, String> {
    let byte_size = match datatype {
        DataType::Bytes => shape.element_count().checked_mul(EMPTY_STRING_BYTES),
        _ => shape.byte_size(datatype),
    };
    let too_large = || format!("shape {shape} is larger than memory");
    let byte_size = byte_size.and_then(|size| usize::try_from(size).ok()).ok_or_else(too_large)?;
    // What can't be had must not end the process.
    Vec::<u8>::new().try_reserve_exact(byte_size).map_err(|_| too_large())?;
    Ok(vec![0; byte_size])
}

/// Whether a file has as many strings as a tensor of BYTES; says what it has otherwise.
pub(crate) fn check_strings(bytes: &[u8], shape: &Shape) -> Result<(), String> {
    let expected = shape.element_count();
    let found = count_bytes_elements(bytes).map_err(|error| format!("has {error}"))?;
    if found == expected {
        return Ok(());
    }
    Err(format!("has {found} strings, but {expected} are expected"))
}
