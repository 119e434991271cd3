//! Checks that both backends use.

use galatea_config::ModelSpec;
use galatea_infer::Status;

/// The value of an integer parameter; 0 if it is absent.
pub(crate) fn integer_parameter(spec: &ModelSpec, key: &str) -> Result<u64, String> {
    let Some(text) = spec.parameters.get(key) else { return Ok(0) };
    let number: Option<u32> = text.trim().parse().ok();
    number.map(u64::from).ok_or_else(|| {
        format!("parameter '{key}' is '{text}', which is not a number from 0 to {}", u32::MAX)
    })
}

/// The error for a configuration that the backend can't serve.
pub(crate) fn refused(spec: &ModelSpec, reason: &str) -> Status {
    Status::invalid_argument(format!("model '{}': {reason}", spec.name))
}
