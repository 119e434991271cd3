//! The shared library itself.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::IntoRawFd as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use galatea_backend::empty_library;
use galatea_infer::Status;
use galatea_runtime::{LibraryFile, LibrarySearchSpec, with_causes};
use libloading::os::unix::{Library as UnixLibrary, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use super::functions::TorchFunctions;

/// The first release whose library has all functions.
const OLDEST_RELEASE: &str = "PyTorch 2.7";

/// The maximum number of libraries that may be missing.
const MISSING_MAX: usize = 32;

/// The prefixes of the names of libraries that only GPU models need. PyTorch's CPU library depends
/// on some of them, but calls none of their functions for models on the CPU.
const FOR_GPUS: [&str; 4] = ["libcu", "libnv", "libnccl", "librocm"];

thread_local! {
    /// The number of threads for operations of this thread; 0 before it is set.
    static THREADS: Cell<i32> = const { Cell::new(0) };
}

/// PyTorch's CPU library, which stays open for the rest of the process's lifetime.
///
/// It is never unloaded, because its threads and static objects would not survive that.
pub struct Library {
    functions: TorchFunctions,
    version: String,
    file: LibraryFile,
    /// The number of threads per operation, if a model's configuration has set it.
    intra_op_threads: OnceLock<i32>,
}

impl Library {
    /// The names that are used to search for the library.
    pub const NAME: LibrarySearchSpec = LibrarySearchSpec {
        framework: "PyTorch",
        file: "libtorch_cpu.so",
        package: "--no-deps torch",
        folder: "torch/lib",
        flag: "--torch-library",
        variable: "GALATEA_TORCH_LIBRARY",
    };

    /// Opens the library at `path`.
    ///
    /// The library depends on GPU libraries. An empty library replaces each of them that isn't
    /// installed, so `pip install --no-deps torch` is sufficient.
    ///
    /// # Errors
    ///
    /// The reason why the library can't be used: it doesn't exist, it isn't PyTorch's, or it lacks
    /// a function.
    pub fn open(path: &Path) -> Result<Arc<Self>, Status> {
        let (functions, file) = Self::NAME.open(path, || open(path))?;
        let version = installed_version(path).unwrap_or_default();
        Ok(Arc::new(Self { functions, version, file, intra_op_threads: OnceLock::new() }))
    }

    /// The library's version, such as `2.15.0+cu130`; empty if it is unknown.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that was opened.
    #[must_use]
    pub const fn file(&self) -> &LibraryFile {
        &self.file
    }

    /// The number of threads per operation, for all models. As in Triton, the first model with the
    /// setting determines it; `None` if no model has the setting.
    pub(crate) fn intra_op_threads(&self, wanted: Option<i32>) -> Option<i32> {
        match wanted {
            Some(wanted) => Some(*self.intra_op_threads.get_or_init(|| wanted)),
            None => self.intra_op_threads.get().copied(),
        }
    }

    /// Sets the number of threads for operations that the calling thread executes. The library
    /// stores a number for each thread, and so does this crate: setting a number again would make
    /// the library drop what it has prepared. A process has at most one library.
    pub(crate) fn set_threads(&self, count: i32) {
        let count = count.max(1);
        if THREADS.replace(count) == count {
            return;
        }
        // A thread's first operation gives the thread the number that was last set anywhere. Asking
        // for the number does this now, so that it can't replace the one that is set here.
        // SAFETY: the functions take any number above 0, and concern the calling thread.
        unsafe {
            (self.functions.get_num_threads)();
            (self.functions.set_num_threads)(count);
        }
    }

    pub(super) const fn functions(&self) -> &TorchFunctions {
        &self.functions
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library(PyTorch {} at '{}')", self.version, self.file.path().display())
    }
}

/// Opens a library for the use of this crate only.
///
/// # Safety
///
/// The operator trusts the library, whose initialisers run.
pub(super) unsafe fn open_local(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: by this function's own contract.
    unsafe { UnixLibrary::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

/// Opens the library at `path`, and returns its functions.
fn open(path: &Path) -> Result<TorchFunctions, String> {
    let library = open_without_gpus(path)?;
    // A model's library depends on it but uses nothing from it.
    provide("libtorch.so")?;
    // SAFETY: the library is PyTorch's if it has these functions. It is never closed.
    let functions = unsafe { TorchFunctions::of(&library) };
    let functions = functions.map_err(|error| {
        format!("{OLDEST_RELEASE} or later is needed ({})", with_causes(&error))
    })?;
    std::mem::forget(library);
    Ok(functions)
}

/// Opens PyTorch's library, with empty libraries in place of missing GPU libraries.
fn open_without_gpus(path: &Path) -> Result<libloading::Library, String> {
    use libloading::os::unix::RTLD_LAZY;
    for _ in 0..MISSING_MAX {
        // An empty library lacks all functions, so functions must not be looked up until they are
        // called. SAFETY: the operator named this file as PyTorch's library, whose initialisers are
        // meant to run.
        let opened = unsafe { UnixLibrary::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
        let message = match opened {
            Ok(library) => return Ok(library.into()),
            Err(error) => with_causes(&error),
        };
        let missing = missing_library(&message).filter(|name| is_for_gpus(name));
        let Some(missing) = missing else { return Err(message) };
        provide(missing)?;
    }
    Err(String::from("too many libraries are missing"))
}

/// The library that the loader didn't find, taken from its message: `NAME: cannot open shared
/// object file: No such file or directory`.
fn missing_library(message: &str) -> Option<&str> {
    let (before, _) = message.split_once(": cannot open shared object file")?;
    let name = before.rsplit([' ', '\'', '"']).next()?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

fn is_for_gpus(name: &str) -> bool {
    FOR_GPUS.iter().any(|prefix| name.starts_with(prefix))
}

/// Permanently loads an empty library named `soname`.
fn provide(soname: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("can't provide an empty library '{soname}': {error}")
    };
    let descriptor =
        memfd_create("empty library", MemfdFlags::CLOEXEC).map_err(|error| failed(&error))?;
    let mut file = File::from(descriptor);
    file.write_all(&empty_library(soname)).map_err(|error| failed(&error))?;
    // The file is left open: the loader identifies libraries by path, so no path may be reused.
    let path = format!("/proc/self/fd/{}", file.into_raw_fd());
    // SAFETY: the library has no code, so opening it runs none.
    let library = unsafe { libloading::Library::new(path) };
    std::mem::forget(library.map_err(|error| failed(&error))?);
    Ok(())
}

/// The version of the Python package that contains the library, from its file `version.py`.
fn installed_version(library: &Path) -> Option<String> {
    let file = library.parent()?.parent()?.join("version.py");
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim().trim_matches(['\'', '"']).to_owned())
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
    fn only_missing_libraries_for_gpus_are_replaced() {
        let message = |name: &str| {
            format!("{name}: cannot open shared object file: No such file or directory")
        };
        for name in ["libcudart.so.13", "libcupti.so.12", "libnvrtc.so", "libnccl.so.2"] {
            let message = format!("can't open: {}", message(name));
            assert_eq!(missing_library(&message).filter(|name| is_for_gpus(name)), Some(name));
        }
        let gomp = message("libgomp.so.1");
        assert_eq!(missing_library(&gomp).filter(|name| is_for_gpus(name)), None);
        assert_eq!(missing_library(&message("/a/libcudart.so")), None);
        assert_eq!(missing_library("undefined symbol: x"), None);
    }
}
