//! The shared library itself.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{LibraryFile, LibrarySearchSpec, with_causes};
use ort_sys::{ORT_API_VERSION, OrtApiBase};

use super::error::{OrtError, text};
use super::table::ApiTable;

/// ONNX Runtime's shared library. It stays open for the rest of the process's lifetime.
///
/// The library is never unloaded, because its threads and static objects wouldn't survive that.
pub struct OrtLibrary {
    api: ApiTable,
    version: String,
    file: LibraryFile,
    providers: Vec<String>,
}

impl OrtLibrary {
    /// The names that are used to search for the library.
    pub const NAME: LibrarySearchSpec = LibrarySearchSpec {
        framework: "ONNX Runtime",
        file: "libonnxruntime.so",
        package: "onnxruntime",
        folder: "onnxruntime/capi",
        flag: "--onnxruntime-library",
        variable: "GALATEA_ONNXRUNTIME_LIBRARY",
    };

    /// Opens the library at `path` and disables its telemetry.
    ///
    /// Call this function during process startup: it sets an environment variable, which C code in
    /// another thread might read.
    ///
    /// # Errors
    ///
    /// The reason why the library can't be used: it doesn't exist, it isn't ONNX Runtime, or it is
    /// older than 1.17.
    pub fn open(path: &Path) -> Result<Arc<Self>, Status> {
        let ((version, api), file) = Self::NAME.open(path, || open(path))?;
        disable_telemetry();
        let providers = providers(api)?;
        Ok(Arc::new(Self { api, version, file, providers }))
    }

    /// The library's version, such as `1.31.1`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that was opened.
    #[must_use]
    pub const fn file(&self) -> &LibraryFile {
        &self.file
    }

    /// The execution providers that the library includes, in order of preference.
    #[must_use]
    pub fn providers(&self) -> &[String] {
        &self.providers
    }

    pub(super) const fn api(&self) -> ApiTable {
        self.api
    }
}

impl std::fmt::Debug for OrtLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library(ONNX Runtime {} at '{}')", self.version, self.file.path().display())
    }
}

/// Disables telemetry. Official builds send reports to the vendor, store a machine identifier on
/// disk, and start threads for these tasks. These threads were seen to read freed memory while the
/// process was exiting. Only this variable prevents all of it: the API function that disables
/// telemetry can only be called after the first report.
fn disable_telemetry() {
    // SAFETY: a server opens the library before it starts the threads that serve requests. A lock
    // keeps out Rust's own readers of the environment.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
}

/// Opens the library at `path`, and returns its version and its functions.
fn open(path: &Path) -> Result<(String, ApiTable), String> {
    // SAFETY: the operator specified this file as ONNX Runtime's library, whose initializers are
    // meant to run.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| with_causes(&error))?;
    type GetApiBase = unsafe extern "system" fn() -> *const OrtApiBase;
    // SAFETY: this is the signature of the library's entry point.
    let entry = unsafe { library.get::<GetApiBase>(c"OrtGetApiBase") }
        .map_err(|error| with_causes(&error))?;
    // SAFETY: the entry point takes no arguments and returns a static.
    let base = unsafe { entry().as_ref() }.ok_or("it has no API")?;
    // SAFETY: the version is a static string; the table is a static, or null if the library is
    // older than the API version.
    let (version, table) =
        unsafe { (text((base.GetVersionString)()), (base.GetApi)(ORT_API_VERSION).as_ref()) };
    let table = table.ok_or_else(|| {
        format!("its version is {version}, and at least 1.{ORT_API_VERSION} is needed")
    })?;
    // `table` refers to the library, so the library must stay open.
    std::mem::forget(library);
    Ok((version, ApiTable::new(table)))
}

fn providers(api: ApiTable) -> Result<Vec<String>, OrtError> {
    let mut names: *mut *mut c_char = std::ptr::null_mut();
    let mut count: c_int = 0;
    // SAFETY: both out pointers are valid.
    unsafe {
        api.check((api.table().GetAvailableProviders)(&raw mut names, &raw mut count))?;
    }
    let length = usize::try_from(count).unwrap_or(0);
    let mut providers = Vec::with_capacity(length);
    for index in 0..length {
        // SAFETY: the library stored `count` NUL-terminated names, which live until they are
        // released below.
        let name = unsafe { CStr::from_ptr(*names.add(index)) };
        providers.push(name.to_string_lossy().into_owned());
    }
    // SAFETY: the names were allocated by the matching function.
    unsafe { api.check((api.table().ReleaseAvailableProviders)(names, count))? };
    Ok(providers)
}
