//! The shared library itself.

use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use galatea_infer::Status;
use galatea_runtime::{LibraryFile, LibrarySearchSpec, with_causes};

use super::functions::{Functions, OvStatus, OvVersion};

/// The first version (year and number) that has all functions. Versions before 2025.1 number
/// element types differently from `element`.
const VERSION_MIN: (u32, u32) = (2025, 2);

/// OpenVINO's shared library, which stays open for the rest of the process's lifetime.
///
/// It is never unloaded, because its threads and static objects wouldn't survive that.
pub struct Library {
    api: Api,
    version: String,
    file: LibraryFile,
}

/// The library's functions, and the conversion of their errors.
///
/// The library keeps only one failure message for the whole process, so the message may come from
/// another thread's call. A call that fails during a load is therefore repeated while no other load
/// makes calls. Its error contains only the library's message, as in Triton. Executions don't wait:
/// their errors begin with the description of their own status, and the message after it may come
/// from another call if two calls fail at the same moment.
pub(super) struct Api {
    functions: Functions,
    loads: LoadCalls,
}

/// The lock for calls made by loads. Calls share it, and a call that is repeated for its message
/// holds it exclusively.
#[derive(Default)]
struct LoadCalls(RwLock<()>);

/// The statuses of calls that fail without an exception, and therefore without a message: an
/// invalid argument, an unknown failure, and a missing function.
const WITHOUT_MESSAGE: RangeInclusive<OvStatus> = -16..=-14;

impl Library {
    /// The names that are used to search for the library.
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
    /// The reason why the library can't be used: it doesn't exist, it isn't OpenVINO, or it is
    /// older than 2025.2.
    pub fn open(path: &Path) -> Result<Arc<Self>, Status> {
        let ((version, functions), file) = Self::NAME.open(path, || open(path))?;
        let api = Api { functions, loads: LoadCalls::default() };
        Ok(Arc::new(Self { api, version, file }))
    }

    /// The library's version, such as `2026.4.1-22982-…`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that was opened.
    #[must_use]
    pub const fn file(&self) -> &LibraryFile {
        &self.file
    }

    pub(super) const fn api(&self) -> &Api {
        &self.api
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library(OpenVINO {} at '{}')", self.version, self.file.path().display())
    }
}

impl Api {
    pub(super) const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Converts the status of a call made by an execution; `doing` describes the call in an error.
    pub(super) fn check(&self, status: OvStatus, doing: &str) -> Result<(), Status> {
        if status == 0 { Ok(()) } else { Err(self.error(status, doing, Origin::Execution)) }
    }

    /// Makes a call for a load, and repeats it if it fails; `doing` describes the call in an error.
    pub(super) fn load(&self, doing: &str, call: impl FnMut() -> OvStatus) -> Result<(), Status> {
        self.loads.run(call, |status| self.error(status, doing, Origin::Load))
    }

    /// Makes a call on behalf of a load, and returns its status. A failure of the call is not an
    /// error.
    pub(super) fn probe(&self, call: impl FnMut() -> OvStatus) -> OvStatus {
        self.loads.shared(call)
    }

    #[cold]
    fn error(&self, status: OvStatus, doing: &str, origin: Origin) -> Status {
        // SAFETY: the description is static; the message is the caller's to free.
        let (description, message) = unsafe {
            let description = text((self.functions.ov_get_error_info)(status));
            let raw = (self.functions.ov_get_last_err_msg)();
            let message = text(raw);
            if !raw.is_null() {
                (self.functions.ov_free)(raw);
            }
            (description, message)
        };
        let reason = reason(status, description, message, origin);
        Status::internal(format!("openvino error in {doing} : {reason}"))
    }
}

impl LoadCalls {
    fn run(
        &self,
        mut call: impl FnMut() -> OvStatus,
        error: impl FnOnce(OvStatus) -> Status,
    ) -> Result<(), Status> {
        if self.shared(&mut call) == 0 {
            return Ok(());
        }
        let _alone = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let status = call();
        if status == 0 { Ok(()) } else { Err(error(status)) }
    }

    fn shared(&self, mut call: impl FnMut() -> OvStatus) -> OvStatus {
        let _shared = self.0.read().unwrap_or_else(PoisonError::into_inner);
        call()
    }
}

/// The caller of a failed function.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Origin {
    /// A load, while no other load makes a call.
    Load,
    Execution,
}

/// The reason for a failure, from the description of its status and the library's last message.
fn reason(status: OvStatus, description: String, message: String, origin: Origin) -> String {
    if message.is_empty() || WITHOUT_MESSAGE.contains(&status) {
        description
    } else if origin == Origin::Load {
        message
    } else {
        format!("{description}: {message}")
    }
}

/// Opens the library at `path`, and returns its version and its functions.
fn open(path: &Path) -> Result<(String, Functions), String> {
    // SAFETY: the operator named this file as OpenVINO's library, whose initialisers are meant to
    // run.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| with_causes(&error))?;
    // A library that is refused below is not closed either: its initialisers have run, and threads
    // that they started would lose their code.
    let library = ManuallyDrop::new(library);
    let version = version(&library).map_err(|error| with_causes(&error))?;
    if year_and_number(&version).is_none_or(|found| found < VERSION_MIN) {
        let (year, number) = VERSION_MIN;
        return Err(format!("its version is {version}, and at least {year}.{number} is needed"));
    }
    // SAFETY: the library is OpenVINO's, as it has a version. It is never closed.
    let functions = unsafe { Functions::of(&library) }.map_err(|error| with_causes(&error))?;
    Ok((version, functions))
}

/// The version of a library that may lack some functions.
fn version(library: &libloading::Library) -> Result<String, libloading::Error> {
    let mut version = OvVersion { build_number: std::ptr::null(), description: std::ptr::null() };
    // SAFETY: the library is OpenVINO's if it has these functions, whose signatures are those of
    // its headers. The out pointer is valid; the strings live until they are freed.
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

/// The start of a version such as `2026.4.1-22982-e213a147257`.
fn year_and_number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

/// Copies a string from the library; null becomes an empty string.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_of_the_call_itself_stands_alone() {
        let of = |status, message: &str, origin| {
            reason(status, String::from("description"), message.to_owned(), origin)
        };
        assert_eq!(of(-1, "message", Origin::Load), "message");
        assert_eq!(of(-1, "message", Origin::Execution), "description: message");
        for origin in [Origin::Load, Origin::Execution] {
            assert_eq!(of(-14, "another's message", origin), "description");
            assert_eq!(of(-1, "", origin), "description");
        }
    }

    #[test]
    fn no_load_makes_a_call_between_a_failure_and_its_message() {
        let (calls, mut count) = (LoadCalls::default(), 0);
        let failing = || {
            count += 1;
            -1
        };
        let refused = calls.run(failing, |status| {
            assert!(calls.0.try_read().is_err(), "another call can overwrite the message");
            Status::internal(status.to_string())
        });
        assert_eq!((refused.unwrap_err().message(), count), ("-1", 2));
        assert_eq!(calls.run(|| 0, |_| unreachable!()), Ok(()));
    }

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
