//! Libraries with custom operators.

use std::ffi::c_void;
use std::path::Path;

use galatea_infer::Status;
use galatea_runtime::{path_string, with_causes};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::environment::OrtEnvironment;
use super::options::SessionOptions;

/// The presence of the function that registers a library's operators.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryPoint {
    /// The library has the function.
    Present,
    /// The library lacks the function.
    Missing,
}

/// Opens the library at `path` for the rest of the process's lifetime.
///
/// # Errors
///
/// The loader's message.
pub(crate) fn open_op_library(path: &Path) -> Result<EntryPoint, String> {
    // SAFETY: the configuration specifies this file as a library of operators, whose initializers
    // are meant to run.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| format!("it can't be opened as a library: {}", with_causes(&error)))?;
    // SAFETY: the function is only looked up, not called.
    let found = unsafe { library.get::<*const c_void>(b"RegisterCustomOps\0") }.is_ok();
    // The library's initializers may have started something that wouldn't survive closing it.
    std::mem::forget(library);
    Ok(if found { EntryPoint::Present } else { EntryPoint::Missing })
}

impl SessionOptions {
    /// Registers the operators of the library at `path`, which is already open.
    pub(crate) fn register_op_library(
        &mut self,
        environment: &OrtEnvironment,
        path: &Path,
    ) -> Result<(), Status> {
        let api = environment.api();
        let path = path_string(path)?;
        // Such libraries often keep unsynchronized lists of their registrations, and models are
        // loaded concurrently.
        let _lock = environment.lock_creation();
        // SAFETY: the options are alive and borrowed exclusively, and the path lives during the
        // call. The library at the path is never closed, so its operators outlive all sessions.
        unsafe {
            api.check((api.table().RegisterCustomOpsLibrary_V2)(self.as_mut_ptr(), path.as_ptr()))?;
        }
        // Sessions register operator domains for the whole process, and fail if another session
        // does so concurrently.
        self.require_exclusive_creation();
        Ok(())
    }
}
