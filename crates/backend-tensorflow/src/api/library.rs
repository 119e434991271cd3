//! The shared library itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use galatea_backend::FileFingerprint;
use galatea_infer::Status;
use galatea_runtime::{LibraryFile, LibrarySearchSpec, c_string, with_causes};
use galatea_stdx::Lock;

use super::functions::Functions;
use super::status::{CallStatus, missing, text};

/// The alignment of memory that a tensor can refer to without a copy. Older versions, such as 2.16,
/// have no function that returns it. For a library that needs a larger alignment, the elements are
/// copied.
pub(super) const ALIGNMENT: usize = 64;

/// TensorFlow's shared library. It stays open for the rest of the process's lifetime.
///
/// It is never unloaded, because its threads and static objects wouldn't survive that.
pub struct Library {
    functions: Functions,
    version: String,
    file: LibraryFile,
    /// True once an operator library may have been opened.
    has_operator_libraries: AtomicBool,
    /// The operator libraries that have been opened.
    operator_libraries: Lock<BTreeMap<String, OperatorLibrary>>,
}

/// The version of an operator library's file when it was opened; `None` if it is unknown.
type OperatorLibrary = Option<FileFingerprint>;

impl Library {
    /// The names that are used to search for the library.
    pub const NAME: LibrarySearchSpec = LibrarySearchSpec {
        framework: "TensorFlow",
        file: "libtensorflow_cc.so",
        package: "--no-deps tensorflow-cpu",
        folder: "tensorflow",
        flag: "--tensorflow-library",
        variable: "GALATEA_TENSORFLOW_LIBRARY",
    };

    /// Opens the library at `path`.
    ///
    /// # Errors
    ///
    /// The reason why the library can't be used: it doesn't exist, it isn't TensorFlow, or it lacks
    /// a function.
    pub fn open(path: &Path) -> Result<Arc<Self>, Status> {
        let (functions, file) = Self::NAME.open(path, || open(path))?;
        // SAFETY: the version is a static string, and the function takes no arguments.
        let version = unsafe { text((functions.TF_Version)()) };
        Ok(Arc::new(Self {
            functions,
            version,
            file,
            has_operator_libraries: AtomicBool::new(false),
            operator_libraries: Lock::default(),
        }))
    }

    /// The library's version, such as `2.21.0`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file that was opened.
    #[must_use]
    pub const fn file(&self) -> &LibraryFile {
        &self.file
    }

    pub(super) const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns true if an operator library has been opened. Graphs may then contain operators that
    /// TensorFlow doesn't define.
    pub(crate) fn has_opened_operators(&self) -> bool {
        self.has_operator_libraries.load(Ordering::SeqCst)
    }

    /// Opens an operator library, which stays open. A file is opened only once, because TensorFlow
    /// stores a description of the operators for each call.
    pub(crate) fn load_operators(&self, path: &str) -> Result<(), Status> {
        let fingerprint = FileFingerprint::of(Path::new(path));
        let known = |opened: &BTreeMap<String, OperatorLibrary>| {
            opened.get(path).is_some_and(|found| *found == fingerprint)
        };
        if known(&self.operator_libraries.lock("find an operator library")) {
            return Ok(());
        }
        self.has_operator_libraries.store(true, Ordering::SeqCst);
        self.open_operators(path)?;
        let mut opened = self.operator_libraries.lock("add an operator library");
        opened.insert(path.to_owned(), fingerprint);
        Ok(())
    }

    fn open_operators(&self, path: &str) -> Result<(), Status> {
        let status = CallStatus::new(&self.functions)?;
        let name = c_string(path, "the path of an operator library")?;
        // SAFETY: the name lives during the call. The operator specified the file, whose
        // initializers are meant to run. The handle isn't needed, because the operators are now
        // registered.
        let handle = unsafe { (self.functions.TF_LoadLibrary)(name.as_ptr(), status.as_ptr()) };
        status.check()?;
        if handle.is_null() { Err(missing("library of operators")) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library(TensorFlow {} at '{}')", self.version, self.file.path().display())
    }
}

/// Opens the library at `path`, and returns its functions.
fn open(path: &Path) -> Result<Functions, String> {
    // SAFETY: the operator specified this file as TensorFlow's library, whose initializers are
    // meant to run.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| with_causes(&error))?;
    // SAFETY: the library is TensorFlow's if it has these functions. It is never closed.
    let functions = unsafe { Functions::of(&library) }.map_err(|error| with_causes(&error))?;
    std::mem::forget(library);
    Ok(functions)
}
