//! Parses the length of the JSON in a request's headers.

use galatea_infer::Status;

use crate::numbers::{NoNumber, leading_integer};

/// Parses the header `Inference-Header-Content-Length`: the length of the JSON at
/// the start of a body of `body_length` bytes.
///
/// # Errors
///
/// `InvalidArgument` unless it starts with a whole number from 0 to the body's length.
pub fn parse_header_length(value: &[u8], body_length: usize) -> Result<usize, Status> {
    const NAME: &str = "Inference-Header-Content-Length";
    let printed = String::from_utf8_lossy(value);
    let length = match leading_integer(value).map(i32::try_from) {
        Ok(Ok(length)) => length,
        Err(NoNumber::Missing) => {
            return Err(Status::invalid_argument(format!(
                "Unable to parse {NAME}, got: {printed}"
            )));
        }
        Ok(Err(_)) | Err(NoNumber::TooLarge) => {
            return Err(Status::invalid_argument(format!(
                "Unable to parse {NAME}, value is out of range [ {}, {} ], got: {printed}",
                i32::MIN,
                i32::MAX
            )));
        }
    };
    usize::try_from(length).ok().filter(|length| *length <= body_length).ok_or_else(|| {
        Status::invalid_argument(format!(
            "inference header size should be in range (0, {body_length}), got: {printed}"
        ))
    })
}
