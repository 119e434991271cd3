//! The contents of tensors specified in a model's configuration: warmup samples and initial
//! sequence states.

use galatea_tensor::elements::count_bytes_elements;
use galatea_tensor::{DataType, Shape};

/// The maximum size in bytes of a tensor described in a configuration, for a warmup sample or an
/// initial state. It also limits the total size of all sample tensors. No gRPC request can be
/// larger.
pub(crate) const CONFIG_TENSOR_BYTES_MAX: u64 = 1 << 31;
/// The maximum size, in bytes, of a file of strings for such a tensor.
pub(crate) const STRING_FILE_BYTES_MAX: u64 = 1 << 26;

/// The size of an empty string in a BYTES tensor: its length field.
const EMPTY_STRING_BYTES: u64 = 4;

/// Creates zeros for a tensor of this shape; for BYTES, empty strings.
pub(crate) fn zeros(shape: &Shape, datatype: DataType) -> Result<Vec<u8>, String> {
    let byte_size = match datatype {
        DataType::Bytes => shape.element_count().checked_mul(EMPTY_STRING_BYTES),
        _ => shape.byte_size(datatype),
    };
    let too_large = || format!("shape {shape} is larger than memory");
    if byte_size.is_some_and(|size| size > CONFIG_TENSOR_BYTES_MAX) {
        let most = CONFIG_TENSOR_BYTES_MAX;
        return Err(format!("shape {shape} is larger than memory allows: {most} bytes at most"));
    }
    let byte_size = byte_size.and_then(|size| usize::try_from(size).ok()).ok_or_else(too_large)?;
    // A failed allocation must not end the process.
    Vec::<u8>::new().try_reserve_exact(byte_size).map_err(|_| too_large())?;
    Ok(vec![0; byte_size])
}

/// Checks that a file contains one string for each element of a BYTES tensor. The error describes
/// the file's actual content.
pub(crate) fn check_strings(bytes: &[u8], shape: &Shape) -> Result<(), String> {
    let expected = shape.element_count();
    let found = count_bytes_elements(bytes).map_err(|error| format!("has {error}"))?;
    if found == expected {
        return Ok(());
    }
    Err(format!("has {found} strings, but {expected} are expected"))
}
