//! Error statuses that several modules use.

use galatea_infer::Status;

use galatea_gate::limits::Limits;

/// The JSON text, or a body that would be JSON, exceeds the limit.
pub(super) fn json_too_large(length: u64, limits: &Limits) -> Status {
    Status::invalid_argument(format!(
        "request JSON size of {length} bytes exceeds the maximum allowed input size of {} bytes. \
         Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// A raw body exceeds the limit.
pub(super) fn raw_too_large(length: u64, limits: &Limits) -> Status {
    Status::invalid_argument(format!(
        "Raw input has a byte_size ({length} bytes) that exceeds the maximum allowed value of {} \
         bytes. Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// The error for a body of at least `length` bytes, which exceeds the limit.
/// `header_length` is the length of its JSON in the request's header.
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

/// A tensor in the client's shared memory.
pub(super) fn no_shared_memory(tensor: &str) -> Status {
    Status::unsupported(format!(
        "'{tensor}' asks for 'shared_memory_region': client shared memory is not available in \
         this server"
    ))
}

/// A request names too many tensors.
pub(super) fn too_many_tensors(field: &str) -> Status {
    Status::invalid_argument(format!(
        "'{field}' has more than the allowed {} entries",
        Limits::TENSORS_MAX
    ))
}
