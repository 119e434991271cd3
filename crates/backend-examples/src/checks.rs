//! Checks that both backends make.

use galatea_backend::{Device, Placement};
use galatea_config::ModelSpec;
use galatea_infer::Status;

/// The value of an integer parameter; 0 if it isn't given.
pub(crate) fn integer_parameter(spec: &ModelSpec, key: &str) -> Result<u64, String> {
    let Some(text) = spec.parameters.get(key) else { return Ok(0) };
    let number: Option<u32> = text.trim().parse().ok();
    number.map(u64::from).ok_or_else(|| {
        format!("parameter '{key}' is '{text}', which is not a number from 0 to {}", u32::MAX)
    })
}

/// Refuses instances on a GPU.
pub(crate) fn check_device(backend: &str, placement: &Placement) -> Result<(), Status> {
    match placement.device {
        Device::Cpu | Device::Model => Ok(()),
        Device::Gpu(_) => {
            let text = format!("'{backend}' backend only supports CPU instances");
            Err(Status::invalid_argument(text))
        }
    }
}

/// The error of a configuration that the backend can't serve.
pub(crate) fn refused(spec: &ModelSpec, reason: &str) -> Status {
    Status::invalid_argument(format!("model '{}': {reason}", spec.name))
}
