//! The shared library itself.

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{FileFingerprint, is_library_truncated};
use galatea_infer::Status;
use galatea_runtime::LibrarySearchSpec;

use super::functions::{Functions, OvStatus, OvVersion};

/// The first version, by year and number, that has all functions. Those before 2025.1 have other
/// numbers of element types than `element`.
const VERSION_MIN: (u32, u32) = (2025, 2);

/// OpenVINO's shared library, open for the rest of the process's life.
///
/// Never unloaded, because its threads and static objects would not survive it.
pub struct Library {
    api: Api,
    version: String,
    path: PathBuf,
    fingerprint: Option<FileFingerprint>,
}

/// The library's functions with the conversion of their errors.
#[derive(Copy, Clone)]
pub(super) struct Api(Functions);

impl Library {
    /// The words in which the library is searched for.
    pub const NAME: LibrarySearchSpec = LibrarySearchSpec {
        framework: "OpenVINO",
        file: "libopenvino_c.so",
        package: "openvino",
        folder: "openvino/libs",
        flag: "--openvino-library",
        variable: "GALATEA_OPENVINO_LIBRARY",
    };

    /// Opens the library at `path`.
    ///
    /// # Errors
    ///
    /// The reason why the library can't be used: it does not exist, it is not OpenVINO, or it is
    /// older than 2025.2.
    pub fn open(path: &Path) -> Result<Arc<Self>, Status> {
        let unusable = |reason: String| {
            Status::unavailable(format!(
                "can't use '{}' as OpenVINO's library: {reason}",
                path.display()
            ))
        };
        if is_library_truncated(path) {
            return Err(unusable(String::from("the file is cut short")));
        }
        let fingerprint = FileFingerprint::of(path);
        // SAFETY: the operator named this file as OpenVINO's library, whose initialisers are meant
        // to run.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| unusable(with_causes(&error)))?;
        let version = version(&library).map_err(|error| unusable(with_causes(&error)))?;
        if year_and_number(&version).is_none_or(|found| found < VERSION_MIN) {
            let (year, number) = VERSION_MIN;
            return Err(unusable(format!(
                "its version is {version}, and at least {year}.{number} is needed"
            )));
        }
        // SAFETY: the library is OpenVINO's, as it has a version. It is never closed.
        let functions = unsafe { Functions::of(&library) };
        let api = Api(functions.map_err(|error| unusable(with_causes(&error)))?);
        std::mem::forget(library);
        Ok(Arc::new(Self { api, version, path: path.to_path_buf(), fingerprint }))
    }

    /// The library's version, such as `2026.4.1-22982-…`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The path that the library was opened with.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fingerprint of the file before it was opened; `None` if it is unknown.
    #[must_use]
    pub const fn file_fingerprint(&self) -> Option<&FileFingerprint> {
        self.fingerprint.as_ref()
    }

    pub(super) const fn api(&self) -> &Api {
        &self.api
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library(OpenVINO {} at '{}')", self.version, self.path.display())
    }
}

impl Api {
    pub(super) const fn functions(&self) -> &Functions {
        &self.0
    }

    /// Converts a returned status into a result; `doing` describes the call in an error.
    pub(super) fn check(&self, status: OvStatus, doing: &str) -> Result<(), Status> {
        if status == 0 { Ok(()) } else { Err(self.error(status, doing)) }
    }

    #[cold]
    fn error(&self, status: OvStatus, doing: &str) -> Status {
        // SAFETY: the description is static; the message is the caller's to free.
        let (description, message) = unsafe {
            let description = text((self.0.ov_get_error_info)(status));
            let raw = (self.0.ov_get_last_err_msg)();
            let message = text(raw);
            if !raw.is_null() {
                (self.0.ov_free)(raw);
            }
            (description, message)
        };
        let reason = if message.is_empty() { description } else { message };
        Status::internal(format!("openvino error in {doing} : {reason}"))
    }
}

/// The version of a library, which need not have all functions.
fn version(library: &libloading::Library) -> Result<String, libloading::Error> {
    let mut version = OvVersion { build_number: std::ptr::null(), description: std::ptr::null() };
    // SAFETY: the library is OpenVINO's if it has these functions, whose signatures are those of its
    // headers. The out pointer is valid; the strings live until they are freed.
    unsafe {
        let get = library.get::<GetVersion>(b"ov_get_openvino_version\0")?;
        let free = library.get::<FreeVersion>(b"ov_version_free\0")?;
        let _ = get(&raw mut version);
        let number = text(version.build_number);
        free(&raw mut version);
        Ok(number)
    }
}

type GetVersion = unsafe extern "C" fn(*mut OvVersion) -> OvStatus;
type FreeVersion = unsafe extern "C" fn(*mut OvVersion);

/// The beginning of a version such as `2026.4.1-22982-e213a147257`.
fn year_and_number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

/// Copies a string of the library; null becomes the empty string.
///
/// # Safety
///
/// `text` is null or NUL-terminated.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as this function's own contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A string for the library; `what` describes it in the error.
pub(super) fn c_string(text: &str, what: &str) -> Result<CString, Status> {
    CString::new(text).map_err(|_| Status::invalid_argument(format!("{what} has a NUL byte")))
}

/// A path in the form that the library takes.
pub(super) fn path_string(path: &Path) -> Result<CString, Status> {
    use std::os::unix::ffi::OsStrExt as _;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Status::invalid_argument(format!("the path '{}' has a NUL byte", path.display()))
    })
}

/// The error's message, followed by those of its causes, which hold the loader's message.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_year_and_number() {
        let is_usable = |version| year_and_number(version).is_some_and(|it| it >= VERSION_MIN);
        for version in ["2026.4.1-22982-e213a147257-releases/2026/4", "2025.2", "2025.10.0"] {
            assert!(is_usable(version), "{version}");
        }
        for version in ["2025.1.0-18503", "2024.6.0", "2023", "", "custom_master_1"] {
            assert!(!is_usable(version), "{version}");
        }
    }
}
