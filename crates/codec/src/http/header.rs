//! Parses numbers in the headers and the path of a request.

use galatea_infer::Status;

/// Parses the header `Inference-Header-Content-Length`: the length of the JSON at
/// the start of a body of `body_length` bytes.
///
/// # Errors
///
/// `InvalidArgument` unless it is a whole number from 0 to the body's length.
pub fn parse_header_length(value: &[u8], body_length: usize) -> Result<usize, Status> {
    const NAME: &str = "Inference-Header-Content-Length";
    let text = std::str::from_utf8(value).unwrap_or_default().trim();
    let printed = String::from_utf8_lossy(value);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Status::invalid_argument(format!("Unable to parse {NAME}, got: {printed}")));
    }
    let Ok(length) = text.parse::<i32>() else {
        return Err(Status::invalid_argument(format!(
            "Unable to parse {NAME}, value is out of range [ {}, {} ], got: {printed}",
            i32::MIN,
            i32::MAX
        )));
    };
    usize::try_from(length).ok().filter(|length| *length <= body_length).ok_or_else(|| {
        Status::invalid_argument(format!(
            "inference header size should be in range (0, {body_length}), got: {printed}"
        ))
    })
}

/// Parses the version in a path; an empty text selects the newest version.
///
/// # Errors
///
/// `InvalidArgument` unless it is a whole number that fits.
pub fn parse_version(text: &str) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<i64>() {
        Ok(version) if version >= 0 => Ok(Some(version)),
        Ok(_) => Err(Status::invalid_argument(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0"
        ))),
        Err(error) => Err(Status::invalid_argument(format!(
            "failed to get model version from specified version string '{text}' (details: \
             {error}), version should be an integral value > 0"
        ))),
    }
}
