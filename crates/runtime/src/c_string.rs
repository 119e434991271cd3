//! Strings for the functions of a library.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use galatea_infer::Status;

/// Creates a string for a library. `what` describes the string in the error.
///
/// # Errors
///
/// INVALID_ARGUMENT: the text has a NUL byte.
pub fn c_string(text: &str, what: &str) -> Result<CString, Status> {
    CString::new(text).map_err(|_| Status::invalid_argument(format!("{what} has a NUL byte")))
}

/// Creates a path for a library.
///
/// # Errors
///
/// INVALID_ARGUMENT: the path has a NUL byte.
pub fn path_string(path: &Path) -> Result<CString, Status> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Status::invalid_argument(format!("the path '{}' has a NUL byte", path.display()))
    })
}
