//! Opens plug-in libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use galatea_abi::backend::{
    TRITONBACKEND_Finalize, TRITONBACKEND_GetBackendAttribute, TRITONBACKEND_Initialize,
    TRITONBACKEND_ModelFinalize, TRITONBACKEND_ModelInitialize, TRITONBACKEND_ModelInstanceExecute,
    TRITONBACKEND_ModelInstanceFinalize, TRITONBACKEND_ModelInstanceInitialize,
    TRITONBACKEND_ModelInstanceReady,
};
use galatea_abi::{TRITONBACKEND_ModelInstance, TRITONBACKEND_Request, TRITONSERVER_Error};
use galatea_backend::is_library_truncated;
use galatea_c_objects::error::into_c;
use galatea_c_objects::exports::ExportedFunction;
use galatea_infer::Status;
use galatea_stdx::Lock;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::{elf, soname};

/// A backend's functions. The library is never unloaded, because its threads and objects would not
/// survive that. Triton doesn't unload it either.
pub(crate) struct BackendEntryPoints {
    pub(crate) initialize: Option<TRITONBACKEND_Initialize>,
    pub(crate) finalize: Option<TRITONBACKEND_Finalize>,
    pub(crate) attributes: Option<TRITONBACKEND_GetBackendAttribute>,
    pub(crate) model_initialize: Option<TRITONBACKEND_ModelInitialize>,
    pub(crate) model_finalize: Option<TRITONBACKEND_ModelFinalize>,
    pub(crate) instance_initialize: Option<TRITONBACKEND_ModelInstanceInitialize>,
    pub(crate) instance_finalize: Option<TRITONBACKEND_ModelInstanceFinalize>,
    pub(crate) instance_ready: Option<TRITONBACKEND_ModelInstanceReady>,
    pub(crate) execute: TRITONBACKEND_ModelInstanceExecute,
    /// A function that Galatea adds to the interface.
    pub(crate) instance_predictable: Option<InstancePredictable>,
}

/// Reports whether an instance is [predictable](galatea_backend::ExecutionPredictability::Predictable).
pub(crate) type InstancePredictable =
    unsafe extern "C" fn(*mut TRITONBACKEND_ModelInstance, *mut bool) -> *mut TRITONSERVER_Error;

/// Opens libraries and records the library names that it has provided.
pub(crate) struct LibraryOpener {
    /// The functions of this crate that plug-ins must be able to find.
    exports: fn() -> Vec<ExportedFunction>,
    provided: Lock<BTreeSet<String>>,
    /// The number of libraries that have been loaded under a new path spelling.
    opened_anew: AtomicU32,
}

impl LibraryOpener {
    /// Creates an opener. Plug-ins must be able to find these functions, and those of `c-objects`,
    /// in this process.
    pub(crate) fn new(exports: fn() -> Vec<ExportedFunction>) -> Self {
        Self { exports, provided: Lock::default(), opened_anew: AtomicU32::new(0) }
    }

    /// Opens the backend at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<BackendEntryPoints, Status> {
        let library = self.library(path)?;
        let entry_points = BackendEntryPoints::of(&library, path);
        std::mem::forget(library);
        entry_points
    }

    /// Opens the library that is currently at `path`, even if an earlier file from that path is
    /// still loaded. The loader would otherwise reuse the earlier library, because its path is the
    /// same.
    pub(crate) fn library_anew(&self, path: &Path) -> Result<Library, Status> {
        let number = self.opened_anew.fetch_add(1, Ordering::Relaxed);
        self.library(&spelled_anew(path, number))
    }

    /// Opens the library at `path`. The library finds the server's functions in this process.
    pub(crate) fn library(&self, path: &Path) -> Result<Library, Status> {
        if is_library_truncated(path) {
            return Err(Status::not_found(format!(
                "unable to load shared library: the file '{}' is cut short",
                path.display()
            )));
        }
        self.provide_server_libraries(path)?;
        // SAFETY: the operator installed this library as a plug-in, and running its initialisers is
        // intended.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            Status::not_found(format!("unable to load shared library: {}", loader_message(&error)))
        })
    }

    /// Provides the names under which the plug-in requires the server library, after checking that
    /// the plug-in will find the server's functions in this process.
    fn provide_server_libraries(&self, path: &Path) -> Result<(), Status> {
        let mut provided = self.provided.lock("provide names of libraries");
        if provided.is_empty() {
            check_exports((self.exports)())?;
        }
        let names = elf::needed(path).into_iter().filter(|name| is_server_library(name));
        // The plain name is also provided, because the plug-in's dependencies may require it.
        for name in names.chain([String::from("libtritonserver.so")]) {
            if !provided.contains(&name) {
                soname::provide(&name).map_err(|reason| {
                    Status::internal(format!("can't provide an empty library '{name}': {reason}"))
                })?;
                provided.insert(name);
            }
        }
        Ok(())
    }
}

/// Returns true if the name is that of Triton's server library, possibly mangled by a packaging
/// tool.
fn is_server_library(name: &str) -> bool {
    name == "libtritonserver.so"
        || name.starts_with("libtritonserver.so.")
        || (name.starts_with("libtritonserver-") && name.ends_with(".so"))
}

/// Returns a different spelling of the path for each number.
fn spelled_anew(path: &Path, number: u32) -> PathBuf {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    let mut spelled = folder.as_os_str().to_owned();
    let digits = u32::BITS.saturating_sub(number.leading_zeros());
    for digit in 0..digits {
        spelled.push(if number >> digit & 1 == 0 { "/." } else { "//." });
    }
    spelled.push("/");
    spelled.push(name);
    PathBuf::from(spelled)
}

/// The loader's error message.
fn loader_message(error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

/// Checks that a plug-in will find all of the server's functions in this process. If another
/// library provided one of them, requests would silently go to that library.
fn check_exports(own: Vec<ExportedFunction>) -> Result<(), Status> {
    let program = Library::this();
    for ExportedFunction { name, address: expected } in
        own.into_iter().chain(galatea_c_objects::exports::all())
    {
        let symbol = format!("{name}\0");
        // SAFETY: the symbol is looked up only for its address.
        let found = unsafe { program.get::<*const ()>(symbol.as_bytes()) };
        let address = found.ok().map(|symbol| symbol.into_raw().addr());
        if address != Some(expected) {
            let what = if address.is_some() { "another library's" } else { "not exported" };
            return Err(Status::internal(format!(
                "libraries can't be loaded: {name} is {what} in this process; the program must be \
                 linked with -rdynamic"
            )));
        }
    }
    Ok(())
}

impl BackendEntryPoints {
    /// The functions of a backend without a library.
    pub(crate) const NONE: Self = Self {
        initialize: None,
        finalize: None,
        attributes: None,
        model_initialize: None,
        model_finalize: None,
        instance_initialize: None,
        instance_finalize: None,
        instance_ready: None,
        execute: refuse_to_execute,
        instance_predictable: None,
    };

    fn of(library: &Library, path: &Path) -> Result<Self, Status> {
        // SAFETY: each function has the type that the header declares for its name.
        unsafe {
            let execute = function(library, c"TRITONBACKEND_ModelInstanceExecute").ok_or_else(|| {
                Status::not_found(format!(
                    "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in \
                     shared library '{}'",
                    path.display()
                ))
            })?;
            Ok(Self {
                initialize: function(library, c"TRITONBACKEND_Initialize"),
                finalize: function(library, c"TRITONBACKEND_Finalize"),
                attributes: function(library, c"TRITONBACKEND_GetBackendAttribute"),
                model_initialize: function(library, c"TRITONBACKEND_ModelInitialize"),
                model_finalize: function(library, c"TRITONBACKEND_ModelFinalize"),
                instance_initialize: function(library, c"TRITONBACKEND_ModelInstanceInitialize"),
                instance_finalize: function(library, c"TRITONBACKEND_ModelInstanceFinalize"),
                instance_ready: function(library, c"TRITONBACKEND_ModelInstanceReady"),
                execute,
                instance_predictable: function(library, c"GALATEA_ModelInstancePredictable"),
            })
        }
    }
}

/// Rejects an execution. Never called, because a backend without a library has no instances.
extern "C" fn refuse_to_execute(
    _: *mut TRITONBACKEND_ModelInstance,
    _: *mut *mut TRITONBACKEND_Request,
    _: u32,
) -> *mut TRITONSERVER_Error {
    into_c(Status::internal("this backend has no library"))
}

/// Looks up a function in the library or its dependencies.
///
/// # Safety
///
/// `T` must be the function's type.
pub(crate) unsafe fn function<T: Copy>(library: &Library, name: &core::ffi::CStr) -> Option<T> {
    // SAFETY: the caller guarantees the type, and the library is never unloaded.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }.ok().map(|symbol| *symbol)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::c_int;
    use std::path::{Path, PathBuf};

    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

    use super::{LibraryOpener, function, is_server_library, spelled_anew};
    use crate::testing::{Folder, compile};

    /// The loader would access pages that don't exist, which would end the process.
    #[test]
    fn a_truncated_library_is_not_given_to_the_loader() {
        let folder = Folder::new();
        let source = "int many[20000] = {1}; int one(void) { return many[9999]; }";
        let library = compile(&folder, "libcut.so", source, &[]);
        let whole = std::fs::read(&library).unwrap();
        for length in [whole.len() / 2, 4096, 1000] {
            std::fs::write(&library, &whole[..length]).unwrap();
            let status = LibraryOpener::new(Vec::new).library(&library).unwrap_err();
            let expected = format!("the file '{}' is cut short", library.display());
            assert!(status.message().ends_with(&expected), "{length}: {status}");
        }
    }

    #[test]
    fn a_replaced_library_is_opened_while_the_one_before_is_open() {
        let folder = Folder::new();
        let path = compile(&folder, "libbefore.so", "int one(void) { return 1; }", &[]);
        let after = compile(&folder, "libafter.so", "int one(void) { return 2; }", &[]);
        let open = |number| {
            // SAFETY: the library has no initialisers.
            unsafe { Library::open(Some(spelled_anew(&path, number)), RTLD_NOW | RTLD_LOCAL) }
                .unwrap()
        };
        let call = |library: &Library| {
            // SAFETY: this is the function's type.
            let one = unsafe { function::<extern "C" fn() -> c_int>(library, c"one") };
            one.unwrap()()
        };
        let before = open(0);
        let same = open(1);
        std::fs::rename(after, &path).unwrap();
        assert_eq!([call(&before), call(&same), call(&open(2))], [1, 1, 2]);
    }

    #[test]
    fn each_number_spells_the_same_path_in_another_way() {
        let path = Path::new("/usr/bin/env");
        let spelled: Vec<PathBuf> = (0..100).map(|number| spelled_anew(path, number)).collect();
        let texts: BTreeSet<_> = spelled.iter().map(|one| one.as_os_str()).collect();
        assert_eq!(texts.len(), 100);
        assert!(spelled.iter().all(|one| one == path), "components are the same");
    }

    #[test]
    fn the_servers_library_is_recognized_by_its_names() {
        for name in ["libtritonserver.so", "libtritonserver.so.2", "libtritonserver-717102f0.so"] {
            assert!(is_server_library(name), "{name}");
        }
        for name in ["libtritonserver.a", "libtriton_x.so", "libc.so.6", "libtritonserver_x.so"] {
            assert!(!is_server_library(name), "{name}");
        }
    }
}
