//! Libraries with custom operators: `model_operations` of a configuration.
//!
//! As in Triton, a path is relative to the server's working directory. If there is no such file,
//! the path is relative to the model's directory, so that repositories can be moved. A name without
//! a directory is searched for in the model's directory, then next to ONNX Runtime's library, and
//! then, as in Triton, by the system's loader. The server rejects names from clients before they
//! reach this module.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{FileFingerprint, ModelFiles, is_library_truncated};
use galatea_infer::{Code, Status};
use galatea_stdx::Lock;

use crate::api::{EntryPoint, OrtEnvironment, SessionOptions, open_op_library};

/// The field that contains the names.
const FIELD: &str = "model_operations.op_library_filename";

/// The open libraries. They are never closed, because their operators, threads and static objects
/// wouldn't survive that. Triton doesn't close them either.
#[derive(Default)]
pub(crate) struct OpLibraries {
    open: Lock<BTreeMap<PathBuf, OpenLibrary>>,
}

/// An open library.
#[derive(Clone)]
struct OpenLibrary {
    /// The fingerprint that the file had before it was opened.
    fingerprint: Option<FileFingerprint>,
    entry_point: EntryPoint,
}

/// A model's open libraries.
pub(crate) struct ModelLibraries(Vec<OpLibrary>);

/// One of a model's libraries.
struct OpLibrary {
    /// The name in the configuration.
    name: String,
    /// The path that is passed to the loader.
    path: PathBuf,
    /// The fingerprint that the file had before it was opened; `None` if it is unknown or if the
    /// loader chose the file.
    fingerprint: Option<FileFingerprint>,
    /// True if the file has changed since it was opened.
    is_stale: bool,
}

impl OpLibraries {
    /// Opens the libraries in a configuration. `runtime_directory` is the directory of ONNX
    /// Runtime's library.
    ///
    /// # Errors
    ///
    /// A status with the field and the library, if the library doesn't exist, is outside the
    /// model's directory, or contains no operators.
    pub(crate) fn open(
        &self,
        names: &[String],
        files: &dyn ModelFiles,
        runtime_directory: Option<&Path>,
    ) -> Result<Arc<ModelLibraries>, Status> {
        let open = |name: &String| {
            self.open_one(name, files, runtime_directory)
                .map_err(|status| status.prefixed(field(name)))
        };
        names.iter().map(open).collect::<Result<_, _>>().map(|all| Arc::new(ModelLibraries(all)))
    }

    fn open_one(
        &self,
        name: &str,
        files: &dyn ModelFiles,
        runtime_directory: Option<&Path>,
    ) -> Result<OpLibrary, Status> {
        let path = find(name, files, runtime_directory)?;
        // The loader searches for a name without a path, but not in the working directory.
        let fingerprint = if path.is_absolute() { FileFingerprint::of(&path) } else { None };
        let library = match self.find_open(&path) {
            Some(library) => library,
            None => {
                let entry_point = open_op_library(&path).map_err(Status::invalid_argument)?;
                self.insert(&path, OpenLibrary { fingerprint: fingerprint.clone(), entry_point })
            }
        };
        let is_stale = library.fingerprint != fingerprint;
        match library.entry_point {
            EntryPoint::Present => {}
            EntryPoint::Missing => {
                let hint = if is_stale { REOPEN_HINT } else { "" };
                return Err(Status::invalid_argument(format!(
                    "it is no library with operators for ONNX Runtime: it has no function \
                     'RegisterCustomOps'{hint}"
                )));
            }
        }
        let name = name.to_owned();
        Ok(OpLibrary { name, path, fingerprint: library.fingerprint, is_stale })
    }

    fn find_open(&self, path: &Path) -> Option<OpenLibrary> {
        self.open.lock("find a library").get(path).cloned()
    }

    /// Adds a library. If another thread has added it in the meantime, the other thread's entry is
    /// used.
    fn insert(&self, path: &Path, library: OpenLibrary) -> OpenLibrary {
        let mut open = self.open.lock("add a library");
        open.entry(path.to_owned()).or_insert(library).clone()
    }
}

/// The loader keeps using the file that it opened first, even after the file has been replaced.
const REOPEN_HINT: &str =
    "; its file changed since it was opened, and is opened again when the server is started anew";

impl ModelLibraries {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Registers the operators with a session.
    ///
    /// # Errors
    ///
    /// A status with the field and the library that failed.
    pub(crate) fn register(
        &self,
        options: &mut SessionOptions,
        environment: &OrtEnvironment,
    ) -> Result<(), Status> {
        for library in &self.0 {
            let registered = options.register_op_library(environment, &library.path);
            registered.map_err(|status| {
                let text = format!("{}its operators can't be registered: ", library.field());
                status.prefixed(text)
            })?;
        }
        Ok(())
    }

    /// A warning for each library whose file has changed since it was opened.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let stale = self.0.iter().filter(|library| library.is_stale);
        stale.map(|library| format!("{}it is used as it was{REOPEN_HINT}", library.field()))
    }

    /// The fingerprints that the files had before they were opened; `None` unless all are known.
    pub(crate) fn fingerprints(&self) -> Option<Vec<FileFingerprint>> {
        self.0.iter().map(|library| library.fingerprint.clone()).collect()
    }
}

impl OpLibrary {
    /// The start of a message about the library.
    fn field(&self) -> String {
        field(&self.name)
    }
}

fn field(name: &str) -> String {
    format!("{FIELD} '{}': ", name.escape_debug())
}

/// The library's path, or a name without a directory if the loader has to search for it.
fn find(
    name: &str,
    files: &dyn ModelFiles,
    runtime_directory: Option<&Path>,
) -> Result<PathBuf, Status> {
    if name.is_empty() || name.contains('\0') {
        return Err(Status::invalid_argument("it is not a path"));
    }
    let from_here = absolute(Path::new(name))?;
    let is_there = name.contains('/') && from_here.is_file();
    if let Some(inside) = descending_path(name).filter(|_| !is_there) {
        match files.resolve_in_model_directory(&inside) {
            Err(status) if status.code() == Code::NotFound => {}
            found => return check_file(absolute(&found?)?, name, files),
        }
    }
    if name.contains('/') {
        return check_file(from_here, name, files);
    }
    let sibling =
        runtime_directory.map(|directory| directory.join(name)).filter(|path| path.is_file());
    Ok(sibling.unwrap_or_else(|| PathBuf::from(name)))
}

/// The name as a path without `..` and without a root; `None` if it isn't such a path.
fn descending_path(name: &str) -> Option<String> {
    let mut inside = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    inside.to_str().filter(|inside| !inside.is_empty()).map(str::to_owned)
}

fn absolute(path: &Path) -> Result<PathBuf, Status> {
    std::path::absolute(path)
        .map_err(|error| Status::internal(format!("can't tell where it is: {error}")))
}

/// Checks the file, because the loader would wait forever for a named pipe and would crash on a
/// truncated file.
fn check_file(path: PathBuf, name: &str, files: &dyn ModelFiles) -> Result<PathBuf, Status> {
    match fs::metadata(&path) {
        Ok(found) if found.is_file() && is_library_truncated(&path) => {
            Err(Status::invalid_argument(format!("the file '{}' is cut short", path.display())))
        }
        Ok(found) if found.is_file() => Ok(path),
        Ok(_) => Err(Status::invalid_argument(format!("'{}' is not a file", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let also = descending_path(name)
                .map(|inside| format!(" or '{}'", files.model_path().join(inside).display()));
            Err(Status::not_found(format!(
                "there is no '{}'{}",
                path.display(),
                also.unwrap_or_default()
            )))
        }
        Err(error) => {
            Err(Status::invalid_argument(format!("can't look at '{}': {error}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model's directory `models/m` in a temporary folder.
    struct TestModel {
        folder: PathBuf,
        directory: PathBuf,
    }

    impl TestModel {
        fn new() -> Self {
            let name = format!("galatea-onnxruntime-find-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let directory = folder.join("models/m");
            fs::create_dir_all(&directory).unwrap();
            Self { folder, directory }
        }

        fn file(&self, path: &str) -> PathBuf {
            let path = self.folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }
    }

    impl Drop for TestModel {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    impl ModelFiles for TestModel {
        fn model_path(&self) -> &Path {
            &self.directory
        }

        fn version(&self) -> i64 {
            1
        }

        fn version_path(&self) -> &Path {
            &self.directory
        }

        fn resolve(&self, name: &str) -> Result<PathBuf, Status> {
            self.resolve_in_model_directory(name)
        }

        fn resolve_in_model_directory(&self, name: &str) -> Result<PathBuf, Status> {
            let path = self.directory.join(name);
            if name == "leak" {
                return Err(Status::invalid_argument("leads out"));
            }
            if path.exists() { Ok(path) } else { Err(Status::not_found("nothing")) }
        }
    }

    #[test]
    fn the_models_directory_comes_first_then_tritons_places() {
        let model = TestModel::new();
        let runtime_directory = model.folder.join("runtime");
        let found = |name: &str| find(name, &model, Some(&runtime_directory));
        // The loader searches for the name.
        assert_eq!(found("ops.so"), Ok(PathBuf::from("ops.so")));
        let at_runtime = model.file("runtime/ops.so");
        assert_eq!(found("ops.so"), Ok(at_runtime));
        assert_eq!(find("ops.so", &model, None), Ok(PathBuf::from("ops.so")));
        let own = model.file("models/m/ops.so");
        assert_eq!(found("ops.so"), Ok(own.clone()));
        assert_eq!(found("./ops.so"), Ok(own));
        let elsewhere = model.file("elsewhere/ops.so");
        assert_eq!(found(&elsewhere.to_string_lossy()), Ok(elsewhere));
        // Tests run in their crate's directory.
        let here = std::env::current_dir().unwrap();
        assert_eq!(found("src/lib.rs"), Ok(here.join("src/lib.rs")));
        model.file("runtime/leak");
        assert_eq!(found("leak").unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(found("src/none.so").unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn only_descending_paths_are_searched_for_in_the_models_directory() {
        for (name, inside) in [
            ("ops.so", Some("ops.so")),
            ("./ops.so", Some("ops.so")),
            ("1/./ops.so", Some("1/ops.so")),
            ("../ops.so", None),
            ("1/../ops.so", None),
            ("/opt/ops.so", None),
            (".", None),
        ] {
            assert_eq!(descending_path(name).as_deref(), inside, "{name}");
        }
    }
}
