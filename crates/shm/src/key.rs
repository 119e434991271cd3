//! Checks the keys that clients specify.

use galatea_infer::Status;

/// The name prefix of the regions that Triton's server shares with its Python backend's processes.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

/// Checks a region's key. The system rejects names that contain a slash, so a key can't refer to
/// anything outside its directory.
///
/// # Errors
///
/// `InvalidArgument` if the key consists only of slashes or has the reserved prefix.
pub(crate) fn check_key(name: &str, key: &str) -> Result<(), Status> {
    let object = key.trim_start_matches('/');
    if object.is_empty() {
        return Err(Status::invalid_argument(format!(
            "cannot register shared memory region '{name}' - invalid shm key '{key}'"
        )));
    }
    if object.starts_with(RESERVED_PREFIX) {
        return Err(Status::invalid_argument(format!(
            "cannot register shared memory region '{name}' with key '{key}' as the key contains \
             the reserved prefix '{RESERVED_PREFIX}'"
        )));
    }
    Ok(())
}
