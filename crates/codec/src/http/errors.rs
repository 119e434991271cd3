//! Refusals that more than one place makes.

use galatea_infer::Status;

use crate::limits::Limits;

/// A JSON text, or a whole body that would be one, beyond the limit.
pub(super) fn json_too_large(length: u64, limits: &Limits) -> Status {
    Status::invalid_argument(format!(
        "request JSON size of {length} bytes exceeds the maximum allowed input size of {} bytes. \
         Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// A raw body beyond the limit.
pub(super) fn raw_too_large(length: u64, limits: &Limits) -> Status {
    Status::invalid_argument(format!(
        "Raw input has a byte_size ({length} bytes) that exceeds the maximum allowed value of {} \
         bytes. Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// The refusal of a body beyond the limit, of which `length` bytes are known;
/// `header_length` is what the client said of its JSON.
#[must_use]
pub fn body_too_large(length: u64, header_length: Option<u64>, limits: &Limits) -> Status {
    match header_length {
        None => json_too_large(length, limits),
        Some(0) => raw_too_large(length, limits),
        Some(_) => Status::invalid_argument(format!(
            "request size of {length} bytes exceeds the maximum allowed input size of {} bytes. \
             Use --http-max-input-size to increase the limit.",
            limits.input_bytes_max
        )),
    }
}

/// A tensor that is to be in shared memory of the client's.
pub(super) fn no_shared_memory(tensor: &str) -> Status {
    Status::unsupported(format!(
        "'{tensor}' asks for 'shared_memory_region': client shared memory is not available in \
         this server"
    ))
}

/// More tensors than a request may name.
pub(super) fn too_many(field: &str) -> Status {
    Status::invalid_argument(format!(
        "'{field}' has more than the allowed {} entries",
        Limits::TENSORS_MAX
    ))
}
