//! The shared library itself.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{FileFingerprint, is_library_truncated};
use galatea_infer::Status;
use ort_sys::{ORT_API_VERSION, OrtAllocator, OrtApi, OrtApiBase};

use super::error::{OrtError, text};

/// ONNX Runtime's shared library, open for the rest of the process's life.
///
/// It is never unloaded: its threads and its static objects do not survive
/// that.
pub struct Library {
    api: Api,
    version: String,
    path: PathBuf,
    mark: Option<FileFingerprint>,
    providers: Vec<String>,
}

/// The table of the library's functions.
#[derive(Copy, Clone)]
pub(super) struct Api(&'static OrtApi);

impl Api {
    pub(super) const fn table(self) -> &'static OrtApi {
        self.0
    }

    /// The allocator of ordinary memory, which belongs to the library.
    pub(super) fn default_allocator(self) -> Result<*mut OrtAllocator, OrtError> {
        let mut allocator = std::ptr::null_mut();
        // SAFETY: the out pointer is valid; the allocator is not ours to free.
        unsafe { self.check((self.0.GetAllocatorWithDefaultOptions)(&raw mut allocator))? };
        if allocator.is_null() { Err(OrtError::missing("allocator")) } else { Ok(allocator) }
    }
}

impl Library {
    /// Opens the library at `path`, with its telemetry off.
    ///
    /// Call it while the process starts: it sets an environment variable,
    /// which code in C may be reading in another thread.
    ///
    /// # Errors
    ///
    /// A status that says why it can't be used: it is not there, it is not
    /// ONNX Runtime, or it is older than 1.17.
    pub fn open(path: &Path) -> Result<Arc<Self>, Status> {
        let unusable = |reason: String| {
            Status::unavailable(format!(
                "can't use '{}' as ONNX Runtime's library: {reason}",
                path.display()
            ))
        };
        if is_library_truncated(path) {
            return Err(unusable(String::from("the file is cut short")));
        }
        let mark = FileFingerprint::of(path);
        // SAFETY: the operator named this library for what it is; running its
        // initialisers is the purpose.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| unusable(with_causes(&error)))?;
        type GetApiBase = unsafe extern "system" fn() -> *const OrtApiBase;
        // SAFETY: this is the signature of the library's entry point.
        let entry = unsafe { library.get::<GetApiBase>(c"OrtGetApiBase") }
            .map_err(|error| unusable(with_causes(&error)))?;
        // SAFETY: the entry point takes nothing and returns a static.
        let base =
            unsafe { entry().as_ref() }.ok_or_else(|| unusable(String::from("it has no API")))?;
        // SAFETY: the version is a static string; the table is null if the
        // library is older than it, and a static otherwise.
        let (version, table) =
            unsafe { (text((base.GetVersionString)()), (base.GetApi)(ORT_API_VERSION).as_ref()) };
        let table = table.ok_or_else(|| {
            unusable(format!(
                "its version is {version}, and at least 1.{ORT_API_VERSION} is needed"
            ))
        })?;
        // From here on, what `table` refers to must stay.
        std::mem::forget(library);
        turn_telemetry_off();
        let api = Api(table);
        let providers = providers(api)?;
        Ok(Arc::new(Self { api, version, path: path.to_path_buf(), mark, providers }))
    }

    /// The library's version, such as `1.31.1`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its file looked like before it was opened; `None` if that tells nothing.
    #[must_use]
    pub const fn mark(&self) -> Option<&FileFingerprint> {
        self.mark.as_ref()
    }

    /// The execution providers that it was built with, the best first.
    #[must_use]
    pub fn providers(&self) -> &[String] {
        &self.providers
    }

    pub(super) const fn api(&self) -> Api {
        self.api
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library(ONNX Runtime {} at '{}')", self.version, self.path.display())
    }
}

/// Official builds send reports to the library's maker, keep an identifier of
/// the machine on disk and start threads for that, which have been seen to read
/// freed memory while the process ended. A server does none of that unasked,
/// and only this variable prevents all of it: the function of the API that
/// turns telemetry off comes too late for the first report.
fn turn_telemetry_off() {
    // SAFETY: a server opens the library before it starts the threads that
    // serve. Rust's own readers of the environment are kept out by a lock.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
}

/// The loader's words are in the cause of what the binding reports.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn providers(api: Api) -> Result<Vec<String>, OrtError> {
    let mut names: *mut *mut c_char = std::ptr::null_mut();
    let mut count: c_int = 0;
    // SAFETY: both out pointers are valid.
    unsafe {
        api.check((api.0.GetAvailableProviders)(&raw mut names, &raw mut count))?;
    }
    let length = usize::try_from(count).unwrap_or(0);
    let mut providers = Vec::with_capacity(length);
    for index in 0..length {
        // SAFETY: the library stored `count` NUL-terminated names, which live
        // until they are released below.
        let name = unsafe { CStr::from_ptr(*names.add(index)) };
        providers.push(name.to_string_lossy().into_owned());
    }
    // SAFETY: the names come from the function that this one belongs to.
    unsafe { api.check((api.0.ReleaseAvailableProviders)(names, count))? };
    Ok(providers)
}
