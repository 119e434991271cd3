//! Checks the keys that a client may name.

use galatea_infer::Status;

/// The prefix of the names of the regions between Triton's server and the processes of its Python
/// backend.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

/// Checks the key of a region. The system refuses names that contain a slash, so no key points
/// outside its directory.
///
/// # Errors
///
/// `InvalidArgument` for a key that consists only of slashes, and for one with the reserved prefix.
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
