//! Libraries with custom operators.

use std::ffi::c_void;
use std::path::Path;

use galatea_infer::Status;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::environment::OrtEnvironment;
use super::library::with_causes;
use super::options::{SessionOptions, path_string};

/// The presence of the function that registers a library's operators.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryPoint {
    /// The library has the function.
    Present,
    /// The library lacks the function.
    Missing,
}

/// Opens the library at `path` for the rest of the process's life.
///
/// # Errors
///
/// The loader's message.
pub(crate) fn open_op_library(path: &Path) -> Result<EntryPoint, String> {
    // SAFETY: the configuration names this file as a library with operators, whose
    // initialisers are meant to run.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| format!("it can't be opened as a library: {}", with_causes(&error)))?;
    // SAFETY: the function is looked up, and not called.
    let found = unsafe { library.get::<*const c_void>(b"RegisterCustomOps\0") }.is_ok();
    // The library's initialisers may have started something that would not survive closing it.
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
        // Such libraries often keep unprotected lists of their registrations, and models are loaded
        // concurrently.
        let _lock = environment.lock_creation();
        // SAFETY: the options are alive and borrowed exclusively; the path lives during the
        // call. The library that it names is never closed, so its operators live as long
        // as any session.
        unsafe {
            api.check((api.table().RegisterCustomOpsLibrary_V2)(self.as_mut_ptr(), path.as_ptr()))?;
        }
        // Sessions register operator domains for the whole process, and fail if another session
        // does so at the same time.
        self.require_exclusive_creation();
        Ok(())
    }
}
