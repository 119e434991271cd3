//! Error statuses that several modules use.

use galatea_infer::Status;

use galatea_codec::limits::MessageLimits;

use galatea_codec::compression::CompressedStreamEnd;

/// The error for JSON, or a body that should be JSON, that exceeds the limit.
pub(super) fn json_too_large(length: u64, limits: &MessageLimits) -> Status {
    Status::invalid_argument(format!(
        "request JSON size of {length} bytes exceeds the maximum allowed input size of {} bytes. \
         Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// The error for a raw body that exceeds the limit.
pub(super) fn raw_too_large(length: u64, limits: &MessageLimits) -> Status {
    Status::invalid_argument(format!(
        "Raw input has a byte_size ({length} bytes) that exceeds the maximum allowed value of {} \
         bytes. Use --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// The error for a body of at least `length` bytes that exceeds the limit, either as a raw tensor
/// or as JSON.
#[must_use]
pub fn body_too_large_error(length: u64, is_raw: bool, limits: &MessageLimits) -> Status {
    if is_raw { raw_too_large(length, limits) } else { json_too_large(length, limits) }
}

/// The error for a compressed body that exceeds the limit before or after it is inflated.
#[must_use]
pub fn inflated_body_too_large_error(limits: &MessageLimits) -> Status {
    Status::invalid_argument(format!(
        "Decompressed data size exceeds the maximum allowed value of {} bytes. Use \
         --http-max-input-size to increase the limit.",
        limits.input_bytes_max
    ))
}

/// The error for a body that is compressed but empty.
#[must_use]
pub fn empty_compressed_body_error() -> Status {
    Status::invalid_argument("nothing to be decompressed")
}

/// Checks whether a request is complete: its compressed body, which has this end, may have been
/// damaged or cut off on the way.
///
/// JSON shows by itself whether it is complete, and it states the length of the tensors. Only a raw
/// body therefore needs the end of its compressed data.
///
/// # Errors
///
/// `InvalidArgument` if the request is incomplete. Triton executes the part that was inflated.
pub fn check_compressed_body_end(end: CompressedStreamEnd, is_raw: bool) -> Result<(), Status> {
    let mistake = match end {
        CompressedStreamEnd::Complete => return Ok(()),
        CompressedStreamEnd::Truncated if !is_raw => return Ok(()),
        CompressedStreamEnd::Truncated => {
            "request body is truncated: its compressed data has no end"
        }
        CompressedStreamEnd::Damaged => {
            "request body is damaged: its compressed data or their checksum are wrong"
        }
    };
    Err(Status::invalid_argument(mistake))
}

/// The error for a request that names too many tensors.
pub(super) fn too_many_tensors(field: &str) -> Status {
    Status::invalid_argument(format!(
        "'{field}' has more than the allowed {} entries",
        MessageLimits::TENSORS_MAX
    ))
}
